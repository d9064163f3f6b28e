"""What one decision hands to the next. Frozen. A restart brings back what `prior` kept, and then holds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from millrace_operator.autoscale.attainment import Calibration
from millrace_operator.autoscale.attempts import Attempts
from millrace_operator.autoscale.forecast import Outlook
from millrace_operator.autoscale.latency_model import FORGETTING, LatencyModel
from millrace_operator.autoscale.lengths import AnswerLengths
from millrace_operator.autoscale.observation import Fleet, Signals, StepMoments
from millrace_operator.autoscale.policy import Objective, Policy
from millrace_operator.autoscale.windows import Cadence

REQUESTS_AVERAGED = 200.0
"""Over which lengths are averaged. Those of a minute say little where few requests come."""
PASSING_PART = 0.1
"""Of the replicas: so many may begin anew, or come or go, while the others are settled."""
KEPT_SECONDS = 3600.0
"""An objective that was kept of late is in reach, whatever the model says: it takes lengths for lognormal."""
GRACE_SECONDS = 600.0
"""For so long it is in reach where it was kept by another revision, or before more replicas might be."""
COLD_STARTS_KEPT = 20
LONGEST_COLD_START = 3600.0
"""Seconds. A pod that took longer was Ready before, and we have not seen it."""


@dataclass(frozen=True)
class Recommendation:
    """The count that was wanted at a time, before any pacing."""

    at: float
    replicas: int


@dataclass(frozen=True)
class TooFew:
    """A count with which an objective was missed for so long that feedback added a replica."""

    replicas: int
    load: float
    """Requests a second then."""
    at: float


@dataclass(frozen=True)
class Memory:
    """The autoscaler's state for one service. How many replicas there are to be is not in it: status says."""

    model: LatencyModel = field(default_factory=LatencyModel)
    revision: str | None = None
    """The one that the model speaks of."""
    outlook: Outlook = field(default_factory=Outlook)
    recommendations: tuple[Recommendation, ...] = ()
    """Those that no later one reaches, the largest first: the first is the largest of the window."""
    informed_since: float | None = None
    """Since when no signal was missing for long. Scale-down waits until this covers its window."""
    uninformed_since: float | None = None
    """Since when one is missing; None while none is."""
    count: int | None = None
    """How many replicas there were to be when this was looked at last."""
    lowered_at: float | None = None
    """When that was first seen to be fewer."""
    max_replicas: int | None = None
    """The bound at that look."""
    asked: int | None = None
    """The count that the last decision asked for; None where a person's bound or a full cluster decided."""
    fell_at: float | None = None
    """When the count was first seen to be fewer as that decision asked: nobody else lowered it."""
    settled_since: float | None = None
    """Since when the count is what it is, and every replica of it has served."""
    ready_since: dict[str, float] = field(default_factory=dict)
    """Since when each pod that is Ready was seen to be. A container that begins anew is Ready anew."""
    unready_since: dict[str, float] = field(default_factory=dict)
    """Since when each pod that is not Ready was seen not to be, but for moments in which it was."""
    started: frozenset[str] = frozenset()
    """The pods that exist and have been Ready."""
    dark_at: float = -math.inf
    """When this was last seen to have replicas of which none was Ready, though some had been."""
    has_served: bool = False
    """Whether any pod has been Ready since this began."""
    cadence: Cadence = field(default_factory=Cadence)
    learned: dict[str, float] = field(default_factory=dict)
    """When the model learned from each pod last."""
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    answer_lengths: AnswerLengths | None = None
    """How the lengths of answers vary; None where no objective rests on it."""
    context_tokens: float | None = None
    """Keys that a sequence in a batch reads on average."""
    max_sequences: float | None = None
    kv_tokens: float | None = None
    cold_starts: tuple[float, ...] = ()
    """Seconds from creation until Ready of the pods that started last, as first seen."""
    attempts: Attempts = field(default_factory=Attempts)
    """What feedback tried."""
    too_few: TooFew | None = None
    """The last count that feedback raised."""
    unplaced: frozenset[str] = frozenset()
    """The pods without a node at the last look."""
    full_since: float | None = None
    """Since when there were such pods, and none of them got one. None while there are none."""
    correction: float = 1.0
    """How much more than the load the model is asked for, since it promised too much."""
    flaps: tuple[float, ...] = ()
    """When the count was raised soon after it had fallen, of late."""
    infeasible: tuple[str, ...] = ()
    """Objectives that were out of an idle replica's reach at the last decision."""
    doubted_since: dict[str, float] = field(default_factory=dict)
    """Since when each objective is likely to be missed, and not known to be."""
    kept: dict[Objective, float] = field(default_factory=dict)
    """When each objective was measured as kept last."""
    waiting: float | None = None
    """The queue at the last decision, of all replicas."""
    in_flight: float | None = None
    """Sequences that run or wait, on average over as long as rates look back."""
    spent: dict[str, float] = field(default_factory=dict)
    """Of each objective's error budget beyond what is allowed, in seconds; since the count changed."""
    spent_since: dict[str, float] = field(default_factory=dict)
    """Since when each has been overspent."""
    looked_at: float | None = None
    passed: float = 0.0
    """Seconds from the look before to the last one."""
    calibration: Calibration = field(default_factory=Calibration)
    """By how much predictions of the part in time were off."""

    @property
    def cold_start_seconds(self) -> float | None:
        """Return what nine of ten cold starts take at most, None before the first."""
        seconds = sorted(self.cold_starts)
        return seconds[math.ceil(0.9 * len(seconds)) - 1] if seconds else None

    def find_silent(self, signals: Signals, max_age: float, now: float) -> frozenset[str]:
        """Return the replicas that don't report, and have been Ready for long enough to have been scraped."""
        return frozenset(pod for pod in signals.silent if self.ready_since.get(pod, now) <= now - max_age)


