"""Updates the memory with one more look before the decision: the model learns from the new steps. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from millrace_operator.autoscaler.capacity.latency_model import FORGETTING, LatencyModel
from millrace_operator.autoscaler.decide.attainment import Calibration
from millrace_operator.autoscaler.decide.memory import (
    COLD_STARTS_KEPT,
    KEPT_SECONDS,
    LONGEST_COLD_START,
    PASSING_PART,
    Memory,
)
from millrace_operator.autoscaler.decide.policy import Objective, Policy
from millrace_operator.autoscaler.signals.lengths import AnswerLengths
from millrace_operator.autoscaler.signals.observation import Fleet, Signals, StepMoments
from millrace_operator.autoscaler.signals.savings import (
    REQUESTS_AVERAGED,
    Drafts,
    PrefixHits,
    read_drafts,
    read_hits,
)

GRACE_SECONDS = 600.0
"""An objective that another revision kept, or that was kept with less room, is in reach so long."""


def remember(memory: Memory, signals: Signals, policy: Policy, now: float) -> Memory:
    """Return the memory after an observation: rates, requests' shape, and the model with the new steps."""
    fleet = signals.fleet
    ready_since = {pod: memory.ready_since.get(pod, now) for pod in fleet.ready}
    memory = _follow_revision(memory, fleet, now)
    if not fleet.ready:
        memory = replace(memory, prefix_hits=_doubt_hits(memory))
    warm = [] if fleet.is_mixed else _find_warm_steps(signals, ready_since, policy, now)
    new_steps = [steps for steps in warm if memory.cadence.is_new(steps.pod, signals.sampled_at)]
    has_fallen = fleet.current < (memory.count or 0)
    passed, full_since = _measure_passed(memory, policy, now), _find_full_since(memory, fleet, now)
    new_requests = passed * (signals.arrival_rate or 0.0)
    new = 1 - math.exp(-new_requests / REQUESTS_AVERAGED)
    generated = _average(memory.generation_tokens, signals.generation_tokens, new)
    prompt = _average(memory.prompt_tokens, signals.prompt_tokens, new)
    return replace(
        memory,
        count=fleet.current,
        doubted_since=_find_doubted_since(memory, signals, now),
        looked_at=now,
        passed=passed,
        kept=_note_kept(memory, signals, policy, full_since, now),
        max_replicas=policy.max_replicas,
        spent=memory.spent if _is_alike(memory.count, fleet.current) else {},
        lowered_at=now if has_fallen else memory.lowered_at,
        fell_at=now if has_fallen and fleet.current == memory.asked else memory.fell_at,
        ready_since=ready_since,
        dark_at=now if memory.has_served and fleet.current and not fleet.ready else memory.dark_at,
        has_served=memory.has_served or bool(fleet.ready),
        unready_since=_note_unready(memory, fleet, policy, now),
        started=(memory.started | fleet.ready) & fleet.revisions.keys(),
        unplaced=frozenset(fleet.unplaced),
        full_since=full_since,
        cadence=memory.cadence.observe(signals.sampled_at),
        model=_learn_steps(
            _start_model(memory.model, signals), memory.learned, new_steps, policy, now, num_warm=len(warm)
        ),
        learned={pod: at for pod, at in memory.learned.items() if pod in fleet.revisions}
        | {steps.pod: now for steps in new_steps},
        prompt_tokens=prompt,
        generation_tokens=generated,
        answer_lengths=_add_lengths(
            memory.answer_lengths, None if fleet.is_mixed else signals.answer_lengths, new_requests, generated
        ),
        context_tokens=_average(memory.context_tokens, _find_mean_context(warm), new),
        prefix_hits=_add_hits(memory.prefix_hits, read_hits(warm, prompt), new_requests),
        drafts=_add_drafts(memory.drafts, read_drafts(warm), new),
        max_sequences=_latest(signals.max_sequences, memory.max_sequences),
        kv_tokens=_latest(signals.kv_tokens, memory.kv_tokens),
        in_flight=_average_in_flight(memory.in_flight, signals, passed / policy.windows.rate),
        cold_starts=_note_cold_starts(memory, fleet),
    )


