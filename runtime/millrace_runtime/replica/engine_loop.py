"""The engine's main loop: receive, schedule, submit, collect, send."""

from collections.abc import Callable
from typing import NoReturn

from millrace_runtime.engine.errors import EngineError
from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.protocol.executor import Executor
from millrace_runtime.protocol.messages import (
    FINISH_ERROR,
    Abort,
    Generate,
    SequenceOutput,
    Stats,
    StepOutputs,
    StepTiming,
    ToEngine,
)
from millrace_runtime.replica.engine_channel import EngineChannel

IDLE_SECONDS = 1.0
"""An engine with nothing to do wakes this often, to show that it lives."""


class EngineLoop:
    """One thread. It sleeps on the socket with nothing to do, and else in the executor's `collect`."""

    def __init__(
        self, channel: EngineChannel, scheduler: Scheduler, executor: Executor, beat: Callable[[], None]
    ) -> None:
        """`beat` is called once a turn: at least every IDLE_SECONDS unless a step takes longer."""
        self._channel = channel
        self._scheduler = scheduler
        self._executor = executor
        self._beat = beat
        self._outputs: list[SequenceOutput] = []
        self._timing: StepTiming | None = None
        self._told: Stats | None = None

    def run(self) -> NoReturn:
        """Serve until the HTTP process closes the socket, which raises PeerGone."""
        while True:
            self._receive()
            self._submit()
            self._collect()
            self._send()
            self._beat()

    def _receive(self) -> None:
        for message in self._channel.receive(0 if self._scheduler.has_work else IDLE_SECONDS):
            self._take(message)

    def _take(self, message: ToEngine) -> None:
        match message:
            case Generate():
                try:
                    self._scheduler.add(message)
                except EngineError as error:
                    self._outputs.append(
                        SequenceOutput(message.sequence_id, [], [], FINISH_ERROR, str(error))
                    )
            case Abort(sequence_id):
                self._scheduler.abort(sequence_id)

    def _submit(self) -> None:
        while (plan := self._scheduler.schedule()) is not None:
            self._executor.submit(plan)

    def _collect(self) -> None:
        if self._scheduler.num_flights:
            result = self._executor.collect()
            self._timing = self._scheduler.timing(result)
            self._outputs += self._scheduler.commit(result)

    def _send(self) -> None:
        """Send what is new, in one message; nothing when nothing is."""
        stats = self._scheduler.stats()
        if self._outputs or self._timing is not None or stats != self._told:
            self._channel.send(StepOutputs(self._outputs, stats, self._timing))
        self._outputs, self._timing, self._told = [], None, stats
