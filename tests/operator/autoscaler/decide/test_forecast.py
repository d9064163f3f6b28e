"""Whole sequences of loads, and the planned load."""

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator

import pytest

from millrace_operator.autoscaler.decide.forecast import (
    LARGEST_ERROR,
    Arrivals,
    Forecast,
    ForecastError,
    Outlook,
)
from millrace_operator.autoscaler.signals.scrapes import DEFAULT_WINDOWS, fit_windows

TICK = 2.0


def look(
    outlook: Outlook, now: float, rate: float, recent: float | None = None, stay: float = 0.0
) -> Outlook:
    return outlook.see(
        now, Arrivals(rate, rate if recent is None else recent), DEFAULT_WINDOWS, stay, 100.0, percentile=98
    )


def read_forecast(outlook: Outlook) -> Forecast:
    assert outlook.forecast is not None
    return outlook.forecast


def draw_arrivals(rate_at: Callable[[float], float], burst: int, seed: int, seconds: float) -> list[float]:
    """Draw when requests come, so many at once each time."""
    rng, at, found = random.Random(seed), 0.0, []
    while at < seconds:
        at += rng.expovariate(rate_at(at) / burst)
        found += [at] * burst
    return found


def watch(arrivals: list[float], seconds: float, stay: float = 0.0) -> Iterator[Outlook]:
    """Look every 2 s at the rates of the last 60 and 20 s, as Prometheus counts them."""
    outlook, now = Outlook(), 60.0
    while now < seconds:
        seen = bisect_right(arrivals, now)
        rates = [(seen - bisect_right(arrivals, now - window)) / window for window in (60.0, 20.0)]
        outlook = look(outlook, now, *rates, stay=stay)
        yield outlook
        now += TICK