def _doubt_hits(memory: Memory) -> PrefixHits | None:
    """Return the hits of caches that are gone: the share is known, and no request proves it any more."""
    return memory.prefix_hits and replace(memory.prefix_hits, requests=0.0)


def _note_unready(memory: Memory, fleet: Fleet, policy: Policy, now: float) -> dict[str, float]:
    """Return since when pods are not Ready. A pod that is Ready for less than a cold start only crashes."""
    least = memory.cold_start_seconds or policy.cold_start_seconds
    kept = {
        pod: at
        for pod, at in memory.unready_since.items()
        if pod in fleet.revisions and now - memory.ready_since.get(pod, now) < least
    }
    return dict.fromkeys(fleet.revisions.keys() - fleet.ready, now) | kept


def _measure_passed(memory: Memory, policy: Policy, now: float) -> float:
    """Return the seconds that this look stands for. A gap is unknown, so it counts as one window at most."""
    if memory.looked_at is None:
        return policy.tick_seconds
    return min(max(now - memory.looked_at, 0.0), policy.windows.recent)


def _is_alike(before: int | None, count: int) -> bool:
    """Whether the count has hardly changed: a large service changes all the time while its load rises."""
    return before is None or abs(count - before) <= PASSING_PART * before


def _note_kept(
    memory: Memory, signals: Signals, policy: Policy, full_since: float | None, now: float
) -> dict[Objective, float]:
    """Return when each objective was last kept, with this look.

    If more replicas are possible than before, objectives that were kept once are in reach again for a while.
    """
    has_room = memory.full_since is not None and full_since is None
    kept = memory.kept
    if has_room or policy.max_replicas > (memory.max_replicas or policy.max_replicas):
        kept = {each: max(at, _find_grace_start(now)) for each, at in kept.items()}
    return kept | {each.objective: now for each in signals.latencies if each.is_known and not each.is_missed}


def _find_grace_start(now: float) -> float:
    """Return the time of being kept that puts an objective in reach for some minutes more."""
    return now - KEPT_SECONDS + GRACE_SECONDS


def _find_doubted_since(memory: Memory, signals: Signals, now: float) -> dict[str, float]:
    doubted = {
        latency.objective.name
        for latency in signals.latencies
        if latency.may_be_missed and not latency.is_missed
    }
    if signals.unanswered:
        doubted |= memory.doubted_since.keys() - {latency.objective.name for latency in signals.latencies}
    return {name: memory.doubted_since.get(name, now) for name in doubted}


def _find_full_since(memory: Memory, fleet: Fleet, now: float) -> float | None:
    """Return since when the cluster has had no room for any of the waiting pods."""
    if not fleet.unplaced:
        return None
    if memory.unplaced & fleet.revisions.keys() - fleet.unplaced.keys():
        return now  # one pod got a node, and others may
    if memory.full_since is None:
        return now - max(pod.seconds for pod in fleet.unplaced.values())
    return memory.full_since


def _note_cold_starts(memory: Memory, fleet: Fleet) -> tuple[float, ...]:
    """Return the cold starts with those of pods that are Ready for the first time. A restart is none."""
    new = [
        seconds
        for pod, seconds in fleet.cold_starts.items()
        if pod not in memory.started and seconds <= LONGEST_COLD_START
    ]
    return (*memory.cold_starts, *new)[-COLD_STARTS_KEPT:]


def _follow_revision(memory: Memory, fleet: Fleet, now: float) -> Memory:
    """Return the memory with a distrusted model if another revision serves.

    A model that has hardly learned from requests is dropped.
    """
    serving = {fleet.revisions[pod] for pod in fleet.ready}
    if len(serving) != 1 or memory.revision in serving:
        return memory
    [revision] = serving
    model = memory.model
    if memory.revision is not None:
        model = LatencyModel() if model.is_untaught else model.distrust()
        # These counts, objectives and attempts were of other replicas. Half of the correction may be, too.
        memory = replace(
            memory,
            calibration=Calibration(),
            too_few=None,
            kept={each: min(at, _find_grace_start(now)) for each, at in memory.kept.items()},
            attempts={},
            spent={},
            correction=math.sqrt(memory.correction),
            prefix_hits=_doubt_hits(memory),
            drafts=None,
        )
    return replace(memory, revision=revision, model=model)


