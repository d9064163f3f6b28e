"""The load that a replica started now will meet, and the margin to plan with. Pure.

Replicas must hold the requests that are present, and not the rate of the last seconds: all requests that came
within one request's stay. So a load is a rate, averaged over the time that a request stays in a replica.

The best time to average the rate itself depends on the service. With many clients a minute is enough. With a
few clients that send in bursts it is not. So the average is as long as a good estimate of the rate needs, and
a deviation beyond chance counts at once. The error of earlier forecasts is added to the next one as a margin.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from millrace_operator.autoscaler.capacity.capacity import Demand
from millrace_operator.autoscaler.decide.trend import (
    WINDOWS_KEPT,
    RatePoint,
    add_point,
    fit_trend,
    follow_dispersion,
    measure_surprise,
)
from millrace_operator.autoscaler.signals.scrapes import Windows

ERROR_STEP = 0.05
FIRST_ERROR = 0.8
"""Before any forecast came due. On W1's ramp 0.3 left too little for its steps, and 1.0 cost a few percent
more (some seeds, measured once by hand)."""
LARGEST_ERROR = 4.0
LEAST_RATE = 0.01
NIGHT = 0.1
"""A load below this part of the busier hours' says nothing about the forecasts' error by day."""
RISE_SECONDS, FALL_SECONDS = 3600.0, 43_200.0
"""The busy load follows a load in so long: a spike of minutes is no day, and a night does not erase a day."""
PRECISION = 0.15
"""The standard deviation, as a part of the rate, to which the rate is averaged."""
LONGEST_AVERAGE = 1200.0
BEYOND_CHANCE, BURST = 2.0, 5.0
"""Standard deviations by which the rates of the long and of the short window may be above the true one. With
3 for the short one two simulated days took 4 % and 14 % more replicas, and no more requests were in time
(measured once by hand)."""
DOUBTED = 2.0
"""A trend counts with so many standard errors less than its estimate."""
SIGNIFICANCE = 4.0
"""A trend counts only beyond so many standard errors, or noise alone would add replicas."""
APART = 0.5
"""Two forecasts that are due within this part of the short window say the same."""


class Arrivals(NamedTuple):
    """Requests a second over the long window, and over the short one."""

    rate: float | None
    recent: float | None

    @property
    def known(self) -> float | None:
        """The rate of the long window, or the known one."""
        return self.recent if self.rate is None else self.rate


@dataclass(frozen=True)
class ForecastError:
    """The error of due forecasts, in square roots of a rate: chance has the same size in them at any rate.

    It follows a quantile: that of P95 rises by 0.95 of a step if a forecast was too low by more, and falls by
    0.05 of the step if not.
    """

    quantile: float = FIRST_ERROR
    pending: tuple[RatePoint, ...] = ()
    """Forecasts, each at the time when it is due."""

    def margin(self, forecast: float) -> float:
        """Return the margin above a forecast, in requests a second."""
        return self.quantile * math.sqrt(forecast) if forecast >= LEAST_RATE else 0.0

    def judge(
        self, now: float, load: float, percentile: int, least: float = LEAST_RATE, since: float = -math.inf
    ) -> "ForecastError":
        """Return the error after comparing the due forecasts with the load, except those due before `since`.

        A forecast with its margin is too low as seldom as the percentile says. Loads under `least` say
        nothing.
        """
        quantile = self.quantile
        due = [point for point in self.pending if point.at <= now]
        for point in due:
            if max(point.rate, load) < least or point.at < since:
                continue
            error = (load - point.rate) / math.sqrt(max(point.rate, load, LEAST_RATE))
            quantile += ERROR_STEP * (percentile / 100 - (error <= quantile))
        quantile = min(max(quantile, 0.0), LARGEST_ERROR)
        return replace(self, quantile=quantile, pending=self.pending[len(due) :])

    def expect(self, due: float, forecast: float, apart: float) -> "ForecastError":
        """Return the error with one more pending forecast, unless another is due at nearly the same time."""
        if self.pending and due - self.pending[-1].at < apart:
            return self
        return replace(self, pending=(*self.pending, RatePoint(due, forecast)))


class Forecast(NamedTuple):
    """The load now, and the one to plan for, in requests a second."""

    load: float
    demand: Demand


@dataclass(frozen=True)
class Outlook:
    """The past of a service's load, and its forecast."""

    load: float | None = None
    """The rate, averaged over the time that a request stays."""
    average: float | None = None
    """The rate, averaged for as long as a good estimate needs."""
    expected: float = 0.0
    """The load at the end of the horizon."""
    stay_seconds: float = 0.0
    """How long a request stays in a replica; 0 while that is unknown."""
    busy_load: float = 0.0
    """The load of the busier hours of the last day."""
    seen_at: float | None = None
    seen_since: float = -math.inf
    """The end of the last gap that was long enough to empty the windows."""
    windows: Windows = field(default_factory=Windows)
    """The windows of the rates."""
    points: tuple[RatePoint, ...] = ()
    dispersion: float = 1.0
    """The variance of rates over that of independent arrivals."""
    error: ForecastError = field(default_factory=ForecastError)

    @property
    def least(self) -> float:
        """The smallest load with which forecasts are compared."""
        return max(NIGHT * self.busy_load, LEAST_RATE)

    @property
    def forecast(self) -> Forecast | None:
        """The load to plan for, never less than the present one; None before any was seen."""
        if self.load is None:
            return None
        expected = max(self.expected, self.load)
        return Forecast(self.load, Demand(expected, self.error.margin(self.expected)))

    def see(
        self,
        now: float,
        arrivals: Arrivals,
        windows: Windows,
        stay_seconds: float,
        horizon_seconds: float,
        *,
        percentile: int,
    ) -> "Outlook":
        """Return the outlook after one more look.

        `stay_seconds` is how long a request stays in a replica. A forecast is for the end of the horizon, and
        the load to plan for is that percentile of the possible loads. The load in a gap is unknown, so a rate
        after a gap counts for no longer than its own window.
        """
        rate = arrivals.known
        if rate is None:
            return self
        is_gap = self.seen_at is None or now - self.seen_at > windows.recent
        passed = 0.0 if self.seen_at is None else min(now - self.seen_at, windows.rate)
        since = now if is_gap else self.seen_since
        points = self._add_point(now, arrivals, windows)
        if now - since >= windows.rate:
            points = tuple(point for point in points if point.at - since >= windows.recent)
        load = _approach(self.load, rate, passed, stay_seconds)
        seconds = RISE_SECONDS if load > self.busy_load else FALL_SECONDS
        busy_load = _approach(self.busy_load, load, passed, seconds)
        surprise = measure_surprise(points, windows.recent) if rate >= NIGHT * busy_load else None
        seen = Outlook(
            load=load,
            busy_load=busy_load,
            average=self._follow(rate, passed, windows.rate),
            stay_seconds=stay_seconds,
            seen_at=now,
            seen_since=since,
            windows=windows,
            points=points,
            dispersion=follow_dispersion(self.dispersion, surprise, passed),
        )
        expected = seen.look_ahead(arrivals, horizon_seconds)
        error = self.error.judge(now, seen.load or 0.0, percentile, seen.least, now - windows.recent)
        error = error.expect(now + horizon_seconds, expected, APART * windows.recent)
        return replace(seen, expected=expected, error=error)

    def without_pending(self) -> "Outlook":
        """Return the outlook without pending forecasts, because the load is not seen completely."""
        return replace(self, error=replace(self.error, pending=()))

    def _add_point(self, now: float, arrivals: Arrivals, windows: Windows) -> tuple[RatePoint, ...]:
        """Return the rates of the short window. Rates of another window belong to no common trend."""
        points = self.points if windows == self.windows else ()
        rate = arrivals.known if arrivals.recent is None else arrivals.recent
        return points if rate is None else add_point(points, RatePoint(now, rate), windows.recent)

    def _follow(self, rate: float, passed: float, window: float) -> float:
        """Return the average after some seconds at a rate, no further above it than chance explains."""
        average = _approach(self.average, rate, passed, self._choose_average(rate, window))
        chance = math.sqrt(self.dispersion * max(average, LEAST_RATE) / window)
        return min(average, rate + BEYOND_CHANCE * chance)

    def _choose_average(self, rate: float, least: float) -> float:
        """Return the seconds beyond the rate's window over which the average is known to PRECISION."""
        seconds = self.dispersion / (PRECISION * PRECISION * max(rate, self.average or 0.0, LEAST_RATE))
        return min(max(seconds - least, 0.0), LONGEST_AVERAGE)

    def look_ahead(self, arrivals: Arrivals, horizon_seconds: float) -> float:
        """Return the load after the horizon: a part of the present load stays, and the rest arrives."""
        windows, level = self.windows, self.average or 0.0
        for seen, seconds, deviations in (
            (arrivals.rate, windows.rate, BEYOND_CHANCE),
            (arrivals.recent, windows.recent, BURST),
        ):
            if seen is not None:
                chance = math.sqrt(self.dispersion * max(level, LEAST_RATE) / seconds)
                level = max(level, seen - deviations * chance)
        coming = extrapolate(self.points, level, horizon_seconds, windows.recent, self.dispersion)
        coming = min(coming, max(level, self._find_most(arrivals)))
        left = math.exp(-horizon_seconds / self.stay_seconds) if self.stay_seconds > 0 else 0.0
        return coming + left * ((self.load or 0.0) - coming)

    def _find_most(self, arrivals: Arrivals) -> float:
        """Return the largest rate while windows fill after a gap: rates rise by themselves then."""
        seconds = math.inf if self.seen_at is None else self.seen_at - self.seen_since
        if not 0 < seconds < self.windows.rate:
            return math.inf
        seen = ((arrivals.rate, self.windows.rate), (arrivals.recent, self.windows.recent))
        return max(rate * max(window / seconds, 1.0) for rate, window in seen if rate is not None)


def extrapolate(
    points: Sequence[RatePoint],
    rate: float,
    horizon_seconds: float,
    window_seconds: float,
    dispersion: float = 1.0,
) -> float:
    """Return the expected rate after the horizon: at least the present one, and at most double it.

    `window_seconds` is the window of each point's rate. Only the certain part of a trend counts, and for no
    longer than the trend was seen: a load that has jumped looks like one that rises. A mean over a window is
    the rate in its middle, so a trend has gone on for half a window since.
    """
    trend = fit_trend(points, window_seconds, dispersion)
    if trend.slope <= SIGNIFICANCE * trend.error:
        return rate
    certain = trend.slope - DOUBTED * trend.error
    ahead = window_seconds / 2 + min(horizon_seconds, WINDOWS_KEPT * window_seconds)
    return min(rate + certain * ahead, 2 * rate)


def _approach(known: float | None, seen: float | None, passed: float, seconds: float) -> float:
    """Return an average over `seconds`, after `passed` of them at the seen value."""
    if known is None or seen is None or seconds <= 0:
        return (known if seen is None else seen) or 0.0
    return known + (1 - math.exp(-passed / seconds)) * (seen - known)
