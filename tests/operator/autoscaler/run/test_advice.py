"""The words in which the planner gets a decision."""

from typing import ClassVar

import pytest

from millrace_operator.autoscaler.decide.policy import Objective
from millrace_operator.autoscaler.run.advice import render_advice
from millrace_operator.autoscaler.signals.observation import Bracket, Fleet, Latency, Signals


class Held:
    desired, reason, message, binding, is_held = 2, "SignalsMissing", "text", "current", True
    candidates: ClassVar[dict[str, int]] = {}


@pytest.mark.parametrize(
    ("seconds", "num_samples", "expected"), [(0.4, 100, True), (0.6, 100, False), (0.6, 5, None)]
)
def test_objectives_are_known_only_from_enough_requests(
    *, seconds: float, num_samples: float, expected: bool | None
) -> None:
    latency = Latency(Objective("TimeToFirstToken", 95, 0.5), seconds, num_samples)
    advice = render_advice(Held, Signals(Fleet(), latencies=(latency,)), {})  # type: ignore[arg-type]
    assert advice.are_objectives_met is expected
    assert ("P95 TimeToFirstToken" in advice.objectives_message) == (expected is not None)


def test_an_objective_that_its_histogram_cannot_judge_is_named_with_what_to_choose() -> None:
    kept = Latency(Objective("TimePerOutputToken", 95, 0.1), 0.05, 100)
    bracket = Bracket(0.25, 0.5, 0.2, 0.97)
    doubtful = Latency(Objective("TimeToFirstToken", 95, 0.35), 0.49, 100, bracket)
    advice = render_advice(Held, Signals(Fleet(), latencies=(kept, doubtful)), {})  # type: ignore[arg-type]
    assert advice.are_objectives_met
    assert advice.objectives_message == (
        "kept at present: P95 TimePerOutputToken; not known: P95 TimeToFirstToken "
        "(between the bounds 0.25 s and 0.5 s: choose one of them as its target)"
    )
    alone = render_advice(Held, Signals(Fleet(), latencies=(doubtful,)), {})  # type: ignore[arg-type]
    assert alone.are_objectives_met is None
    assert alone.objectives_message.startswith("too little was measured to judge any; not known: P95 TimeTo")


def test_an_objective_that_nobody_measures_is_named_beside_those_that_are_kept() -> None:
    kept = Latency(Objective("TimePerOutputToken", 95, 0.1), 0.05, 100)
    why = {"P95 QueueTime": "replicas answered requests, and do not export it"}
    signals = Signals(Fleet(), latencies=(kept,), unanswered=frozenset(why), rejected=why)
    advice = render_advice(Held, signals, {})  # type: ignore[arg-type]
    assert advice.objectives_message == (
        "kept at present: P95 TimePerOutputToken; not known: P95 QueueTime "
        "(replicas answered requests, and do not export it)"
    )