def _average(known: float | None, seen: float | None, new: float) -> float | None:
    """Return the average after one more value, whose part `new` is new."""
    if known is None or seen is None:
        return _latest(seen, known)
    return known + new * (seen - known)


def _average_in_flight(known: float | None, signals: Signals, passed: float) -> float | None:
    """Return the average after one more look. With silent replicas it never falls: their share is unknown."""
    running, waiting = signals.running, signals.waiting
    seen = None if running is None or waiting is None else running + waiting
    if seen is not None and not 0 <= seen < math.inf:
        return known
    found = _average(known, seen, 1 - math.exp(-passed))
    return max(known, found) if signals.silent and known is not None and found is not None else found


def _add_lengths(
    known: AnswerLengths | None, seen: AnswerLengths | None, new_requests: float, mean: float | None
) -> AnswerLengths | None:
    """Return the average after one more look. As many answers are new as there are new requests.

    If the mean of the answers has changed a lot, the earlier ones are forgotten at once.
    """
    if known is None or seen is None:
        return known if seen is None else seen
    if mean is not None and seen.is_known and not known.is_of(mean):
        return seen
    return known.add(seen, min(new_requests, seen.answers))


def _add_hits(known: PrefixHits | None, seen: PrefixHits | None, new_requests: float) -> PrefixHits | None:
    if known is None or seen is None:
        return known if seen is None else seen
    return known.add(seen, min(new_requests, seen.requests))


def _add_drafts(known: Drafts | None, seen: Drafts | None, new: float) -> Drafts | None:
    if known is None or seen is None:
        return known if seen is None else seen
    return known.add(seen, new)


def _latest(seen: float | None, known: float | None) -> float | None:
    return known if seen is None else seen


def _find_warm_steps(
    signals: Signals, ready_since: dict[str, float], policy: Policy, now: float
) -> list[StepMoments]:
    """Return the steps of warm replicas: a window with a replica's first seconds would spoil the fit."""
    least = policy.warm_up_seconds + policy.windows.recent
    return [steps for steps in signals.steps if now - ready_since.get(steps.pod, now) >= least]


def _find_mean_context(steps: Sequence[StepMoments]) -> float | None:
    """Return the mean number of keys that a sequence in a batch reads; None without sequences."""
    sequences = sum(step.sequences * step.num_steps for step in steps)
    if sequences <= 0:
        return None
    return sum(step.context_tokens * step.num_steps for step in steps) / sequences


def _start_model(model: LatencyModel, signals: Signals) -> LatencyModel:
    """Return the model of the steps that replicas tried, until it has learned from requests' steps.

    Of several replicas the middle one counts: a slow one may have started on a busy node.
    """
    if model.num_samples > model.num_tried or signals.fleet.is_mixed or not signals.trial_steps:
        return model
    tried = sorted(signals.trial_steps.values(), key=lambda steps: sum(step.seconds for step in steps))
    begun = LatencyModel.begin(tried[len(tried) // 2])
    return begun if begun.num_samples else model


def _learn_steps(
    model: LatencyModel,
    learned: Mapping[str, float],
    new_steps: Sequence[StepMoments],
    policy: Policy,
    now: float,
    *,
    num_warm: int,
) -> LatencyModel:
    """Return the model after the new part of each replica's window.

    Old knowledge is replaced in the same time with few and with many replicas.
    """
    for steps in new_steps:
        since = now - learned.get(steps.pod, -math.inf)
        weight = min(since / policy.windows.recent, 1.0)
        model = model.learn(steps, weight=weight, forgetting=FORGETTING * weight / num_warm)
    return model
