"""The decision: from policy, signals and memory to a replica count and the reason for it. Pure."""

import math
from dataclasses import replace

from millrace_operator.autoscale.capacity import Capacity, Replica, find_capacity, limit_sequences
from millrace_operator.autoscale.decision import Decision, Reason
from millrace_operator.autoscale.explain import explain_terms
from millrace_operator.autoscale.forecast import forecast_rate
from millrace_operator.autoscale.memory import Memory, Recommendation, remember
from millrace_operator.autoscale.observation import Signals
from millrace_operator.autoscale.pacing import Pace, pace
from millrace_operator.autoscale.policy import Policy
from millrace_operator.autoscale.situation import Estimate, Situation

ROUNDING = 1e-6


def decide(policy: Policy, signals: Signals, memory: Memory, now: float) -> tuple[Decision, Memory]:
    """The replica count for this tick, and the memory for the next.

    `now` is in seconds of any steady clock. Missing signals hold or raise, never lower.
    """
    tick = _gather(policy, signals, remember(memory, signals, policy, now), now)
    candidates = _candidates(tick)
    largest = max(candidates, key=lambda name: candidates[name], default="current")
    wanted = candidates.get(largest, tick.current)
    paced = pace(tick, wanted)
    reason = _find_reason(tick, paced, wanted)
    binding = paced.limits[-1] if paced.limits else largest
    decision = Decision(
        desired=paced.replicas,
        reason=reason,
        message=explain_terms(tick, reason, candidates, binding, paced.replicas),
        binding=binding,
        candidates=candidates,
        is_held=paced.replicas == tick.current and reason in (Reason.SIGNALS_MISSING, Reason.LEARNING),
        estimate=tick.estimate,
        limits=paced.limits,
    )
    return decision, _record(tick, paced.replicas, wanted)


def _gather(policy: Policy, signals: Signals, memory: Memory, now: float) -> Situation:
    rate = signals.arrival_rate
    horizon = (memory.cold_start_seconds or policy.cold_start_seconds) + policy.tick_seconds
    forecast = None if rate is None else forecast_rate(memory.rates, rate, horizon, policy.windows.recent)
    capacity = _find_capacity(policy, memory)
    per_replica = capacity.rate * policy.target_utilisation if capacity else None
    tick = Situation(
        policy, signals, memory, Estimate(rate, forecast, capacity, per_replica, _violations(signals)), now
    )
    return replace(tick, memory=_note_knowledge(tick))


def _note_knowledge(tick: Situation) -> Memory:
    """Return the memory without what was recommended before a gap: it says nothing of the load since."""
    memory = tick.memory
    if not tick.is_informed:
        return replace(memory, informed_since=None, recommendations=())
    return replace(
        memory, informed_since=tick.now if memory.informed_since is None else memory.informed_since
    )


def _find_capacity(policy: Policy, memory: Memory) -> Capacity | None:
    if not memory.model.is_fitted or memory.prompt_tokens is None or not memory.generation_tokens:
        return None
    limit = limit_sequences(
        memory.max_sequences if policy.max_sequences is None else policy.max_sequences,
        None if memory.kv_tokens is None else memory.kv_tokens * policy.kv_usage_limit,
        memory.prompt_tokens + memory.generation_tokens / 2,
    )
    shape = Replica(memory.model, memory.prompt_tokens, memory.generation_tokens, limit)
    return find_capacity(shape, policy.objectives, memory.infeasible)


def _violations(signals: Signals) -> tuple[str, ...]:
    return tuple(latency.objective.name for latency in signals.latencies if latency.is_missed)


def _candidates(tick: Situation) -> dict[str, int]:
    """Every count that some signal asks for; the largest wins."""
    signals, estimate = tick.signals, tick.estimate
    found: dict[str, int] = {}
    if estimate.per_replica:
        found |= _from_model(tick, estimate.per_replica)
    elif tick.is_idle:
        found["idle"] = tick.policy.min_replicas
    else:
        found["learning"] = tick.current
    if signals.kv_usage is not None and signals.ready_replicas:
        found["kvCache"] = _round_up(signals.kv_usage * signals.ready_replicas / tick.policy.kv_usage_limit)
    feedback = _feedback(tick)
    if feedback is not None:
        found["feedback"] = feedback
    return found


def _from_model(tick: Situation, per_replica: float) -> dict[str, int]:
    """The forecast load, and the present load with the queue worked off in time."""
    estimate, waiting = tick.estimate, tick.signals.waiting
    found = {}
    if estimate.forecast is not None:
        found["forecast"] = _round_up(estimate.forecast / per_replica)
    if waiting:
        drain = (estimate.rate or 0.0) + waiting / tick.policy.drain_seconds
        found["queue"] = _round_up(drain / per_replica)
    return found


def _feedback(tick: Situation) -> int | None:
    """Up when busy replicas miss an objective or their queue grows, whatever the model says.

    Only once every replica asked for serves: those still starting may be the cure. Where nobody waits, only
    once the percentile speaks of the present replicas alone.
    """
    signals = tick.signals
    if signals.ready_replicas < tick.current or not signals.running:
        return None
    is_growing = (signals.waiting or 0) > max(tick.memory.waiting or 0, signals.ready_replicas)
    is_missed = bool(tick.missed) and (bool(signals.waiting) or tick.is_settled)
    if not is_growing and not is_missed:
        return None
    return tick.current + 1 if tick.estimate.capacity else math.ceil(tick.current * 1.5)


def _round_up(count: float) -> int:
    return math.ceil(count - ROUNDING)


def _find_reason(tick: Situation, paced: Pace, wanted: int) -> Reason:
    if paced.replicas != tick.current:
        return Reason.SCALING_UP if paced.replicas > tick.current else Reason.SCALING_DOWN
    if not tick.is_informed:
        return Reason.SIGNALS_MISSING
    if tick.estimate.capacity and tick.estimate.capacity.infeasible:
        return Reason.SLO_INFEASIBLE
    if tick.estimate.per_replica is None and not tick.is_idle:
        return Reason.LEARNING
    return _find_resting_reason(tick, paced, wanted)


def _find_resting_reason(tick: Situation, paced: Pace, wanted: int) -> Reason:
    if "maxReplicas" in paced.limits:
        return Reason.AT_MAXIMUM
    if tick.bound(wanted) < tick.current:
        return Reason.STABILISING
    return Reason.AT_MINIMUM if paced.replicas == tick.policy.min_replicas else Reason.STEADY


def _record(tick: Situation, desired: int, wanted: int) -> Memory:
    memory, now = tick.memory, tick.now
    recommendations = memory.recommendations
    if memory.informed_since is not None:
        window = tick.policy.scale_down_window_seconds
        kept = [past for past in recommendations if now - past.at <= window]
        recommendations = (*kept, Recommendation(now, tick.bound(wanted)))
    return replace(
        memory,
        desired=desired,
        recommendations=recommendations,
        lowered_at=now if desired < tick.current else memory.lowered_at,
        settled_since=_find_settled_since(tick, desired),
        infeasible=tick.estimate.capacity.infeasible if tick.estimate.capacity else memory.infeasible,
        waiting=tick.signals.waiting,
    )


def _find_settled_since(tick: Situation, desired: int) -> float | None:
    if desired != tick.current or tick.signals.ready_replicas < desired:
        return None
    since = tick.memory.settled_since
    return tick.now if since is None else since