def jump(outlook: Outlook, now: float, hours: float) -> tuple[Outlook, float]:
    """See a load that jumps every few minutes."""
    for tick in range(int(hours * 1800)):
        outlook = look(outlook, now, 2.0 + 2.0 * (tick // 180 % 5))
        now += TICK
    return outlook, now


@pytest.mark.parametrize("per_second", [1 / 60, 0.05, 0.2])
def test_a_night_of_few_requests_forgets_nothing_of_the_day(per_second: float) -> None:
    """Such as those of a probe."""
    day, now = jump(Outlook(), 0.0, hours=3.0)
    rng, arrivals, at = random.Random(1), list[float](), now
    while at < now + 8 * 3600:
        at += rng.expovariate(per_second)
        arrivals.append(at)
    night, end = day, now + 8 * 3600
    while now < end:
        seen = bisect_right(arrivals, now)
        rates = [(seen - bisect_right(arrivals, now - window)) / window for window in (60.0, 20.0)]
        night = look(night, now, *rates)
        now += TICK
    assert night.error.margin(10.0) >= 0.9 * day.error.margin(10.0)
    assert night.dispersion >= 0.9 * day.dispersion


def test_a_spike_of_half_an_hour_makes_no_night_of_the_day_after() -> None:
    """A load test: on and off, twenty times the usual load."""
    outlook, now = Outlook(), 0.0
    for tick in range(900):
        outlook = look(outlook, now, 100.0 if tick // 45 % 2 else 1.0)
        now += TICK
    spiked = outlook
    for _ in range(4 * 1800):
        outlook = look(outlook, now, 5.0)
        now += TICK
    assert outlook.dispersion < 2.0
    assert outlook.error.quantile < spiked.error.quantile - 1.0


def test_what_comes_after_a_night_without_answers_is_not_taken_for_the_whole_night() -> None:
    outlook, now = Outlook(), 0.0
    for _ in range(1800):
        outlook = look(outlook, now, 5.0)
        now += TICK
    before = outlook.busy_load
    assert look(outlook, now + 8 * 3600, 60.0).busy_load < 1.5 * before


def test_forecasts_that_came_due_while_nothing_was_seen_are_not_judged_by_what_comes_later() -> None:
    outlook = Outlook()
    for tick in range(300):
        outlook = look(outlook, TICK * tick, 10.0)
    calm, back = outlook.error.quantile, look(outlook, 600.0 + 1200.0, 40.0)
    assert back.error.quantile == calm
    assert len(back.error.pending) == 1


@pytest.mark.parametrize("gap", [0.0, 600.0])
def test_windows_that_fill_are_no_load_that_rises(gap: float) -> None:
    """Prometheus begins, or comes back: its rates count the time in which it saw nothing."""
    outlook, began = Outlook(), 0.0
    if gap:
        outlook = look(outlook, 0.0, 50.0)
        began = gap
    expected = []
    for tick in range(60):
        seen = tick * TICK
        outlook = look(outlook, began + seen, min(seen / 60, 1) * 50.0, min(seen / 20, 1) * 50.0)
        expected.append(outlook.expected)
    assert max(expected) <= 55.0


def test_nothing_seen_is_nothing_known() -> None:
    assert Outlook().forecast is None
    unknown = Outlook().see(0.0, Arrivals(None, None), DEFAULT_WINDOWS, 0.0, 100.0, percentile=98)
    assert unknown.forecast is None
    seen = look(Outlook(), 0.0, 5.0)
    assert seen.see(2.0, Arrivals(None, None), DEFAULT_WINDOWS, 0.0, 100.0, percentile=98) == seen


def test_one_known_window_is_enough() -> None:
    assert (
        read_forecast(
            Outlook().see(0.0, Arrivals(None, 4.0), DEFAULT_WINDOWS, 0.0, 100.0, percentile=98)
        ).load
        == 4.0
    )
    assert (
        read_forecast(
            Outlook().see(0.0, Arrivals(4.0, None), DEFAULT_WINDOWS, 0.0, 100.0, percentile=98)
        ).load
        == 4.0
    )


@pytest.mark.parametrize("rate", [0.5, 5.0, 50.0])
def test_a_steady_load_is_planned_with_what_chance_may_add(rate: float) -> None:
    outlooks = list(watch(draw_arrivals(lambda _: rate, 1, 3, 3000.0), 3000.0))
    planned = [read_forecast(outlook).demand.planned for outlook in outlooks[-500:]]
    assert rate < sum(planned) / len(planned) < rate + 1.2 * rate**0.5
    assert max(planned) < 1.6 * sum(planned) / len(planned)


def test_a_jump_beyond_chance_counts_at_once() -> None:
    outlooks = list(watch(draw_arrivals(lambda at: 4.0 if at < 1000 else 12.0, 1, 5, 1100.0), 1080.0))
    before, after = outlooks[469], outlooks[484]  # at 998 and 1028 s
    assert read_forecast(before).demand.planned < 8.0
    assert read_forecast(after).demand.planned > 10.0


def test_a_burst_of_a_service_whose_requests_come_in_bursts_changes_little() -> None:
    """Sixteen at once, every half a minute or so, of which each stays for two minutes. Five such services."""
    ratios = []
    for seed in range(1, 6):
        outlooks = list(watch(draw_arrivals(lambda _: 0.5, 16, seed, 7000.0), 7000.0, stay=120.0))
        planned = [read_forecast(outlook).demand.planned for outlook in outlooks[-1500:]]
        ratios.append(max(planned) / max(read_forecast(outlook).load for outlook in outlooks[-1500:]))
        assert outlooks[-1].dispersion > 5
        assert sum(planned) / len(planned) < 1.3
    assert sum(ratios) / len(ratios) < 1.8


def test_what_is_there_stays_for_as_long_as_requests_do() -> None:
    """Arrivals end; replicas are needed until all present requests are served."""
    outlook = Outlook()
    for tick in range(100):
        outlook = look(outlook, TICK * tick, 8.0, stay=200.0)
    for tick in range(100, 150):
        outlook = look(outlook, TICK * tick, 0.0, stay=200.0)
    assert 4.0 < read_forecast(outlook).load < 6.0
    assert read_forecast(outlook).demand.planned >= read_forecast(outlook).load


def test_what_forecasts_were_short_of_is_kept_in_reserve() -> None:
    """Steps of two more, each coming within a cold start, for hours."""
    outlook, low = Outlook(), []
    for tick in range(5400):
        rate = 2.0 + 2.0 * (tick // 180 % 5)
        outlook = look(outlook, TICK * tick, rate)
        if tick % 180 == 179 and tick > 1800 and rate < 10:
            low.append(read_forecast(outlook).demand.planned - (rate + 2.0))
    assert min(low) > -1.0
    assert max(low) < 3.0


def test_a_load_that_never_surprises_needs_no_reserve() -> None:
    outlook = Outlook()
    for tick in range(20_000):
        outlook = look(outlook, TICK * tick, 8.0)
    assert read_forecast(outlook).demand.planned < 8.5


def test_a_stricter_promise_keeps_more_in_reserve() -> None:
    def reserve(percentile: int) -> float:
        rng, error = random.Random(3), ForecastError()
        for tick in range(4000):
            error = error.judge(10.0 * tick, 10.0 + rng.gauss(0, 2), percentile).expect(
                10.0 * tick + 10.0, 10.0, 5.0
            )
        return error.margin(10.0)

    assert 2.5 < reserve(95) < 4.2
    assert reserve(50) < 1.0
    assert reserve(95) < reserve(99)


def test_an_end_of_the_load_is_no_chance() -> None:
    outlook = Outlook()
    for tick in range(900):
        outlook = look(outlook, TICK * tick, 0.4 if tick < 600 else 0.0)
    assert read_forecast(outlook).demand.planned < 0.4


def test_a_margin_has_a_bound() -> None:
    error = ForecastError()
    for tick in range(2000):
        error = error.judge(10.0 * tick, 1000.0, 95).expect(10.0 * tick + 10.0, 1.0, 5.0)
    assert error.quantile == LARGEST_ERROR
    assert len(error.pending) <= 2


def test_forecasts_that_are_due_nearly_together_are_noted_once() -> None:
    error = ForecastError()
    for tick in range(100):
        error = error.expect(TICK * tick + 100.0, 1.0, 10.0)
    assert len(error.pending) == 20


def test_rates_over_another_window_are_no_part_of_the_same_trend() -> None:
    outlook = Outlook()
    for tick in range(10):
        outlook = look(outlook, TICK * tick, 10.0 + tick)
    assert len(outlook.points) == 10
    assert (
        len(outlook.see(20.0, Arrivals(30.0, 30.0), fit_windows(60.0), 0.0, 100.0, percentile=98).points) == 1
    )


def test_a_night_without_load_forgets_no_reserve() -> None:
    outlook = Outlook(error=ForecastError(quantile=2.0))
    for tick in range(5000):
        outlook = look(outlook, TICK * tick, 0.0)
    assert outlook.error.quantile == 2.0
    assert read_forecast(outlook).demand.planned == 0.0


def test_bursts_are_seen_where_both_windows_are_the_same() -> None:
    """At scrape intervals of 15 s and more. Rates were then believed as if nothing came in bursts."""
    windows, outlook = fit_windows(30.0), Outlook()
    arrivals = draw_arrivals(lambda _: 0.5, 16, 7, 14_000.0)
    for now in range(120, 14_000, 30):
        rate = sum(now - 120 < at <= now for at in arrivals) / 120
        outlook = outlook.see(now, Arrivals(rate, rate), windows, 0.0, 100.0, percentile=95)
    assert 8 < outlook.dispersion < 32
