"""How far a decision follows the wanted count at once: bounds, speed of scale-up, care of scale-down.
Pure.
"""

from typing import NamedTuple

from millrace_operator.autoscaler.decide.situation import Situation


class Pace(NamedTuple):
    """The count to go to now, and the limits that changed the wanted one; the last of them decided."""

    replicas: int
    limits: tuple[str, ...] = ()


def pace(situation: Situation, wanted: int) -> Pace:
    """Return how far to follow the wanted count within bounds, speed and the cluster's room."""
    paced, room = _pace(situation, wanted), situation.room
    if room is None or situation.bound(wanted) <= room:
        return paced
    most = situation.bound(room)
    return Pace(most, (*paced.limits, "capacity")) if most < paced.replicas else paced


def _pace(situation: Situation, wanted: int) -> Pace:
    bounded, current = situation.bound(wanted), situation.current
    limits = ("maxReplicas",) if bounded < wanted else ()
    if current > situation.policy.max_replicas:
        return Pace(situation.policy.max_replicas, ("maxReplicas",))
    if bounded > current:
        paced = min(bounded, max(2 * current, current + 4))
        return Pace(paced, (*limits, "scaleUpRate") if paced < bounded else limits)
    if bounded < current:
        return _pace_down(situation, bounded)
    return Pace(bounded, ("minReplicas",) if bounded > wanted else limits)


def _pace_down(situation: Situation, bounded: int) -> Pace:
    """Return a count at most one pod or 10 % lower, and only if the whole window allows it."""
    current = situation.current
    recent = [
        past.replicas
        for past in situation.memory.recommendations
        if situation.now - past.at <= situation.down_window_seconds
    ]
    floor = max([bounded, *recent])
    obstacle = _find_obstacle(situation, floor)
    if obstacle:
        return Pace(current, (obstacle,))
    limits = {"scaleDownRate": current - max(1, current // 10), "deadBand": _find_sure_count(situation)}
    limit = max(limits, key=lambda name: limits[name])
    lower = min(max(floor, limits[limit]), current)
    return Pace(lower, (limit,) if lower > floor else ())


def _find_obstacle(situation: Situation, floor: int) -> str | None:
    """Return what forbids any scale-down now; None if nothing does."""
    memory, policy = situation.memory, situation.policy
    if not situation.is_informed or situation.signals.silent:
        return "signals"
    if situation.signals.fleet.is_mixed:
        return "rollout"
    if situation.may_miss:
        return "objectives"
    informed = None if memory.informed_since is None else situation.now - memory.informed_since
    if informed is None or informed < situation.down_window_seconds or floor >= situation.current:
        return "scaleDownWindow"
    lowered = memory.lowered_at
    if lowered is not None and situation.now - lowered < policy.scale_down_interval_seconds:
        return "scaleDownInterval"
    return None


def _find_sure_count(situation: Situation) -> int:
    """Return how many replicas surely suffice for a dead band above the expected load.

    Likely needs add replicas, and only certainty removes them.
    """
    demand = situation.demand
    if demand is None:
        return 1
    more = demand.times(1 + situation.policy.dead_band)
    # With slower steps an objective may look out of reach and ask for nothing: that must not lower the count.
    return max(situation.count_for(more, surely=True) or 1, situation.count_for(more) or 1)
