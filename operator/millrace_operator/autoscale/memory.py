"""What one decision hands to the next. Frozen; a fresh Memory is a restart, which holds at first."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from millrace_operator.autoscale.forecast import RatePoint, trend_seconds
from millrace_operator.autoscale.latency_model import FORGETTING, LatencyModel
from millrace_operator.autoscale.observation import Signals, StepMoments
from millrace_operator.autoscale.policy import Policy
from millrace_operator.autoscale.windows import Cadence

COLD_STARTS_KEPT = 20
LONGEST_COLD_START = 3600.0
"""Seconds. A pod that took longer was Ready before, and we have not seen it."""


@dataclass(frozen=True)
class Recommendation:
    """The count that was wanted at a time, before any pacing."""

    at: float
    replicas: int


@dataclass(frozen=True)
class Memory:
    """The autoscaler's state for one service."""

    desired: int | None = None
    """The last decision; after a restart what status says, else None."""
    model: LatencyModel = field(default_factory=LatencyModel)
    rates: tuple[RatePoint, ...] = ()
    recommendations: tuple[Recommendation, ...] = ()
    informed_since: float | None = None
    """Since when no signal was missing. Scale-down waits until this covers its window."""
    lowered_at: float | None = None
    settled_since: float | None = None
    """Since when the count is what it is, and every replica of it has served."""
    pods: dict[str, float] = field(default_factory=dict)
    """When each pod was first seen to report."""
    cadence: Cadence = field(default_factory=Cadence)
    learned: dict[str, float] = field(default_factory=dict)
    """When the model learned from each pod last."""
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    max_sequences: float | None = None
    kv_tokens: float | None = None
    cold_starts: dict[str, float] = field(default_factory=dict)
    """Seconds from creation until Ready of the pods that started last, as first seen."""
    infeasible: tuple[str, ...] = ()
    """Objectives that were out of an idle replica's reach at the last decision."""
    waiting: float | None = None
    """The queue at the last decision."""

    @property
    def cold_start_seconds(self) -> float | None:
        """Return what nine of ten cold starts take at most, None before the first."""
        seconds = sorted(self.cold_starts.values())
        return seconds[math.ceil(0.9 * len(seconds)) - 1] if seconds else None


def remember(memory: Memory, signals: Signals, policy: Policy, now: float) -> Memory:
    """The memory after an observation: rates, request shape and what the model learned."""
    rates = tuple(point for point in memory.rates if now - point.at <= trend_seconds(policy.windows.recent))
    rate = signals.recent_arrivals_per_second
    if rate is None:
        rate = signals.arrivals_per_second
    if rate is not None:
        rates = (*rates, RatePoint(now, rate))
    pods = {pod: memory.pods.get(pod, now) for pod in signals.pods}
    warm = _find_warm(signals, pods, policy, now)
    return replace(
        memory,
        desired=memory.desired if memory.desired is not None else signals.replicas,
        rates=rates,
        pods=pods,
        cadence=memory.cadence.observe(signals.sampled_at),
        model=_learn(memory, warm, policy, now),
        learned={pod: at for pod, at in memory.learned.items() if pod in pods}
        | {steps.pod: now for steps in warm},
        prompt_tokens=_latest(signals.prompt_tokens, memory.prompt_tokens),
        generation_tokens=_latest(signals.generation_tokens, memory.generation_tokens),
        max_sequences=_latest(signals.max_sequences, memory.max_sequences),
        kv_tokens=_latest(signals.kv_tokens, memory.kv_tokens),
        cold_starts=_keep_cold_starts(memory.cold_starts, signals.cold_starts),
    )


def _keep_cold_starts(known: dict[str, float], seen: dict[str, float]) -> dict[str, float]:
    """Keep what a pod took when it was first seen: one that is Ready anew after an hour is no cold start."""
    new = {
        pod: seconds for pod, seconds in seen.items() if pod not in known and seconds <= LONGEST_COLD_START
    }
    return dict([*known.items(), *new.items()][-COLD_STARTS_KEPT:])


def _latest(seen: float | None, known: float | None) -> float | None:
    return known if seen is None else seen


def _find_warm(signals: Signals, pods: dict[str, float], policy: Policy, now: float) -> list[StepMoments]:
    """Return the steps of every replica but those still warming up, which would poison the fit."""
    return [steps for steps in signals.steps if now - pods.get(steps.pod, now) >= policy.warm_up_seconds]


def _learn(memory: Memory, warm: Sequence[StepMoments], policy: Policy, now: float) -> LatencyModel:
    """Learn what is new in each replica's window since it was learned from last.

    However many replicas there are, the same time passes until what they told is replaced.
    """
    model = memory.model
    for steps in warm:
        since = now - memory.learned.get(steps.pod, -math.inf)
        weight = min(since / policy.windows.recent, 1.0)
        model = model.learn(steps, weight=weight, forgetting=FORGETTING * weight / len(warm))
    return model
