"""Whether a rate rises or varies beyond chance. Pure.

Clients that send in bursts make a rate jump up and down. So does chance, but less: that is the scale of the
dispersion. A load that rises evenly for minutes is no burst. Three windows in a row tell the two apart: of a
straight line the one in the middle is the mean of the others.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

MIN_POINTS = 5
POINTS_APART = 0.1
"""The least distance of two points, as a part of their window."""
WINDOWS_KEPT = 2.25
"""Points are kept so long that three windows in a row are among them, which reach back two.

The trend is fitted over the same time. With 1.5 windows chance hid from some ticks a load that rose sixfold
in two minutes, and a recorded conversation took 5 % more replicas."""
DISPERSION_SECONDS = 1200.0
LARGEST_DISPERSION = 100.0
OUTLIER_SURPRISE = 25.0
"""A surprise counts as at most so many times the usual (five standard deviations): the start of a service, or
a step of its load, is no burst. Without this bound a start from nothing trebled the dispersion."""
NEAR = 0.25
"""A rate stands for any time within this part of a window."""


class RatePoint(NamedTuple):
    """Arrivals per second at a time."""

    at: float
    rate: float


def add_point(points: Sequence[RatePoint], new: RatePoint, window_seconds: float) -> tuple[RatePoint, ...]:
    """Return the points with one more, and without those that are too old.

    The rate stays the same until the next scrape. Two points closer than a tenth of the window share nine
    tenths of it, so the second has no news: the newest replaces the one before.
    """
    kept = [point for point in points if new.at - point.at <= WINDOWS_KEPT * window_seconds]
    if kept and kept[-1].rate == new.rate:
        return tuple(kept)
    if len(kept) >= 2 and kept[-1].at - kept[-2].at < POINTS_APART * window_seconds:
        kept.pop()
    return (*kept, new)


class Trend(NamedTuple):
    """Requests per second gained each second, and the estimate's standard error."""

    slope: float
    error: float


def fit_trend(points: Sequence[RatePoint], window_seconds: float, dispersion: float = 1.0) -> Trend:
    """Return the line through the points, each a mean over a window; zero if there are too few.

    The error is the larger one of the points' scatter and of chance arrivals.
    """
    if len(points) < MIN_POINTS:
        return Trend(0.0, 0.0)
    mean_at = sum(p.at for p in points) / len(points)
    mean_rate = sum(p.rate for p in points) / len(points)
    spread = sum((p.at - mean_at) ** 2 for p in points)
    if spread == 0:
        return Trend(0.0, 0.0)
    slope = sum((p.at - mean_at) * (p.rate - mean_rate) for p in points) / spread
    rest = sum((p.rate - mean_rate - slope * (p.at - mean_at)) ** 2 for p in points)
    chance = dispersion * mean_rate * _slope_variance([p.at for p in points], mean_at, spread, window_seconds)
    return Trend(slope, math.sqrt(max(rest / (len(points) - 2) / spread, chance)))


def _slope_variance(times: Sequence[float], mean: float, spread: float, window: float) -> float:
    """Return the variance of the slope for Poisson arrivals of one a second. `times` are in order.

    A mean over a window w has the variance 1/w. Two windows share the part 1 - distance/w, so their means go
    up and down together, which looks like a trend: cov(i, j) = max(0, 1 - |ti - tj| / w) / w.
    """
    weights = [(at - mean) / spread for at in times]
    total = 0.0
    for i, (at, weight) in enumerate(zip(times, weights, strict=True)):
        near = range(bisect_right(times, at - window), i)
        total += weight * weight + 2 * weight * sum(weights[j] * (1 - (at - times[j]) / window) for j in near)
    return total / window


def measure_surprise(points: Sequence[RatePoint], window_seconds: float) -> float | None:
    """Return the squared bend of three windows in a row, over that of independent arrivals.

    Each has the variance rate/w by chance, so the variance of a - 2·b + c is 6·rate/w. None if the points do
    not reach back so far, or no request came.
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


def follow_dispersion(dispersion: float, surprise: float | None, seconds: float) -> float:
    """Return the dispersion after some seconds of a surprise; never less than 1."""
    if surprise is None:
        return dispersion
    new = 1 - math.exp(-seconds / DISPERSION_SECONDS)
    found = dispersion + new * (min(surprise, OUTLIER_SURPRISE * dispersion) - dispersion)
    return min(max(found, 1.0), LARGEST_DISPERSION)