def remember(memory: Memory, signals: Signals, policy: Policy, now: float) -> Memory:
    """The memory after an observation: rates, request shape and what the model learned."""
    fleet = signals.fleet
    ready_since = {pod: memory.ready_since.get(pod, now) for pod in fleet.ready}
    memory = _follow_revision(memory, fleet, now)
    warm = [] if fleet.is_mixed else _find_warm(signals, ready_since, policy, now)
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
        model=_learn(
            _begin(memory.model, signals), memory.learned, new_steps, policy, now, num_warm=len(warm)
        ),
        learned={pod: at for pod, at in memory.learned.items() if pod in fleet.revisions}
        | {steps.pod: now for steps in new_steps},
        prompt_tokens=_average(memory.prompt_tokens, signals.prompt_tokens, new),
        generation_tokens=generated,
        answer_lengths=_add_lengths(
            memory.answer_lengths, None if fleet.is_mixed else signals.answer_lengths, new_requests, generated
        ),
        context_tokens=_average(memory.context_tokens, _mean_context(warm), new),
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
            attempts=Attempts(),
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


def _find_warm(
    signals: Signals, ready_since: dict[str, float], policy: Policy, now: float
) -> list[StepMoments]:
    """Return the steps of every replica whose window holds none of its first seconds: they poison the fit."""
    least = policy.warm_up_seconds + policy.windows.recent
    return [steps for steps in signals.steps if now - ready_since.get(steps.pod, now) >= least]


def _mean_context(steps: Sequence[StepMoments]) -> float | None:
    sequences = sum(step.sequences * step.num_steps for step in steps)
    if sequences <= 0:
        return None
    return sum(step.context_tokens * step.num_steps for step in steps) / sequences


def _begin(model: LatencyModel, signals: Signals) -> LatencyModel:
    """Return what replicas tried before they served anybody, for as long as nobody has taught the model.

    Of several replicas the one in the middle: another may have been started on a busy node.
    """
    if model.num_samples > model.num_tried or signals.fleet.is_mixed or not signals.trial_steps:
        return model
    tried = sorted(signals.trial_steps.values(), key=lambda steps: sum(step.seconds for step in steps))
    begun = LatencyModel.begin(tried[len(tried) // 2])
    return begun if begun.num_samples else model


def _learn(
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
