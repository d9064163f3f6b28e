"""The engine's main loop: receive, schedule, submit, collect, send; and its channel to the HTTP process."""

import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

import msgspec

from millrace_runtime.engine.errors import EngineError
from millrace_runtime.engine.matcher import Matcher
from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.protocol.encoding import FrameDecoder, encode_frame
from millrace_runtime.protocol.executor import Executor, Record
from millrace_runtime.protocol.messages import (
    FINISH_ERROR,
    Abort,
    FromEngine,
    Generate,
    Grammar,
    SequenceOutput,
    Stats,
    StepOutputs,
    StepTiming,
    ToEngine,
)
from millrace_runtime.protocol.step import StepSize
from millrace_runtime.replica.errors import PeerGone
from millrace_runtime.replica.grammar_compiler import GrammarCompiler, Root
from millrace_runtime.replica.recordings import REST_SECONDS, Recordings

IDLE_SECONDS = 1.0
"""How often an idle engine wakes to write a heartbeat."""
STEP_POLL_SECONDS = 0.25
"""How often the engine looks for progress and new messages during a long step."""
_READ_BYTES = 1 << 20


class EngineChannel:
    """Receives and sends messages."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll.register(self._bell, select.POLLIN)
        self._decoder: FrameDecoder[ToEngine] = FrameDecoder(ToEngine)  # type: ignore[arg-type]

    def receive(self, timeout_seconds: float) -> list[ToEngine]:
        """Return the received messages. Wait up to `timeout_seconds` for the first.

        `wake` ends the wait. Raises PeerGone when the other end has closed, and FrameError for bytes that are
        no message.
        """
        messages: list[ToEngine] = []
        while ready := self._poll.poll(0 if messages else timeout_seconds * 1000):
            timeout_seconds = 0
            for descriptor, _ in ready:
                if descriptor == self._bell:
                    os.eventfd_read(self._bell)
                else:
                    messages += self._decoder.feed(self._read())
        return messages

    def wake(self) -> None:
        """End a wait of `receive`. Any thread may call it."""
        os.eventfd_write(self._bell, 1)

    def send(self, message: FromEngine) -> None:
        """Send a message. It waits for a slow reader. Raises PeerGone."""
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
    """Measures from the end of one step to the end of the next; after a rest, from the first one's start.

    The device's own time would omit the time between two steps. Full replicas that their CPU quota stopped
    lost a quarter of their time there (seen once, by hand), and the autoscaler estimated their capacity a
    third too high.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._since: float | None = None

    def begin(self) -> None:
        """Note that a step is submitted."""
        if self._since is None:
            self._since = self._clock()

    def skip(self) -> None:
        """Leave out the time since the end of the last step: it belongs to no step."""
        self._since = None

    def end(self, *, is_more_to_do: bool) -> float:
        """Return the seconds of the step that has ended."""
        now = self._clock()
        seconds = 0.0 if self._since is None else now - self._since
        self._since = now if is_more_to_do else None
        return seconds


