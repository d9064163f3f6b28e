"""The order of the measurements, and carrying it out: one engine runs, the others are stopped.

In every round each case goes to all engines one after the other, so that what is compared lies seconds
apart. The next round begins with the next engine (A B C, B C A, …): none has the better place in all of them.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from benchmarks.runtime.bystanders import Bystanders
from benchmarks.runtime.errors import EngineError
from benchmarks.runtime.figures import OURS, Row
from benchmarks.runtime.progress import report
from benchmarks.runtime.workload import WAKE, Case, Completion, compute_rate, find_fault


class Engine(Protocol):
    """A started engine that answers when it is asked."""

    name: str

    def read_cpu_seconds(self) -> float:
        """Return the CPU time of all its processes so far."""

    def row(self, case: Case) -> Row:
        """Return where this engine's rate in a case belongs."""

    def complete(self, case: Case, prompts: list[list[int]]) -> list[Completion]:
        """Answer all prompts at once. Raises EngineError."""

    def pause(self) -> None:
        """Stop all its processes where they are."""

    def resume(self) -> None:
        """Let them go on. Raises EngineError when it has ended."""


class Turn(NamedTuple):
    """One measurement of one engine."""

    round: int
    case: Case
    engine: int


def plan_turns(num_rounds: int, cases: Sequence[Case], num_engines: int) -> Iterator[Turn]:
    """Yield the turns in their order."""
    for number in range(num_rounds):
        for case in cases:
            for engine in range(num_engines):
                yield Turn(number, case, (number + engine) % num_engines)


class Rounds:
    """Measures engines in turn. A peer that fails once is left out from then on, and so are its rates."""

    def __init__(self, engines: Sequence[Engine], cases: Sequence[Case], bystanders: Bystanders) -> None:
        self._engines, self._cases, self._bystanders = engines, cases, bystanders
        self._rates: dict[Row, list[float]] = {}
        self.failures: dict[str, str] = {}
        """Why a peer was left out, by its name."""

    def run(self, num_rounds: int) -> dict[Row, list[float]]:
        """Return every rate, by row and round. Raises EngineError when it is ours that fails."""
        for engine in self._engines:
            self._attempt(engine, partial(self._warm_up, engine))
        for turn in plan_turns(num_rounds, self._cases, len(self._engines)):
            engine = self._engines[turn.engine]
            self._attempt(engine, partial(self._measure, engine, turn))
        return self.rates

    @property
    def rates(self) -> dict[Row, list[float]]:
        """Every rate so far, by row and round, of the engines that never failed."""
        return {row: rates for row, rates in self._rates.items() if row.engine not in self.failures}

    def _attempt(self, engine: Engine, action: Callable[[], None]) -> None:
        if engine.name in self.failures:
            return
        try:
            with running(engine):
                action()
        except EngineError as error:
            if engine.name == OURS:
                raise
            self.failures[engine.name] = str(error)
            report(f"{engine.name} failed: {error}")

    def _warm_up(self, engine: Engine) -> None:
        for case in self._cases:
            ask(engine, case.shorten(), "warm")

    def _measure(self, engine: Engine, turn: Turn) -> None:
        with self._bystanders.watch(engine):
            ask(engine, WAKE, str(turn))  # its caches went cold while it was stopped
            rate = ask(engine, turn.case, str(turn.round))
        row = engine.row(turn.case)
        self._rates.setdefault(row, []).append(rate)
        report(f"round {turn.round + 1}: {row.case} {row.precision} {row.engine} {row.manner}: {rate:.1f}")


@contextlib.contextmanager
def running(engine: Engine) -> Iterator[None]:
    """Continue an engine, and stop it again."""
    engine.resume()
    try:
        yield
    finally:
        engine.pause()


def ask(engine: Engine, case: Case, seed: str) -> float:
    """Have an engine answer a case once, and return its rate. Raises EngineError."""
    completions = case.answer(engine, seed)
    if (fault := find_fault(case, completions)) is not None:
        raise EngineError(fault)
    return compute_rate(case, completions)
