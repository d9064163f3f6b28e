"""What one more look adds to the memory before anything is decided, and which steps teach the model. Pure."""

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

REQUESTS_AVERAGED = 200.0
"""Over which lengths are averaged. Those of a minute say little where few requests come."""
GRACE_SECONDS = 600.0
"""For so long it is in reach where it was kept by another revision, or before more replicas might be."""


def remember(memory: Memory, signals: Signals, policy: Policy, now: float) -> Memory:
    """The memory after an observation: rates, request shape and what the model learned."""
    fleet = signals.fleet
    ready_since = {pod: memory.ready_since.get(pod, now) for pod in fleet.ready}
    memory = _follow_revision(memory, fleet, now)
    warm = [] if fleet.is_mixed else find_warm(signals, ready_since, policy, now)
    new_steps = [steps for steps in warm if memory.cadence.is_new(steps.pod, signals.sampled_at)]
    has_fallen = fleet.current < (memory.count or 0)
    passed, full_since = _measure_passed(memory, policy, now), _find_full_since(memory, fleet, now)
    new_requests = passed * (signals.arrival_rate or 0.0)
    new = 1 - math.exp(-new_requests / REQUESTS_AVERAGED)
    generated = _average(memory.generation_tokens, signals.generation_tokens, new)
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
        model=learn(begin(memory.model, signals), memory.learned, new_steps, policy, now, num_warm=len(warm)),
        learned={pod: at for pod, at in memory.learned.items() if pod in fleet.revisions}
        | {steps.pod: now for steps in new_steps},
        prompt_tokens=_average(memory.prompt_tokens, signals.prompt_tokens, new),
        generation_tokens=generated,
        answer_lengths=_add_lengths(
            memory.answer_lengths, None if fleet.is_mixed else signals.answer_lengths, new_requests, generated
        ),
        context_tokens=_average(memory.context_tokens, mean_context(warm), new),
        max_sequences=_latest(signals.max_sequences, memory.max_sequences),
        kv_tokens=_latest(signals.kv_tokens, memory.kv_tokens),
        in_flight=_average_in_flight(memory.in_flight, signals, passed / policy.windows.rate),
        cold_starts=_note_cold_starts(memory, fleet),
    )


def _note_unready(memory: Memory, fleet: Fleet, policy: Policy, now: float) -> dict[str, float]:
    """A pod that is Ready for less than a cold start, and then not, crashes again and again."""
    least = memory.cold_start_seconds or policy.cold_start_seconds
    kept = {
        pod: at
        for pod, at in memory.unready_since.items()
        if pod in fleet.revisions and now - memory.ready_since.get(pod, now) < least
    }
    return dict.fromkeys(fleet.revisions.keys() - fleet.ready, now) | kept


def _measure_passed(memory: Memory, policy: Policy, now: float) -> float:
    """Return for how many seconds this look stands. What was in a gap nobody knows."""
    if memory.looked_at is None:
        return policy.tick_seconds
    return min(max(now - memory.looked_at, 0.0), policy.windows.recent)


def _is_alike(before: int | None, count: int) -> bool:
    """Whether the count is nearly what it was: a large service changes all the time while its load rises."""
    return before is None or abs(count - before) <= PASSING_PART * before


def _note_kept(
    memory: Memory, signals: Signals, policy: Policy, full_since: float | None, now: float
) -> dict[Objective, float]:
    """Add what is kept now.

    Where more replicas may be than before, what was kept once is in reach again: they may soon show it.
    """
    has_room = memory.full_since is not None and full_since is None
    kept = memory.kept
    if has_room or policy.max_replicas > (memory.max_replicas or policy.max_replicas):
        kept = {each: max(at, _grant(now)) for each, at in kept.items()}
    return kept | {each.objective: now for each in signals.latencies if each.is_known and not each.is_missed}


def _grant(now: float) -> float:
    """Return when an objective was kept that is in reach for some minutes more."""
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
    """Return since when the cluster has room for none of the pods that wait for some."""
    if not fleet.unplaced:
        return None
    if memory.unplaced & fleet.revisions.keys() - fleet.unplaced.keys():
        return now  # one got a node, and others may
    if memory.full_since is None:
        return now - max(pod.seconds for pod in fleet.unplaced.values())
    return memory.full_since


