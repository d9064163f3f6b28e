"""What late requests ask for whatever the model says, and how far the model is corrected for it. Pure."""

import math
from collections.abc import Mapping

from millrace_operator.autoscale.budget import find_burn
from millrace_operator.autoscale.capacity import Demand
from millrace_operator.autoscale.memory import TooFew
from millrace_operator.autoscale.situation import Situation
from millrace_operator.resources.evidence_limits import FUTILE_STEPS

FEEDBACK, TOO_FEW = "feedback", "tooFew"
"""The names of the two candidates."""
HELPED = 0.9
"""Of the burn before a step of feedback: what is left if it helped."""
REMEMBERED_SECONDS = 3600.0
ALIKE = 0.9
"""Of the load for which a count was too few: with less it may do."""
LARGEST_CORRECTION = 3.0
CORRECTION_STEP = 1.05
CORRECTION_SECONDS = 3600.0
"""In which two thirds of a correction are forgotten."""


def ask_feedback(situation: Situation) -> int | None:
    """Up when busy replicas miss an objective, whatever the model says; unless it is proven also for a queue.

    Only once every replica asked for serves: those still starting may be the cure.
    """
    if _overrules(situation):
        return situation.current + 1
    if situation.has_proven_model or not _is_whole_and_busy(situation):
        return None
    is_missed = bool(situation.missed) and (bool(situation.signals.waiting) or situation.is_settled)
    return math.ceil(situation.current * 1.5) if is_missed or _is_queue_growing(situation) else None


def _is_whole_and_busy(situation: Situation) -> bool:
    return not situation.num_starting and bool(situation.signals.running)


def _overrules(situation: Situation) -> bool:
    """Whether requests have been late for so long that a proven model is wrong about them."""
    if not situation.has_proven_model or not _is_whole_and_busy(situation):
        return False
    return bool(situation.spent) and bool(situation.missed) and situation.memory.futile < FUTILE_STEPS


def remember_floor(situation: Situation) -> int | None:
    """Return one more than what was too few for such a load in the last hour, if one more helped."""
    few, load = situation.memory.too_few, situation.estimate.rate
    if few is None or load is None or situation.memory.futile:
        return None
    is_alike = situation.now - few.at < REMEMBERED_SECONDS and load >= ALIKE * few.load
    return few.replicas + 1 if is_alike else None


def note_too_few(situation: Situation, desired: int) -> TooFew | None:
    """Return what was too few last, with this decision: the count with which requests were late."""
    load = situation.estimate.rate
    if not _overrules(situation) or desired <= situation.current or load is None:
        return situation.memory.too_few
    return TooFew(situation.current, load, situation.now)


def _is_queue_growing(situation: Situation) -> bool:
    """Whether more wait than before, and more than one a replica. Unknown is no."""
    waiting, before = situation.signals.waiting, situation.memory.waiting
    if waiting is None or before is None or situation.signals.silent:
        return False
    return waiting > max(before, len(situation.signals.fleet.ready))


def correct(situation: Situation, candidates: Mapping[str, int]) -> float:
    """Return how much more to ask of the model: more when feedback had to overrule it, less as time goes by.

    Without that the count would fall to the model's again, and the objective be missed again. Where there are
    many more replicas than the model asks for, they are late for another reason than its promise, and so they
    are where some of those asked for do not serve, or no more may be asked for.
    """
    correction, estimate, others = situation.memory.correction, situation.estimate, dict(candidates)
    asked, _ = others.pop(FEEDBACK, 0), others.pop(TOO_FEW, None)
    is_close = asked > max(others.values(), default=0) >= situation.current - 1
    is_overruled = is_close and _overrules(situation)
    is_whole = len(situation.signals.fleet.ready) >= situation.current < situation.policy.max_replicas
    needed = _find_correction(situation, estimate.demand) if estimate.demand and is_overruled else None
    if needed and is_whole and situation.has_proven_model:
        return max(correction, needed)
    forgotten = math.exp(-situation.policy.tick_seconds / CORRECTION_SECONDS)
    return 1 + (correction - 1) * forgotten


def _find_correction(situation: Situation, demand: Demand) -> float | None:
    """Return how much more to ask of the model, that it asks for more than the present replicas.

    None where no such load explains why they are late: it is not the load then.
    """
    correction = 1.0
    while correction < LARGEST_CORRECTION:
        count = situation.count_for(demand.times(correction))
        if count is None or count > situation.current:
            return correction
        correction *= CORRECTION_STEP
    return None


def _has_helped(situation: Situation) -> bool:
    """Whether fewer are late than when a replica was added last."""
    before = situation.memory.feedback_burn
    missed = [each for each in situation.signals.latencies if each.objective.name in situation.missed]
    burn = max(map(find_burn, missed), default=0.0)
    return before is not None and burn <= HELPED * before


def judge_feedback(
    situation: Situation, desired: int, candidates: Mapping[str, int]
) -> tuple[float | None, int]:
    """Return how fast budgets were spent when feedback last added a replica, and its futile steps."""
    memory = situation.memory
    is_known = situation.is_settled and situation.is_informed
    if is_known and not situation.missed:
        return None, 0
    if is_known and memory.futile and _has_helped(situation):
        return memory.feedback_burn, 0
    if FEEDBACK not in candidates or desired <= situation.current or not situation.has_proven_model:
        return memory.feedback_burn, memory.futile
    asking = [each for each in situation.signals.latencies if each.objective.name in situation.spent]
    burn = max(map(find_burn, asking), default=0.0)
    before = memory.feedback_burn
    return burn, memory.futile + 1 if before is not None and burn > HELPED * before else 0
