"""Late requests ask for replicas even if the model does not, and correct the model. Pure.

P95 allows 5 % of requests to be late. The burn is the late part over the allowed part: at 1 the objective is
just kept. A percentile of one minute is above its target now and then although the objective is kept over the
hour. So feedback adds up the burn beyond the allowed one over time: a large one asks for a replica within
seconds, a small one within minutes, and quiet minutes cancel a small one before it asks.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from millrace_operator.api.status_lines import SPENT_SECONDS
from millrace_operator.autoscaler.capacity.capacity import Demand
from millrace_operator.autoscaler.decide.attempts import REMEMBERED_SECONDS, Attempts
from millrace_operator.autoscaler.decide.memory import Memory, TooFew
from millrace_operator.autoscaler.decide.situation import DOUBT_SECONDS, Situation
from millrace_operator.autoscaler.signals.observation import Latency

ALLOWED_BURN = 1.0
QUIET = ALLOWED_BURN / 30
"""The credit of a second with too few requests to judge: a thirtieth of a second without a late one."""
AVERAGED_SECONDS = 300.0
"""The mean burn covers at most so long."""
FEEDBACK, TOO_FEW = "feedback", "tooFew"
"""The names of the two candidates."""
STEP_PART = 10
"""A step adds one replica for each ten: one more of forty would hardly be noticed."""
ALIKE = 0.9
"""A count that was too few may be enough with less than this part of the load."""
LARGEST_CORRECTION = 3.0
CORRECTION_STEP = 1.05
CORRECTION_SECONDS = 3600.0
"""A correction decays to a third in this time."""


def find_burn(latency: Latency) -> float:
    """Return the burn, as far as it is certain: the late part of the requests over the allowed part.

    Requests in the target's own bucket may be late or not, and count as in time.
    """
    allowed = 1 - latency.objective.percentile / 100
    if latency.bracket is None:
        return ALLOWED_BURN + 1 if latency.is_missed else 0.0
    return max(1 - latency.bracket.upper_share, 0.0) / allowed


def find_burns(latencies: Iterable[Latency]) -> dict[str, float]:
    """Return the burn of each objective with enough requests."""
    return {latency.objective.name: find_burn(latency) for latency in latencies if latency.is_judged}


def average(mean: float, burn: float, elapsed: float, seconds: float) -> float:
    """Return the mean burn after some seconds more, over the elapsed time or its last minutes."""
    return mean + (burn - mean) * seconds / min(elapsed + seconds, AVERAGED_SECONDS)


def spend(spent: Mapping[str, float], burns: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Return each objective's burn beyond the allowed one, added up, after some seconds more.

    An objective with too few requests to judge spends nothing, and its sum returns to zero within the hour.
    """
    rates = {name: burns[name] - ALLOWED_BURN if name in burns else -QUIET for name in spent.keys() | burns}
    sums = {name: spent.get(name, 0.0) + rate * seconds for name, rate in rates.items()}
    return {name: min(total, 2 * SPENT_SECONDS) for name, total in sums.items() if total > 0}


def spend_budgets(situation: Situation) -> Memory:
    """Return the memory with the error budget that the present replicas alone have spent of each objective.

    While no replica answers, or replicas start, the sums stay as they are.
    """
    memory = situation.memory
    if not situation.is_settled or not situation.is_informed or not situation.is_nearly_whole:
        return memory
    asked, passed = {one.name for one in situation.policy.objectives}, memory.passed
    began = situation.now - passed
    burns = find_burns(situation.present_latencies)
    spent = spend({name: sum_ for name, sum_ in memory.spent.items() if name in asked}, burns, passed)
    since = {name: memory.spent_since.get(name, began) if name in memory.spent else began for name in spent}
    means = {name: memory.mean_burn.get(name, 0.0) for name in spent}
    means |= {
        name: average(means[name], burns[name], began - since[name], passed) for name in burns.keys() & spent
    }
    return replace(memory, spent=spent, spent_since=since, mean_burn=means)


def ask_feedback(situation: Situation) -> int | None:
    """Return a larger count if busy replicas miss an objective; without a proven model also for a queue.

    Feedback waits until every desired replica serves: a starting one may be the cure.
    """
    if find_late(situation):
        return _step_up(situation.current) if situation.has_proven_model else _grow(situation.current)
    if situation.has_proven_model or situation.num_starting or not _is_whole_and_busy(situation):
        return None
    is_missed = bool(situation.missed) and bool(situation.signals.waiting)
    return _grow(situation.current) if is_missed or _is_queue_growing(situation) else None


def _is_whole_and_busy(situation: Situation) -> bool:
    return situation.is_nearly_whole and bool(situation.signals.running)


def find_late(situation: Situation) -> list[str]:
    """Return the objectives that are missed for so long that the model is wrong about them."""
    if not _is_whole_and_busy(situation):
        return []
    attempts = situation.memory.attempts
    late = [name for name in situation.spent if name in situation.missed]
    return [name for name in late if name not in attempts or not attempts[name].have_failed]


def remember_floor(situation: Situation) -> int | None:
    """Return the count to ask for if a count was too few for such a load in the last hour."""
    few, load = situation.memory.too_few, situation.estimate.rate
    if few is None or load is None:
        return None
    is_alike = situation.now - few.at < REMEMBERED_SECONDS and load >= ALIKE * few.load
    return _step_up(few.replicas) if is_alike else None