def _note_cold_starts(memory: Memory, fleet: Fleet) -> tuple[float, ...]:
    """Add what each pod took that is Ready for the first time: one that is Ready anew is no cold start."""
    new = [
        seconds
        for pod, seconds in fleet.cold_starts.items()
        if pod not in memory.started and seconds <= LONGEST_COLD_START
    ]
    return (*memory.cold_starts, *new)[-COLD_STARTS_KEPT:]


def _follow_revision(memory: Memory, fleet: Fleet, now: float) -> Memory:
    """Doubt the model when other pods serve than those that taught it; forget what those only tried."""
    serving = {fleet.revisions[pod] for pod in fleet.ready}
    if len(serving) != 1 or memory.revision in serving:
        return memory
    [revision] = serving
    model = memory.model
    if memory.revision is not None:
        model = LatencyModel() if model.is_untaught else model.distrust()
        # What was too few, or kept, or tried, was so of other replicas; half of the correction may be.
        memory = replace(
            memory,
            calibration=Calibration(),
            too_few=None,
            kept={each: min(at, _grant(now)) for each, at in memory.kept.items()},
            attempts={},
            spent={},
            correction=math.sqrt(memory.correction),
        )
    return replace(memory, revision=revision, model=model)


def _average(known: float | None, seen: float | None, new: float) -> float | None:
    """Return the average after one more look, of which a part is new."""
    if known is None or seen is None:
        return _latest(seen, known)
    return known + new * (seen - known)


def _average_in_flight(known: float | None, signals: Signals, passed: float) -> float | None:
    """Return the average after one more look. Of silent replicas it is not known how much less they have."""
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

    Where answers have become others, by their mean, those of before are forgotten at once.
    """
    if known is None or seen is None:
        return known if seen is None else seen
    if mean is not None and seen.is_known and not known.is_of(mean):
        return seen
    return known.add(seen, min(new_requests, seen.answers))


def _latest(seen: float | None, known: float | None) -> float | None:
    return known if seen is None else seen


def find_warm(
    signals: Signals, ready_since: dict[str, float], policy: Policy, now: float
) -> list[StepMoments]:
    """Return the steps of every replica whose window holds none of its first seconds: they poison the fit."""
    least = policy.warm_up_seconds + policy.windows.recent
    return [steps for steps in signals.steps if now - ready_since.get(steps.pod, now) >= least]


def mean_context(steps: Sequence[StepMoments]) -> float | None:
    """Return the keys that a sequence in a batch reads on average; None where there were no sequences."""
    sequences = sum(step.sequences * step.num_steps for step in steps)
    if sequences <= 0:
        return None
    return sum(step.context_tokens * step.num_steps for step in steps) / sequences


def begin(model: LatencyModel, signals: Signals) -> LatencyModel:
    """Return what replicas tried before they served anybody, for as long as nobody has taught the model.

    Of several replicas the one in the middle: another may have been started on a busy node.
    """
    if model.num_samples > model.num_tried or signals.fleet.is_mixed or not signals.trial_steps:
        return model
    tried = sorted(signals.trial_steps.values(), key=lambda steps: sum(step.seconds for step in steps))
    begun = LatencyModel.begin(tried[len(tried) // 2])
    return begun if begun.num_samples else model


def learn(
    model: LatencyModel,
    learned: Mapping[str, float],
    new_steps: Sequence[StepMoments],
    policy: Policy,
    now: float,
    *,
    num_warm: int,
) -> LatencyModel:
    """Learn what is new in each replica's window since it was learned from last.

    However many replicas there are, the same time passes until what they told is replaced.
    """
    for steps in new_steps:
        since = now - learned.get(steps.pod, -math.inf)
        weight = min(since / policy.windows.recent, 1.0)
        model = model.learn(steps, weight=weight, forgetting=FORGETTING * weight / num_warm)
    return model
