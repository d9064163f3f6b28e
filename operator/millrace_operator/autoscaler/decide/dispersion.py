"""How much more a load varies than independent arrivals do. Pure.

Clients that send in bursts make a rate jump up and down. So does chance, but less: that is the scale. A load
that rises evenly for minutes is no burst. Three windows in a row tell both apart: of a straight line the one
in the middle is the mean of the others.
"""

import math
from collections.abc import Sequence

from millrace_operator.autoscaler.decide.trend import RatePoint

REMEMBERED_SECONDS = 1200.0
LARGEST = 100.0
OUTLIER = 25.0
"""A surprise counts for no more than so many times what is usual (five standard deviations): a service that
begins, or a step of its load, is no burst either. Without this bound a start from nothing trebled it."""
NEAR = 0.25
"""Of a window: a rate counted so near to where one is looked for stands for it."""


def measure_surprise(points: Sequence[RatePoint], window_seconds: float) -> float | None:
    """Return the square by which three windows in a row bend, over what it is of independent arrivals.

    Each varies by rate/w by chance, so the variance of a - 2·b + c is 6·rate/w. None where the points do not
    reach back so far, or nothing came.
    """
    if not points:
        return None
    newest = points[-1]
    middle, oldest = (_find_near(points, newest.at - n * window_seconds, window_seconds) for n in (1, 2))
    if middle is None or oldest is None:
        return None
    mean = (newest.rate + middle + oldest) / 3
    return (newest.rate - 2 * middle + oldest) ** 2 * window_seconds / (6 * mean) if mean > 0 else None


def _find_near(points: Sequence[RatePoint], at: float, window_seconds: float) -> float | None:
    nearest = min(points, key=lambda point: abs(point.at - at))
    return nearest.rate if abs(nearest.at - at) <= NEAR * window_seconds else None


def follow(dispersion: float, surprise: float | None, seconds: float) -> float:
    """Return how many times as much rates vary, after so many seconds of a surprise; never less than 1."""
    if surprise is None:
        return dispersion
    new = 1 - math.exp(-seconds / REMEMBERED_SECONDS)
    found = dispersion + new * (min(surprise, OUTLIER * dispersion) - dispersion)
    return min(max(found, 1.0), LARGEST)
