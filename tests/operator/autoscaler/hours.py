"""Hours of a service whose every decision is followed at once, and its signals."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from millrace_operator.autoscaler.capacity.latency_model import LatencyModel
from millrace_operator.autoscaler.decide.decide import decide
from millrace_operator.autoscaler.decide.decision import Decision
from millrace_operator.autoscaler.decide.forecast import ForecastError, Outlook
from millrace_operator.autoscaler.decide.memory import Memory
from millrace_operator.autoscaler.decide.policy import Objective, Policy
from millrace_operator.autoscaler.signals.observation import Bracket, Latency, Signals
from tests.operator.autoscaler.made_signals import make_fleet

TTFT = Objective("TimeToFirstToken", 95, 1.0)
POLICY = Policy(1, 10, (TTFT,))
FITTED = LatencyModel(num_samples=50.0, relative_error=0.02, coefficients=(0.02, 0.002, 2e-6))
HOUR = 3600.0
TICK_SECONDS = Policy.tick_seconds
LONGER_TICK_SECONDS = 5.0
"""Ticks of an operator that decides less often: so an hour is simulated in half the time."""
LONGER_TICKS = pytest.mark.parametrize(
    "tick_seconds", [LONGER_TICK_SECONDS, pytest.param(TICK_SECONDS, marks=pytest.mark.long)]
)


def see(replicas: int, rate: float, **other: object) -> Signals:
    fleet = make_fleet(replicas)
    known = Signals(
        fleet, fleet.ready, rate, waiting=0.0, running=1.0, prompt_tokens=40, generation_tokens=40
    )
    return replace(known, **other)  # type: ignore[arg-type]


def remembered(**other: object) -> Memory:
    calm = Outlook(error=ForecastError(quantile=0.5))
    return replace(Memory(model=FITTED, informed_since=-1000.0, outlook=calm), **other)  # type: ignore[arg-type]


def measure(share: float, number: float = 600.0, objective: Objective = TTFT) -> tuple[Latency, ...]:
    """So many requests, of which this share was in time."""
    late = objective.target_seconds * (3.0 if share < objective.percentile / 100 else 0.5)
    target = objective.target_seconds
    return (Latency(objective, late, number, Bracket(target, target, share, share)),)


def play(  # noqa: PLR0917
    see_at: Callable[[float, int], Signals],
    count: int,
    seconds: float,
    policy: Policy = POLICY,
    memory: Memory | None = None,
    begin: float = 0.0,
    tick_seconds: float = TICK_SECONDS,
) -> tuple[list[int], Decision, Memory]:
    """Decide again and again; each decision is followed at once."""
    policy = replace(policy, tick_seconds=tick_seconds)
    memory, counts, decision = memory or remembered(), [count], None
    for tick in range(int(seconds / tick_seconds)):
        now = begin + tick_seconds * tick
        decision, memory = decide(policy, see_at(now, counts[-1]), memory, now)
        counts.append(decision.desired)
    assert decision is not None
    return counts, decision, memory
