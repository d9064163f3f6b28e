"""The engine's main loop: receive, schedule, submit, collect, send; and its channel to the HTTP process."""

import select
import socket
import time
from collections.abc import Callable
from typing import NoReturn

import msgspec

from millrace_runtime.engine.errors import EngineError
from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.protocol.encoding import FrameDecoder, encode_frame
from millrace_runtime.protocol.executor import Executor, Record
from millrace_runtime.protocol.messages import (
    FINISH_ERROR,
    Abort,
    FromEngine,
    Generate,
    SequenceOutput,
    Stats,
    StepOutputs,
    StepTiming,
    ToEngine,
)
from millrace_runtime.replica.errors import PeerGone
from millrace_runtime.replica.recordings import REST_SECONDS, Recordings

IDLE_SECONDS = 1.0
"""An engine with nothing to do wakes this often, to show that it lives."""
STEP_POLL_SECONDS = 0.25
"""While a step takes long, its progress and new messages are looked at this often."""
_READ_BYTES = 1 << 20


class EngineChannel:
    """Receives and sends messages."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._decoder: FrameDecoder[ToEngine] = FrameDecoder(ToEngine)  # type: ignore[arg-type]

    def receive(self, timeout_seconds: float) -> list[ToEngine]:
        """Return the messages that have come, having waited up to `timeout_seconds` for the first.

        Raises PeerGone when the other end has closed, and FrameError for what is no message.
        """
        messages: list[ToEngine] = []
        while self._poll.poll(0 if messages else timeout_seconds * 1000):
            timeout_seconds = 0
            messages += self._decoder.feed(self._read())
        return messages

    def send(self, message: FromEngine) -> None:
        """Send a message, which waits while the other end reads slowly. Raises PeerGone."""
        try:
            self._sock.sendall(encode_frame(message))
        except OSError as error:
            raise PeerGone(f"the HTTP process is gone: {error.strerror}") from error

    def _read(self) -> bytes:
        try:
            data = self._sock.recv(_READ_BYTES)
        except OSError as error:
            raise PeerGone(f"the HTTP process is gone: {error.strerror}") from error
        if not data:
            raise PeerGone("the HTTP process closed its socket")
        return data


class StepClock:
    """Measures from step to step while there is work, and from the first one's begin after a rest.

    The device's own time would leave out what lies between two steps, when nobody computes. Full replicas
    that their CPU quota stopped were seen to lose a quarter of their time there (once, by hand), and the
    autoscaler took them to carry a third more than they did.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._since: float | None = None

    def begin(self) -> None:
        """Note that a step is submitted."""
        if self._since is None:
            self._since = self._clock()

    def skip(self) -> None:
        """Leave out what has passed since the last step ended: it belongs to no step."""
        self._since = None

    def end(self, *, is_more_to_do: bool) -> float:
        """Return the seconds of the step that has ended."""
        now = self._clock()
        seconds = 0.0 if self._since is None else now - self._since
        self._since = now if is_more_to_do else None
        return seconds


class EngineLoop:
    """Runs in one thread. It waits at the socket while there is no work, and else for the executor."""

    def __init__(
        self, channel: EngineChannel, scheduler: Scheduler, executor: Executor, beat: Callable[[], None]
    ) -> None:
        """`beat` is called once a turn, and whenever the awaited step has advanced.

        So a long step shows life and a hung one does not.
        """
        self._channel = channel
        self._scheduler = scheduler
        self._executor = executor
        self._beat = beat
        self._outputs: list[SequenceOutput] = []
        self._timing: StepTiming | None = None
        self._clock = StepClock()
        self._recordings = Recordings(executor.limits.recordable)
        self._sent_stats: Stats | None = None
        self._num_compiled = 0

    def run(self) -> NoReturn:
        """Serve until the HTTP process closes the socket, which raises PeerGone."""
        while True:
            self.turn()

    def turn(self) -> None:
        """Receive, begin a step, send what the step before brought, and collect this one.

        Sending comes after the submission: the device computes meanwhile.
        """
        self._receive()
        self._executor.check()
        if self._is_free_to_submit():
            self._submit()
        self._send()
        self._collect()
        self._beat()

    def _receive(self) -> None:
        if self._scheduler.has_work:
            self._receive_messages(0)
        else:
            self._send()  # now, and not when the wait is over
            self._receive_messages(IDLE_SECONDS if self._recordings.is_complete else REST_SECONDS)

    def _receive_messages(self, timeout_seconds: float) -> None:
        """Handle the messages that have come, and send the new stats at once: a step may take long."""
        messages = self._channel.receive(timeout_seconds)
        for message in messages:
            self._handle(message)
        if messages:
            self._send()

    def _handle(self, message: ToEngine) -> None:
        match message:
            case Generate():
                try:
                    self._scheduler.add(message)
                except EngineError as error:
                    self._outputs += [
                        SequenceOutput(new.sequence_id, [], [], FINISH_ERROR, str(error))
                        for new in message.sequences
                    ]
            case Abort(sequence_id):
                self._scheduler.abort(sequence_id)

    def _is_free_to_submit(self) -> bool:
        """Record what is due, once no step is in flight; until then no other may be submitted."""
        if self._recordings.is_complete:
            return True
        now = time.monotonic()
        if self._scheduler.has_work:
            size = self._recordings.choose_at_work(self._scheduler.stats().num_running, now)
        else:
            size = self._recordings.choose_at_rest(now)
        if size is None:
            return True
        if self._scheduler.num_in_flight:
            return False
        self._executor.control(Record(size))
        self._recordings.note(size, now)
        self._clock.skip()
        return True

    def _submit(self) -> None:
        while (plan := self._scheduler.schedule()) is not None:
            self._clock.begin()
            self._executor.submit(plan)

    def _collect(self) -> None:
        if self._scheduler.num_in_flight:
            self._await_step()
            result = self._executor.collect()
            committed = self._scheduler.commit(result)
            self._num_compiled += result.num_compiled
            self._outputs += committed.outputs
            seconds = self._clock.end(is_more_to_do=self._scheduler.has_work)
            self._timing = committed.timing and msgspec.structs.replace(committed.timing, seconds=seconds)

    def _await_step(self) -> None:
        progress = self._executor.progress
        while not self._executor.wait(STEP_POLL_SECONDS):
            self._receive_messages(0)
            if self._executor.progress != progress:
                progress = self._executor.progress
                self._beat()

    def _send(self) -> None:
        """Send all that is new in one message, or nothing if nothing is new."""
        stats, begun = self._stats(), self._scheduler.pop_begun()
        if self._outputs or begun or self._timing is not None or stats != self._sent_stats:
            self._channel.send(StepOutputs(self._outputs, stats, self._timing, begun))
        self._outputs, self._timing, self._sent_stats = [], None, stats

    def _stats(self) -> Stats:
        stats = self._scheduler.stats()
        return (
            msgspec.structs.replace(stats, num_compiled=self._num_compiled) if self._num_compiled else stats
        )
