"""How far a wanted count is followed at once: bounds, the speed of scale-up, the care of scale-down."""

import math
from typing import NamedTuple

from millrace_operator.autoscale.situation import Situation

ERRORS_OF_RATE = 2.0
"""Standard errors by which the rate may be more than was counted."""


class Pace(NamedTuple):
    """The count to go to now, and which limits bent the wanted one; the last of them decided."""

    replicas: int
    limits: tuple[str, ...] = ()


def pace(tick: Situation, wanted: int) -> Pace:
    """Follow the wanted count as far as bounds and speed allow."""
    bounded, current = tick.bound(wanted), tick.current
    limits = ("maxReplicas",) if bounded < wanted else ()
    if current > tick.policy.max_replicas:
        return Pace(tick.policy.max_replicas, ("maxReplicas",))
    if bounded > current:
        paced = min(bounded, max(2 * current, current + 4))
        return Pace(paced, (*limits, "scaleUpRate") if paced < bounded else limits)
    if bounded < current:
        return _pace_down(tick, bounded)
    return Pace(bounded, ("minReplicas",) if bounded > wanted else limits)


def _pace_down(tick: Situation, bounded: int) -> Pace:
    """At most one pod or 10 % lower, and only where the whole window allows it."""
    current, policy = tick.current, tick.policy
    recent = [
        past.replicas
        for past in tick.memory.recommendations
        if tick.now - past.at <= policy.scale_down_window_seconds
    ]
    floor = max([bounded, *recent])
    obstacle = _find_obstacle(tick, floor)
    if obstacle:
        return Pace(current, (obstacle,))
    lower = max(floor, current - max(1, current // 10))
    if not _fits(tick, lower):
        return Pace(current, ("deadBand",))
    return Pace(lower, ("scaleDownRate",) if lower > floor else ())


def _find_obstacle(tick: Situation, floor: int) -> str | None:
    """What forbids any scale-down now."""
    signals, memory, policy = tick.signals, tick.memory, tick.policy
    if not tick.is_informed or signals.reporting_replicas < signals.ready_replicas:
        return "signals"
    if tick.missed:
        return "objectives"
    informed = None if memory.informed_since is None else tick.now - memory.informed_since
    if informed is None or informed < policy.scale_down_window_seconds or floor >= tick.current:
        return "scaleDownWindow"
    lowered = memory.lowered_at
    if lowered is not None and tick.now - lowered < policy.scale_down_interval_seconds:
        return "scaleDownInterval"
    return None


def _fits(tick: Situation, replicas: int) -> bool:
    """Whether the load, and what it may be more than it seems, leaves the smaller fleet's dead band free.

    A rate counted over a window is uncertain by the root of rate / window, after Poisson. Without that, a
    steady load near a step went down and up again every minute or two.
    """
    estimate = tick.estimate
    if estimate.forecast is None or estimate.per_replica is None:
        return True
    doubt = ERRORS_OF_RATE * math.sqrt(estimate.forecast / tick.policy.windows.rate)
    return estimate.forecast + doubt <= replicas * estimate.per_replica * (1 - tick.policy.dead_band)
