"""What the benchmark of the operator does to pods is what the operator reads."""

import pytest

from benchmarks.convergence.causes import TROUBLES, Trouble, reports
from benchmarks.convergence.report import AIMS
from millrace_operator.status.causes import diagnose


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.words)
def test_each_trouble_is_told_with_its_words(trouble: Trouble) -> None:
    cause = diagnose("chat-1", trouble.status)
    assert cause is not None
    condition = {"type": "Degraded", "message": cause.message}
    assert reports({"status": {"conditions": [condition]}}, "chat-1", trouble.words)
    assert not reports({"status": {"conditions": [condition]}}, "chat-2", trouble.words)
    assert not reports({}, "chat-1", trouble.words)


def test_the_troubles_have_causes_of_their_own() -> None:
    causes = [diagnose("chat-1", trouble.status) for trouble in TROUBLES]
    assert len({cause.reason for cause in causes if cause is not None}) == len(TROUBLES) == 5


def test_the_aim_is_in_the_report() -> None:
    assert AIMS["cause_lag_p99_seconds"] == "<= 5"