def _step_up(replicas: int) -> int:
    return replicas + max(replicas // STEP_PART, 1)


def _grow(replicas: int) -> int:
    """Return the count to ask for while no model says how far away the right count is."""
    return math.ceil(replicas * 1.5)


def is_step(situation: Situation, desired: int) -> bool:
    """Whether this decision asks for more replicas because requests are late in spite of the model."""
    return bool(find_late(situation)) and desired > situation.current


def is_step_under_way(situation: Situation) -> bool:
    """Whether replicas that feedback has asked for do not serve yet."""
    asked = max((each.asked for each in situation.memory.attempts.values()), default=0)
    return situation.num_serving < min(asked, situation.current)


def learn_from_step(situation: Situation, memory: Memory, desired: int) -> Memory:
    """Return the memory after a step of feedback. The next step judges this one."""
    current, load, now = situation.current, situation.estimate.rate or 0.0, situation.now
    late = find_late(situation)
    burns = {name: memory.mean_burn.get(name, ALLOWED_BURN) for name in late}
    steps = {
        name: memory.attempts.get(name, Attempts()).add_step(now, current, desired, burns[name], load)
        for name in late
    }
    have_failed = all(step.have_failed for step in steps.values())
    return replace(
        memory,
        attempts=memory.attempts | steps,
        too_few=None if have_failed else TooFew(current, load, now),
        spent={},
        settled_since=None,
    )


def watch_attempts(situation: Situation) -> Memory:
    """Return the memory with the attempts after this look, except those whose cause may be another by now."""
    memory, now, count, load = situation.memory, situation.now, situation.current, situation.estimate.rate
    burns = _find_burns(situation)
    watched = {
        name: each.observe(now, memory.passed, count, burns.get(name), load)
        for name, each in memory.attempts.items()
    }
    served = situation.num_serving
    kept = {
        name: replace(each, asked=0) if served >= min(each.asked, count) else each
        for name, each in watched.items()
        if each.replicas is not None
    }
    forgotten = {name for name, each in memory.attempts.items() if each.have_failed and name not in kept}
    spent = {name: seconds for name, seconds in memory.spent.items() if name not in forgotten}
    memory = replace(memory, attempts=kept | _give_up_at_maximum(situation), spent=spent)
    if load is None or not any(each.is_below_worse for each in kept.values()):
        return memory
    attempts = {name: replace(each, below=None) for name, each in memory.attempts.items()}
    return replace(memory, attempts=attempts, too_few=TooFew(count, load, now))


def _find_burns(situation: Situation) -> dict[str, float]:
    """Return the burn of each judged objective that more replicas can meet."""
    if not situation.is_informed:
        return {}
    burns = find_burns(situation.present_latencies)
    return {name: burn for name, burn in burns.items() if name not in situation.estimate.infeasible}


def _give_up_at_maximum(situation: Situation) -> dict[str, Attempts]:
    """Return the attempts of the objectives that the largest allowed count has left late for long.

    Without them the count of a busy hour would stay while any request is late for a cause that no replica
    cures.
    """
    memory, load = situation.memory, situation.estimate.rate or 0.0
    if situation.current < situation.policy.max_replicas:
        return {}
    since = {name: memory.spent_since.get(name, situation.now) for name in find_late(situation)}
    return {
        name: Attempts.give_up(at, situation.current, memory.mean_burn.get(name, ALLOWED_BURN), load)
        for name, at in since.items()
        if situation.now - at >= DOUBT_SECONDS
    }


def _is_queue_growing(situation: Situation) -> bool:
    """Whether more requests wait than before, and more than one a replica. Unknown counts as no."""
    waiting, before = situation.signals.waiting, situation.memory.waiting
    if waiting is None or before is None or situation.signals.silent:
        return False
    return waiting > max(before, len(situation.signals.fleet.ready))


def correct(situation: Situation, candidates: Mapping[str, int]) -> float:
    """Return the model's correction: more when feedback overrules the model, less as time goes by.

    Without it the count would fall to the model's again, and requests would be late again. If there are many
    more replicas than the model asks for, the model is not the cause of the late requests. The same holds if
    some desired replicas do not serve, or the count is at its maximum.
    """
    correction, estimate, others = situation.memory.correction, situation.estimate, dict(candidates)
    asked, _ = others.pop(FEEDBACK, 0), others.pop(TOO_FEW, None)
    is_close = asked > max(others.values(), default=0) >= situation.current - 1
    is_overruled = is_close and bool(find_late(situation))
    is_whole = situation.is_nearly_whole and situation.current < situation.policy.max_replicas
    needed = _find_correction(situation, estimate.demand) if estimate.demand and is_overruled else None
    if needed and is_whole and situation.has_proven_model:
        return max(correction, needed)
    forgotten = math.exp(-situation.memory.passed / CORRECTION_SECONDS)
    return 1 + (correction - 1) * forgotten


def _find_correction(situation: Situation, demand: Demand) -> float | None:
    """Return the correction with which the model asks for more than the present replicas.

    None if no such load explains the late requests: then the load is not the cause.
    """
    correction = 1.0
    while correction < LARGEST_CORRECTION:
        count = situation.count_for(demand.times(correction))
        if count is None or count > situation.current:
            return correction
        correction *= CORRECTION_STEP
    return None
