"""What late requests ask for whatever the model says, and how far the model is corrected for it. Pure."""

import math
from collections.abc import Mapping
from dataclasses import replace

from millrace_operator.autoscale.attempts import REMEMBERED_SECONDS
from millrace_operator.autoscale.budget import ALLOWED_BURN, find_burn
from millrace_operator.autoscale.capacity import Demand
from millrace_operator.autoscale.memory import Memory, TooFew
from millrace_operator.autoscale.situation import Situation

FEEDBACK, TOO_FEW = "feedback", "tooFew"
"""The names of the two candidates."""
STEP_PART = 10
"""Of so many replicas one more is asked for: one of forty would hardly be noticed."""
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
        return _step_up(situation.current)
    if situation.has_proven_model or situation.num_starting or not _is_whole_and_busy(situation):
        return None
    is_missed = bool(situation.missed) and (bool(situation.signals.waiting) or situation.is_settled)
    return math.ceil(situation.current * 1.5) if is_missed or _is_queue_growing(situation) else None


def _is_whole_and_busy(situation: Situation) -> bool:
    return situation.is_nearly_whole and bool(situation.signals.running)


def _overrules(situation: Situation) -> bool:
    """Whether requests have been late for so long that a proven model is wrong about them."""
    if not situation.has_proven_model or not _is_whole_and_busy(situation):
        return False
    return bool(situation.spent) and bool(situation.missed) and not situation.memory.attempts.have_failed


def remember_floor(situation: Situation) -> int | None:
    """Return what was asked for instead of what was too few for such a load in the last hour."""
    few, load = situation.memory.too_few, situation.estimate.rate
    if few is None or load is None:
        return None
    is_alike = situation.now - few.at < REMEMBERED_SECONDS and load >= ALIKE * few.load
    return _step_up(few.replicas) if is_alike else None


def _step_up(replicas: int) -> int:
    return replicas + max(replicas // STEP_PART, 1)


def is_step(situation: Situation, desired: int) -> bool:
    """Whether more replicas are asked for since requests are late in spite of the model."""
    return _overrules(situation) and desired > situation.current


def is_step_under_way(situation: Situation) -> bool:
    """Whether replicas that were asked for since requests are late do not serve yet."""
    return situation.num_serving < min(situation.memory.attempts.asked, situation.current)


def learn_from_step(situation: Situation, memory: Memory, desired: int) -> Memory:
    """Return the memory after a step of feedback: the next one is judged by what this one does."""
    current, load, now = situation.current, situation.estimate.rate or 0.0, situation.now
    attempts = memory.attempts.note(now, current, desired, _find_mean_burn(situation), load)
    too_few = None if attempts.have_failed else TooFew(current, load, now)
    return replace(memory, attempts=attempts, too_few=too_few, spent={}, settled_since=None)


def _find_mean_burn(situation: Situation) -> float:
    """Return how many times as many as allowed were late, on average since a budget was overspent."""
    memory = situation.memory
    since = {name: memory.spent_since.get(name, situation.now) for name in situation.spent}
    means = (
        memory.spent[name] / max(situation.now - at, situation.policy.tick_seconds)
        for name, at in since.items()
    )
    return ALLOWED_BURN + max(means, default=0.0)


def watch_attempts(situation: Situation) -> Memory:
    """Return the memory with what was tried, unless the cause may be another by now: then all begins anew."""
    feasible = (each for each in situation.present_latencies if each.is_judged)
    burns = [find_burn(each) for each in feasible if each.objective.name not in situation.estimate.infeasible]
    burn = max(burns) if burns and situation.is_informed else None
    attempts = situation.memory.attempts.watch(situation.now, burn, situation.estimate.rate)
    if situation.memory.attempts.have_failed and not attempts.have_failed:
        return replace(situation.memory, attempts=attempts, spent={})
    attempts = replace(attempts, asked=0) if situation.num_serving >= attempts.asked else attempts
    return replace(situation.memory, attempts=attempts)


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
    is_whole = situation.is_nearly_whole and situation.current < situation.policy.max_replicas
    needed = _find_correction(situation, estimate.demand) if estimate.demand and is_overruled else None
    if needed and is_whole and situation.has_proven_model:
        return max(correction, needed)
    forgotten = math.exp(-situation.memory.passed / CORRECTION_SECONDS)
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
