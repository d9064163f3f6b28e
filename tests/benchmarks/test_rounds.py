"""A run as a transcript: which engine goes on, is asked and is stopped, and what a failure changes."""

from collections.abc import Sequence

import pytest

from benchmarks.runtime.bystanders import Bystanders
from benchmarks.runtime.errors import EngineError
from benchmarks.runtime.figures import OURS, Manner, Row
from benchmarks.runtime.rounds import Rounds, plan_turns
from benchmarks.runtime.workload import Case, Completion, Figure

ONE = Case("one", Figure.OUTPUT, 1, 8, 100)
TWO = Case("two", Figure.OUTPUT, 2, 8, 50)


class FakeEngine:
    """Answers at once at its own speed, and notes what is done to it. It refuses a prompt that it knows."""

    def __init__(self, name: str, transcript: list[str], *, speed: float = 10.0, fails_on: str = "") -> None:
        self.name = name
        self._transcript, self._speed, self._fails_on = transcript, speed, fails_on
        self._known: list[list[int]] = []

    def row(self, case: Case) -> Row:
        return Row(case.name, "bf16", self.name, Manner.HTTP)

    def complete(self, case: Case, prompts: list[list[int]]) -> list[Completion]:
        if case.name == self._fails_on and case.num_output_tokens > 12:
            raise EngineError("it broke off")
        assert not [prompt for prompt in prompts if prompt in self._known]
        self._known += prompts
        if case.num_output_tokens > 12:
            self._transcript.append(f"{self.name} {case.name}")
        seconds = len(prompts) * case.num_output_tokens / self._speed
        return [Completion(0.0, 0.0, seconds, case.num_output_tokens) for _ in prompts]

    def read_cpu_seconds(self) -> float:
        return 0.0

    def pause(self) -> None:
        self._transcript.append(f"{self.name} stops")

    def resume(self) -> None:
        self._transcript.append(f"{self.name} goes on")


def watched(engines: Sequence[FakeEngine], cases: Sequence[Case]) -> Rounds:
    return Rounds(engines, cases, Bystanders(100))


def test_every_case_goes_round_all_engines_before_the_next_and_each_round_begins_with_another() -> None:
    turns = [f"{turn.round}{turn.case.name}{turn.engine}" for turn in plan_turns(2, [ONE, TWO], 2)]
    assert turns == ["0one0", "0one1", "0two0", "0two1", "1one1", "1one0", "1two1", "1two0"]


def test_only_the_engine_that_is_asked_runs() -> None:
    transcript: list[str] = []
    engines = [FakeEngine(OURS, transcript), FakeEngine("peer", transcript, speed=20.0)]
    rates = watched(engines, [ONE]).run(1)
    assert transcript == [
        *("millrace goes on", "millrace stops", "peer goes on", "peer stops"),  # warming up
        *("millrace goes on", "millrace one", "millrace stops", "peer goes on", "peer one", "peer stops"),
    ]
    assert rates == {engines[0].row(ONE): [10.0], engines[1].row(ONE): [20.0]}


def test_a_peer_that_fails_is_named_and_leaves_no_rates_and_is_asked_no_more() -> None:
    transcript: list[str] = []
    rounds = watched(
        [FakeEngine(OURS, transcript), FakeEngine("peer", transcript, fails_on="two")], [ONE, TWO]
    )
    rates = rounds.run(2)
    assert rounds.failures == {"peer": "it broke off"}
    assert {row.engine for row in rates} == {OURS}
    assert [line for line in transcript if line in ("peer one", "millrace two")] == [
        "peer one",
        "millrace two",
        "millrace two",
    ]
    assert transcript.count("peer goes on") == transcript.count("peer stops") == 3


def test_a_failure_of_ours_ends_the_run_with_the_engine_stopped() -> None:
    transcript: list[str] = []
    with pytest.raises(EngineError, match="broke off"):
        watched([FakeEngine(OURS, transcript, fails_on="one")], [ONE]).run(1)
    assert transcript[-1] == "millrace stops"
