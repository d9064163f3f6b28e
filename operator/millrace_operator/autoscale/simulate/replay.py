"""Runs `decide` against a simulated fleet and keeps what happened."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from millrace_operator.autoscale.decide import decide
from millrace_operator.autoscale.decision import Decision
from millrace_operator.autoscale.memory import Memory
from millrace_operator.autoscale.observation import Signals
from millrace_operator.autoscale.policy import Policy
from millrace_operator.autoscale.simulate.fleet import Fleet


class Moment(NamedTuple):
    """One tick of a replay."""

    at: float
    decision: Decision
    time_to_first_token: float | None
    """P95 over the last 10 s, as clients saw it."""


def black_out(signals: Signals) -> Signals:
    """What is left of an observation when Prometheus is gone."""
    return Signals(
        signals.replicas, signals.ready_replicas, rejected={"arrivals": "Prometheus did not answer"}
    )


def replay(
    policy: Policy,
    fleet: Fleet,
    rate_at: Callable[[float], float],
    seconds: float,
    *,
    is_blind: Callable[[float], bool] = lambda _: False,
    memory: Memory | None = None,
) -> list[Moment]:
    """Tick by tick: load, observe (unless blind), decide, scale."""
    state = memory or Memory()
    moments = []
    while fleet.now < seconds:
        fleet.advance(policy.tick_seconds, rate_at(fleet.now))
        signals = fleet.observe(policy.objectives)
        if is_blind(fleet.now):
            signals = black_out(signals)
        decision, state = decide(policy, replace(signals), state, fleet.now)
        fleet.scale(decision.desired)
        moments.append(Moment(fleet.now, decision, fleet.time_to_first_token(95, 10.0)))
    return moments
