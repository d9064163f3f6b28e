"""The load that a replica started now will meet, and how much more to plan for. Pure.

What replicas must hold is not the rate of the last seconds but the requests that are there: those of as long
as one of them stays. So a load is a rate, averaged over the time that a request stays in a replica.

How long to average the rate itself depends on the service. That of many clients says in a minute what it is;
that of a few, whose requests come in bursts, does not. So the average is as long as it takes to know the rate
well enough, and what is beyond chance counts at once. What forecasts were short of is added to the next.
"""

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from millrace_operator.autoscaler.capacity.capacity import Demand
from millrace_operator.autoscaler.decide.trend import (
    RatePoint,
    add_point,
    extrapolate,
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
"""Of the load in the day's busier hours. Less says nothing of how the day surprises."""
RISE_SECONDS, FALL_SECONDS = 3600.0, 43_200.0
"""In which that follows a load: a spike of minutes is no day, and a night does not make it forgotten."""
PRECISION = 0.15
"""The standard deviation, as a part of the rate, to which the rate is averaged."""
LONGEST_AVERAGE = 1200.0
BEYOND_CHANCE, BURST = 2.0, 5.0
"""Standard deviations by which the rates of the long and of the short window may be above the true one. With
3 for the short one two simulated days took 4 % and 14 % more replicas, and no more requests were in time
(measured once by hand)."""
APART = 0.5
"""Of the short window: forecasts that are due nearer than this tell the same."""


class Arrivals(NamedTuple):
    """Requests a second over the long window, and over the short one."""

    rate: float | None
    recent: float | None

    @property
    def known(self) -> float | None:
        """The rate of the long window, or the one that is known."""
        return self.recent if self.rate is None else self.rate


@dataclass(frozen=True)
class ForecastError:
    """By how much forecasts were too low as they came due, in roots of a rate: chance is alike in them.

    A quantile is followed: that of P95 rises by 0.95 of a step when a forecast was too low by more, and falls
    by 0.05 of the step when not.
    """

    quantile: float = FIRST_ERROR
    pending: tuple[RatePoint, ...] = ()
    """Forecasts, by when they are due."""

    def margin(self, forecast: float) -> float:
        """Return by how much more than a forecast, in requests a second, may come."""
        return self.quantile * math.sqrt(forecast) if forecast >= LEAST_RATE else 0.0

    def judge(
        self, now: float, load: float, percentile: int, least: float = LEAST_RATE, since: float = -math.inf
    ) -> "ForecastError":
        """Compare the forecasts that are due, none of them before `since`, with the load that came.

        With its margin a forecast is to be as seldom too low as the percentile has it. Loads under `least`
        say nothing.
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
        """Note a forecast, unless another is due nearly at the same time."""
        if self.pending and due - self.pending[-1].at < apart:
            return self
        return replace(self, pending=(*self.pending, RatePoint(due, forecast)))


class Forecast(NamedTuple):
    """The load now, and the one to plan for, in requests a second."""

    load: float
    demand: Demand


@dataclass(frozen=True)
class Outlook:
    """What was seen of a service's load, and what is to be expected of it."""

    load: float | None = None
    """The rate, averaged over the time that a request stays."""
    average: float | None = None
    """The rate, averaged for as long as it takes to know it."""
    expected: float = 0.0
    """The load at the end of the horizon."""
    stay_seconds: float = 0.0
    """How long a request stays in a replica; 0 while that is not known."""
    busy_load: float = 0.0
    """The load of the busier hours of the last day."""
    seen_at: float | None = None
    seen_since: float = -math.inf
    """Since when there was no gap in which windows emptied."""
    windows: Windows = field(default_factory=Windows)
    """Over which rates were counted."""
    points: tuple[RatePoint, ...] = ()
    dispersion: float = 1.0
    """How many times as much rates vary as those of independent arrivals."""
    error: ForecastError = field(default_factory=ForecastError)

    @property
    def least(self) -> float:
        """The load from which on forecasts are compared."""
        return max(NIGHT * self.busy_load, LEAST_RATE)

    @property
    def forecast(self) -> Forecast | None:
        """Return the load to plan for, never less than the one that is there; None before any was seen."""
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
        the load to plan for is that percentile of what may come. What was there in a gap nobody knows: it
        counts for no longer than the rate after it has been counted.
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
        """Return the outlook without the forecasts that are due: what comes is not seen whole."""
        return replace(self, error=replace(self.error, pending=()))

    def _add_point(self, now: float, arrivals: Arrivals, windows: Windows) -> tuple[RatePoint, ...]:
        """Return the rates of the short window. Those of another window are no part of the same trend."""
        points = self.points if windows == self.windows else ()
        rate = arrivals.known if arrivals.recent is None else arrivals.recent
        return points if rate is None else add_point(points, RatePoint(now, rate), windows.recent)

    def _follow(self, rate: float, passed: float, window: float) -> float:
        """Return the average after so many seconds at a rate, no more above it than by chance."""
        average = _approach(self.average, rate, passed, self._choose_average(rate, window))
        chance = math.sqrt(self.dispersion * max(average, LEAST_RATE) / window)
        return min(average, rate + BEYOND_CHANCE * chance)

    def _choose_average(self, rate: float, least: float) -> float:
        """Return over how many seconds the rate is known to PRECISION, beside those of its window."""
        seconds = self.dispersion / (PRECISION * PRECISION * max(rate, self.average or 0.0, LEAST_RATE))
        return min(max(seconds - least, 0.0), LONGEST_AVERAGE)

    def look_ahead(self, arrivals: Arrivals, horizon_seconds: float) -> float:
        """Return the load after the horizon: of what is there a part stays, and the rest is what comes."""
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
        """Return the rate to which empty windows lead: while they fill, rates rise by themselves."""
        seconds = math.inf if self.seen_at is None else self.seen_at - self.seen_since
        if not 0 < seconds < self.windows.rate:
            return math.inf
        seen = ((arrivals.rate, self.windows.rate), (arrivals.recent, self.windows.recent))
        return max(rate * max(window / seconds, 1.0) for rate, window in seen if rate is not None)


def _approach(known: float | None, seen: float | None, passed: float, seconds: float) -> float:
    """Return an average over so many seconds, after some have passed."""
    if known is None or seen is None or seconds <= 0:
        return (known if seen is None else seen) or 0.0
    return known + (1 - math.exp(-passed / seconds)) * (seen - known)
