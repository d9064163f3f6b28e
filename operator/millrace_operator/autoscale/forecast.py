"""The load that a replica started now will meet: the present rate, and its trend over the cold start."""

import math
from collections.abc import Sequence
from typing import NamedTuple

TREND_SECONDS = 30.0
MIN_POINTS = 5
SIGNIFICANCE = 3.0
"""A trend counts only beyond this many standard errors, or noise alone would add replicas."""


class RatePoint(NamedTuple):
    """Arrivals per second at a time."""

    at: float
    rate: float


class Trend(NamedTuple):
    """Requests per second gained each second, and the estimate's standard error."""

    slope: float
    error: float


def fit_trend(points: Sequence[RatePoint]) -> Trend:
    """Least squares through the points; nothing where there are too few."""
    if len(points) < MIN_POINTS:
        return Trend(0.0, 0.0)
    mean_at = sum(p.at for p in points) / len(points)
    mean_rate = sum(p.rate for p in points) / len(points)
    spread = sum((p.at - mean_at) ** 2 for p in points)
    if spread == 0:
        return Trend(0.0, 0.0)
    slope = sum((p.at - mean_at) * (p.rate - mean_rate) for p in points) / spread
    rest = sum((p.rate - mean_rate - slope * (p.at - mean_at)) ** 2 for p in points)
    return Trend(slope, math.sqrt(rest / (len(points) - 2) / spread))


def forecast_rate(points: Sequence[RatePoint], rate: float, horizon_seconds: float) -> float:
    """The rate expected after the horizon: never under the present one, at most double it."""
    latest = points[-1].at if points else 0.0
    trend = fit_trend([point for point in points if latest - point.at <= TREND_SECONDS])
    if trend.slope <= SIGNIFICANCE * trend.error:
        return rate
    return min(rate + trend.slope * horizon_seconds, 2 * rate)