class EngineLoop:
    """Runs in one thread. It waits for the socket while there is no work, and otherwise for the executor."""

    def __init__(
        self,
        channel: EngineChannel,
        scheduler: Scheduler,
        executor: Executor,
        compile_grammar: Callable[[Grammar], Root],
        beat: Callable[[], None],
        *,
        recordings: Recordings | None = None,
    ) -> None:
        """The loop calls `beat` once a turn, and whenever the awaited step has made progress.

        So a long step has heartbeats, and a hung step has none. Without `recordings` no step is recorded yet.
        """
        self._grammars = GrammarCompiler(compile_grammar, channel.wake)
        self._channel = channel
        self._scheduler = scheduler
        self._executor = executor
        self._beat = beat
        self._outputs: list[SequenceOutput] = []
        self._timing: StepTiming | None = None
        self._clock = StepClock()
        self._recordings = recordings or Recordings(executor.limits.recordable)
        self._last_mixed: StepSize | None = None
        self._sent_stats: Stats | None = None
        self._num_compiled = 0
        self._awaits_mask = False
        """Whether every sequence waits for a slow mask. The thread that makes it wakes the loop."""

    def run(self) -> NoReturn:
        """Serve until the HTTP process closes the socket, which raises PeerGone."""
        while True:
            self.turn()

    def turn(self) -> None:
        """Receive, begin a step, send the outputs of the step before, and collect this step.

        Sending comes after the submission, so that the device computes meanwhile.
        """
        self._receive()
        self._add_compiled()
        self._executor.check()
        if self._is_free_to_submit():
            self._submit()
            self._awaits_mask = self._scheduler.has_work and not self._scheduler.num_in_flight
        self._send()
        self._collect()
        self._beat()

    def _receive(self) -> None:
        if self._scheduler.has_work and not self._awaits_mask:
            self._receive_messages(0)
        else:
            self._send()  # before the wait, not after it
            self._receive_messages(IDLE_SECONDS if self._recordings.is_complete else REST_SECONDS)

    def _receive_messages(self, timeout_seconds: float) -> None:
        """Handle the received messages, and send the new stats at once: a step may take long."""
        messages = self._channel.receive(timeout_seconds)
        for message in messages:
            self._handle(message)
        if messages:
            self._send()

    def _handle(self, message: ToEngine) -> None:
        match message:
            case Generate(grammar=None):
                self._add(message)
            case Generate():
                self._grammars.begin(message)
            case Abort(sequence_id):
                self._scheduler.abort(sequence_id)
                self._grammars.abort(sequence_id)

    def _add_compiled(self) -> None:
        for request, matchers, error in self._grammars.pop_compiled():
            if error is None:
                self._add(request, matchers)
            else:
                self._fail(request, error)

    def _add(self, request: Generate, matchers: Sequence[Matcher] = ()) -> None:
        try:
            self._scheduler.add(request, matchers)
        except EngineError as error:
            self._fail(request, str(error))

    def _fail(self, request: Generate, why: str) -> None:
        self._outputs += [
            SequenceOutput(new.sequence_id, [], [], FINISH_ERROR, why) for new in request.sequences
        ]

    def _is_free_to_submit(self) -> bool:
        """Record the size that is due. Return whether the loop may submit: not while a recording waits."""
        if self._recordings.is_complete:
            return True
        now = time.monotonic()
        if self._scheduler.has_work:
            size = self._recordings.choose_at_work(self._list_steps(), now)
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

    def _list_steps(self) -> list[StepSize]:
        """Return the sizes of the steps that decode now, and of the last step with a prompt beside them."""
        num_running = self._scheduler.stats().num_running
        mixed = [] if self._last_mixed is None else [self._last_mixed]
        return [StepSize(num_running), *mixed] if num_running else []

    def _submit(self) -> None:
        while (plan := self._scheduler.schedule()) is not None:
            self._clock.begin()
            self._executor.submit(plan)
            self._provide_masks()

    def _provide_masks(self) -> None:
        """Provide the newest step's masks once the tokens before them are known. It computes meanwhile."""
        if (due := self._scheduler.pop_masks()) is not None:
            self._executor.provide_masks(due.step, due.masks)

    def _collect(self) -> None:
        if self._scheduler.num_in_flight:
            self._await_step()
            result = self._executor.collect()
            committed = self._scheduler.commit(result)
            self._provide_masks()
            self._num_compiled += result.num_compiled
            self._outputs += committed.outputs
            seconds = self._clock.end(is_more_to_do=self._scheduler.has_work)
            if not result.num_compiled:
                self._scheduler.observe(committed.work, seconds)
            self._timing = committed.timing and msgspec.structs.replace(committed.timing, seconds=seconds)
            if committed.timing is not None and not committed.timing.is_decode_only:
                self._last_mixed = StepSize(committed.timing.num_tokens, is_mixed=True)

    def _await_step(self) -> None:
        progress = self._executor.progress
        while not self._executor.wait(STEP_POLL_SECONDS):
            self._receive_messages(0)
            if self._executor.progress != progress:
                progress = self._executor.progress
                self._beat()

    def _send(self) -> None:
        """Send all news in one message, or nothing without news."""
        stats, begun = self._stats(), self._scheduler.pop_begun()
        if self._outputs or begun or self._timing is not None or stats != self._sent_stats:
            self._channel.send(StepOutputs(self._outputs, stats, self._timing, begun))
        self._outputs, self._timing, self._sent_stats = [], None, stats

    def _stats(self) -> Stats:
        stats = self._scheduler.stats()
        if not (self._num_compiled or self._grammars.num_waiting):
            return stats
        num_waiting = stats.num_waiting + self._grammars.num_waiting
        return msgspec.structs.replace(stats, num_waiting=num_waiting, num_compiled=self._num_compiled)
