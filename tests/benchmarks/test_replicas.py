"""Two replicas beside one: who runs when, and what the ratio is of."""

import pytest

from benchmarks.runtime.bystanders import Bystanders
from benchmarks.runtime.errors import EngineError
from benchmarks.runtime.figures import Manner, Row
from benchmarks.runtime.replicas import SHARED_CASES, compare_replicas
from benchmarks.runtime.workload import Case, Completion, Figure

CASE = Case("one", Figure.OUTPUT, 1, 8, 100)


RUNNING: set[str] = set()


class FakeReplica:
    """Answers in 10 s alone, and in so many with another that runs. It refuses a prompt that it knows."""

    def __init__(self, name: str, shared_seconds: float, num_tokens: int = 100) -> None:
        self.name, self._shared_seconds, self._num_tokens = name, shared_seconds, num_tokens
        self._known: list[list[int]] = []

    def row(self, case: Case) -> Row:
        return Row(case.name, "bf16", self.name, Manner.LIBRARY)

    def complete(self, _: Case, prompts: list[list[int]]) -> list[Completion]:
        assert self.name in RUNNING
        assert not [prompt for prompt in prompts if prompt in self._known]
        self._known += prompts
        seconds = 10.0 if len(RUNNING) == 1 else self._shared_seconds
        return [Completion(0.0, 1.0, seconds, self._num_tokens) for _ in prompts]

    def read_cpu_seconds(self) -> float:
        return 0.0

    def pause(self) -> None:
        RUNNING.discard(self.name)

    def resume(self) -> None:
        RUNNING.add(self.name)


def test_the_ratio_is_of_all_tokens_until_the_last_over_one_alone() -> None:
    replicas = [FakeReplica("a", 20.0), FakeReplica("b", 25.0)]
    assert compare_replicas(replicas, CASE, "0", Bystanders(100)) == pytest.approx((200 / 25) / (100 / 10))
    assert not RUNNING


def test_an_answer_that_is_too_short_is_no_rate() -> None:
    with pytest.raises(EngineError, match="answers of"):
        compare_replicas(
            [FakeReplica("a", 20.0), FakeReplica("b", 20.0, num_tokens=3)], CASE, "0", Bystanders(100)
        )
    assert not RUNNING


def test_what_comes_before_the_first_token_counts() -> None:
    assert {case.figure for case in SHARED_CASES} == {Figure.OUTPUT}
    assert [case.name for case in SHARED_CASES] == ["single", "c8"]
