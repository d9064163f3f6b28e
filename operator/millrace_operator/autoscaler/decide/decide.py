"""The decision: from policy, signals and memory to a replica count and its reason. Pure."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from millrace_operator.autoscaler.capacity.capacity import (
    Capacity,
    Demand,
    find_capacity,
    find_infeasible,
    relax_targets,
)
from millrace_operator.autoscaler.capacity.latency_model import MOST_TRIAL_DOUBT
from millrace_operator.autoscaler.capacity.replica import Replica
from millrace_operator.autoscaler.decide.attainment import predict
from millrace_operator.autoscaler.decide.decision import Decision, Reason, describe_decision
from millrace_operator.autoscaler.decide.feedback import (
    FEEDBACK,
    TOO_FEW,
    ask_feedback,
    correct,
    is_step,
    is_step_under_way,
    learn_from_step,
    remember_floor,
    spend_budgets,
    watch_attempts,
)
from millrace_operator.autoscaler.decide.forecast import Arrivals
from millrace_operator.autoscaler.decide.memory import KEPT_SECONDS, PASSING_PART, Memory, Recommendation
from millrace_operator.autoscaler.decide.memory_update import remember
from millrace_operator.autoscaler.decide.pacing import Pace, pace
from millrace_operator.autoscaler.decide.policy import Policy
from millrace_operator.autoscaler.decide.situation import FLAP_SECONDS, Estimate, Situation
from millrace_operator.autoscaler.signals.observation import Signals
from millrace_operator.autoscaler.signals.savings import NO_DRAFTS

LONGEST_STAY = 1800.0
"""Seconds: a request counts as staying in a replica for at most so long."""
REASONS_TO_HOLD = frozenset({Reason.SIGNALS_MISSING, Reason.STARTING, Reason.LEARNING})
KV_USAGE_LIMIT = 0.85
"""The mean part of the KV caches in use, while there is no model to plan with."""


def decide(policy: Policy, signals: Signals, memory: Memory, now: float) -> tuple[Decision, Memory]:
    """Return the replica count for this tick, and the memory for the next.

    `now` is in seconds of any steady clock. Missing signals hold or raise the count, and never lower it.
    """
    situation = _gather(policy, signals, remember(memory, signals, policy, now), now)
    candidates = _gather_candidates(situation)
    largest = max(candidates, key=lambda name: candidates[name], default="current")
    wanted = candidates.get(largest, situation.current)
    paced = pace(situation, wanted)
    feasible = situation.estimate.list_feasible(policy.objectives)
    reason = _find_reason(situation, paced, wanted)
    binding = paced.limits[-1] if paced.limits else largest
    decision = Decision(
        desired=paced.replicas,
        reason=reason,
        message=describe_decision(situation, reason, candidates, binding, paced.replicas),
        binding=binding,
        candidates=candidates,
        is_held=paced.replicas == situation.current and reason in REASONS_TO_HOLD,
        estimate=situation.estimate,
        limits=paced.limits,
        prediction_error=situation.memory.calibration.find_error(feasible, now),
    )
    return decision, _update_memory(situation, paced, wanted, candidates)


def _gather(policy: Policy, signals: Signals, memory: Memory, now: float) -> Situation:
    replica = _read_replica(policy, memory)
    memory = _look_ahead(policy, signals, memory, replica, now)
    estimate = _estimate(policy, signals, memory, replica, now)
    situation = Situation(policy, signals, memory, estimate, now)
    situation = replace(situation, memory=_note_knowledge(situation))
    situation = replace(situation, memory=spend_budgets(situation))
    return replace(situation, memory=_calibrate(situation))


def _estimate(
    policy: Policy, signals: Signals, memory: Memory, replica: Replica | None, now: float
) -> Estimate:
    """Return what the model says about the present load; without a load there is no plan."""
    forecast = memory.outlook.forecast if signals.arrival_rate is not None else None
    load, demand = forecast or (None, None)
    missed = tuple(latency.objective.name for latency in signals.latencies if latency.is_missed)
    if replica is None:
        return Estimate(
            rate=load,
            demand=demand,
            replica=None,
            capacity=None,
            infeasible=memory.infeasible,
            violated=missed,
        )
    reachable = [each for each in policy.objectives if now - memory.kept.get(each, -math.inf) < KEPT_SECONDS]
    others = [each for each in policy.objectives if each not in reachable]
    infeasible = find_infeasible(replica, others, memory.infeasible)
    planned = relax_targets(replica, [each for each in policy.objectives if each.name not in infeasible])
    capacity = find_capacity(replica, planned, max(signals.fleet.current, 1))
    if not replica.model.is_proven and (infeasible or _is_doubtful(replica, capacity)):
        # A model of tried steps alone makes no objective infeasible: feedback could not overrule it then.
        return Estimate(rate=load, demand=demand, replica=None, capacity=None, infeasible=(), violated=missed)
    return Estimate(
        rate=load, demand=demand, replica=replica, capacity=capacity, infeasible=infeasible, violated=missed
    )


def _is_doubtful(replica: Replica, capacity: Capacity) -> bool:
    """Whether a step of the planned batch is too unlike the known ones."""
    batch = max(replica.count_sequences(capacity.rate), 1.0)
    return replica.standard_error(batch) > MOST_TRIAL_DOUBT


def _calibrate(situation: Situation) -> Memory:
    """Return the memory with the predictions for the present replicas compared with the measurements."""
    memory, estimate, policy = situation.memory, situation.estimate, situation.policy
    window = policy.windows.latency
    is_due = (
        situation.is_settled and situation.is_informed and memory.calibration.is_due(situation.now, window)
    )
    if not is_due or not situation.has_proven_model or estimate.replica is None or estimate.rate is None:
        return memory
    load = memory.correction * estimate.rate
    serving = len(situation.signals.fleet.ready)
    predicted = predict(estimate.replica, policy.objectives, load, max(serving, 1))
    judged = memory.calibration.judge(situation.now, predicted, situation.present_latencies, window)
    return replace(memory, calibration=judged)


def _look_ahead(
    policy: Policy, signals: Signals, memory: Memory, replica: Replica | None, now: float
) -> Memory:
    """Return the memory with the outlook after this look.

    While no replica of a service that has served is Ready, clients retry: their arrivals are no load to learn
    from. Rates look back, so the same holds for a window afterwards.
    """
    if now - memory.dark_at < policy.windows.rate:
        return replace(memory, outlook=memory.outlook.without_pending())
    horizon = (memory.cold_start_seconds or policy.cold_start_seconds) + policy.tick_seconds
    arrivals = Arrivals(signals.arrivals_per_second, signals.recent_arrivals_per_second)
    stay = 0.0
    if replica and memory.outlook.load is not None:
        share = memory.outlook.load / max(len(signals.fleet.ready), 1)
        stay = min(replica.stay_seconds(share), LONGEST_STAY)
    is_whole = not memory.find_silent(signals, policy.windows.max_age, now)
    outlook = memory.outlook if is_whole else memory.outlook.without_pending()
    outlook = outlook.see(now, arrivals, policy.windows, stay, horizon, percentile=policy.highest_percentile)
    if not is_whole:
        outlook = replace(outlook.without_pending(), dispersion=memory.outlook.dispersion)
    return replace(memory, outlook=outlook)


def _note_knowledge(situation: Situation) -> Memory:
    """Return the memory without the recommendations before a gap: they say nothing about the load since.

    A gap without any answer that is shorter than the rates' window hides nothing. If some replicas were not
    seen, some of the load was not seen either.
    """
    memory, now = situation.memory, situation.now
    if situation.is_informed:
        since = now if memory.informed_since is None else memory.informed_since
        return replace(memory, informed_since=since, uninformed_since=None)
    since = now if memory.uninformed_since is None else memory.uninformed_since
    is_whole = not situation.silent or situation.silent == situation.signals.fleet.ready
    is_short = is_whole and now - since < situation.policy.windows.rate
    if memory.informed_since is not None and is_short:
        return replace(memory, uninformed_since=since)
    return replace(memory, informed_since=None, uninformed_since=since, recommendations=())


def _read_replica(policy: Policy, memory: Memory) -> Replica | None:
    if not memory.model.is_fitted or memory.prompt_tokens is None or not memory.generation_tokens:
        return None
    lengths = memory.answer_lengths
    return Replica(
        model=memory.model,
        prompt_tokens=memory.prompt_tokens,
        generation_tokens=memory.generation_tokens,
        context_tokens=memory.context_tokens or memory.prompt_tokens + memory.generation_tokens / 2,
        max_sequences=memory.max_sequences if policy.max_sequences is None else policy.max_sequences,
        kv_tokens=memory.kv_tokens,
        answer_lengths=lengths if lengths and lengths.is_known else None,
        cached_share=memory.prefix_hits.certain_share if memory.prefix_hits else 0.0,
        drafts=memory.drafts or NO_DRAFTS,
    )


def _gather_candidates(situation: Situation) -> dict[str, int]:
    """Return every count that a signal asks for; the largest wins."""
    signals = situation.signals
    found = dict(_list_model_candidates(situation)) if situation.estimate.replica else {}
    if situation.is_idle and not situation.estimate.replica:
        found["idle"] = situation.policy.min_replicas
    if not situation.is_idle and not situation.has_proven_model:
        found["learning"] = situation.current
        if signals.kv_usage is not None:
            found["kvCache"] = math.ceil(signals.kv_usage * len(signals.fleet.ready) / KV_USAGE_LIMIT)
    for name, count in ((FEEDBACK, ask_feedback(situation)), (TOO_FEW, remember_floor(situation))):
        if count is not None:
            found[name] = count
    return found


def _list_model_candidates(situation: Situation) -> Iterator[tuple[str, int]]:
    """Yield the counts for the forecast load, for the requests in flight, and for the load with the queue."""
    estimate, waiting = situation.estimate, situation.signals.waiting
    if situation.demand and (count := situation.count_for(situation.demand)) is not None:
        yield "forecast", count
    if (count := _count_for_in_flight(situation)) is not None:
        yield "inFlight", count
    if waiting:
        drain_seconds = max(situation.policy.drain_seconds, situation.memory.outlook.stay_seconds)
        coming = estimate.demand.expected if estimate.demand else 0.0
        drain = Demand(coming + waiting / drain_seconds).times(situation.memory.correction)
        if (count := situation.count_for(drain)) is not None:
            yield "queue", count


def _count_for_in_flight(situation: Situation) -> int | None:
    """Return how many replicas hold the sequences in flight, each with the largest batch of the plan.

    By Little's law that is no more than the load asks for, unless more requests came than were counted, or
    answers have become longer: their lengths are known only when they have ended.
    """
    replica, capacity = situation.estimate.replica, situation.estimate.capacity
    in_flight = situation.in_flight
    if replica is None or capacity is None or not in_flight:
        return None
    batch = max(min(replica.count_sequences(capacity.rate), replica.room), 1.0)
    return math.ceil(situation.memory.correction * in_flight / batch)


def _find_reason(situation: Situation, paced: Pace, wanted: int) -> Reason:
    if paced.replicas != situation.current:
        return Reason.SCALING_UP if paced.replicas > situation.current else Reason.SCALING_DOWN
    if not situation.is_informed:
        return Reason.STARTING if situation.awaits_first_sample else Reason.SIGNALS_MISSING
    if situation.estimate.infeasible:
        return Reason.SLO_INFEASIBLE
    if situation.estimate.replica is None and not situation.is_idle:
        return Reason.LEARNING
    return _find_resting_reason(situation, paced, wanted)


def _find_resting_reason(situation: Situation, paced: Pace, wanted: int) -> Reason:
    if "capacity" in paced.limits:
        return Reason.AT_CAPACITY
    if "maxReplicas" in paced.limits:
        return Reason.AT_MAXIMUM
    if situation.bound(wanted) < situation.current:
        return Reason.STABILISING
    return Reason.AT_MINIMUM if paced.replicas == situation.policy.min_replicas else Reason.STEADY


def _update_memory(situation: Situation, paced: Pace, wanted: int, candidates: Mapping[str, int]) -> Memory:
    memory, now, desired = watch_attempts(situation), situation.now, paced.replicas
    recommendations = memory.recommendations
    if situation.is_informed:
        window, latest = situation.down_window_seconds, Recommendation(now, situation.bound(wanted))
        kept = [
            past for past in recommendations if now - past.at <= window and past.replicas > latest.replicas
        ]
        recommendations = (*kept, latest)
    memory = replace(
        memory,
        recommendations=recommendations,
        asked=None if {"maxReplicas", "capacity"} & {*paced.limits} else desired,
        flaps=_note_flap(situation, desired),
        settled_since=_find_settled_since(situation, desired),
        correction=correct(situation, candidates),
        infeasible=situation.estimate.infeasible,
        waiting=None if situation.signals.silent else situation.signals.waiting,
    )
    return learn_from_step(situation, memory, desired) if is_step(situation, desired) else memory


def _note_flap(situation: Situation, desired: int) -> tuple[float, ...]:
    """Return the times of the flaps, with this moment if it is one. Each fall makes one flap at most."""
    flaps, fell = situation.flaps, situation.memory.fell_at
    if desired <= situation.current or fell is None or situation.now - fell > FLAP_SECONDS:
        return flaps
    return flaps if flaps and flaps[-1] >= fell else (*flaps, situation.now)


def _find_settled_since(situation: Situation, desired: int) -> float | None:
    most = PASSING_PART * situation.current
    has_changed = abs(desired - situation.current) > most or situation.num_gone > most
    if has_changed or is_step_under_way(situation):
        return None
    since = situation.memory.settled_since
    return situation.now if since is None else since
