"""Whether a rate rises or varies beyond chance."""

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator

import pytest

from millrace_operator.autoscaler.decide.forecast import extrapolate
from millrace_operator.autoscaler.decide.trend import (
    LARGEST_DISPERSION,
    OUTLIER_SURPRISE,
    RatePoint,
    add_point,
    fit_trend,
    follow_dispersion,
    measure_surprise,
)

WINDOW = 20.0


def test_a_ramp_is_met_in_advance() -> None:
    points = [RatePoint(t, 1000 + 100 * t) for t in range(0, 20, 2)]
    gained = extrapolate(points, points[-1].rate, 10, 20) - points[-1].rate
    assert 1900 < gained <= 2000  # 10 s, and 10 s more since the middle of the newest window


def test_a_trend_is_believed_for_no_longer_than_it_was_seen() -> None:
    """A load that has jumped looks like one that rises, and would be met by many times too much."""
    points = [RatePoint(t, 1000 + 10 * t) for t in range(0, 45, 2)]
    gained = extrapolate(points, points[-1].rate, 300, 20) - points[-1].rate
    assert 400 < gained <= 550


def test_a_falling_load_forecasts_no_less_than_now() -> None:
    points = [RatePoint(t, 10 - 0.1 * t) for t in range(0, 20, 2)]
    assert extrapolate(points, 8.0, 60, 20) == 8.0


def test_noise_is_no_trend() -> None:
    rng = random.Random(3)
    points = [RatePoint(t, 5 + rng.gauss(0, 0.5)) for t in range(0, 30, 2)]
    assert extrapolate(points, 5.0, 60, 20) == 5.0


def poisson_points(rate: float, seconds: int, seed: int) -> list[RatePoint]:
    """Every 2 s the rate over the last 20 s, as Prometheus gives it: neighbours share nine tenths."""
    rng, arrivals, at = random.Random(seed), [], 0.0
    while at < seconds + 20:
        at += rng.expovariate(rate)
        arrivals.append(at)
    return [
        RatePoint(end, sum(end - 20 < arrival <= end for arrival in arrivals) / 20)
        for end in range(20, seconds + 20, 2)
    ]


@pytest.mark.parametrize("rate", [0.5, 5.0, 20.0])
def test_chance_arrivals_are_no_trend(rate: float) -> None:
    points = poisson_points(rate, 1200, seed=11)
    ticks = [points[: end + 1] for end in range(30, len(points))]
    gains = [
        extrapolate(seen[-31:], seen[-1].rate, 60, 20) / seen[-1].rate for seen in ticks if seen[-1].rate
    ]
    assert sum(gain > 1 for gain in gains) <= 0.01 * len(gains)


def test_a_forecast_is_at_most_double() -> None:
    points = [RatePoint(t, t) for t in range(10)]
    assert extrapolate(points, 9.0, 1000, 20) == 18.0


def test_what_bursts_do_is_no_trend_where_they_are_usual() -> None:
    points = [RatePoint(t, 5 + 0.5 * t) for t in range(0, 30, 2)]
    assert extrapolate(points, 20.0, 60, 20) > 20.0
    assert extrapolate(points, 20.0, 60, 20, dispersion=10.0) == 20.0


def test_too_few_points_have_no_trend() -> None:
    assert fit_trend([RatePoint(0, 1), RatePoint(1, 5)], 20).slope == 0
    assert fit_trend([RatePoint(0, 1)] * 9, 20).slope == 0
    assert extrapolate([], 2.0, 10, 20) == 2.0


def test_a_rate_is_a_point_once_and_old_or_crowded_points_go() -> None:
    points: tuple[RatePoint, ...] = ()
    for at, rate in [(0.0, 1.0), (2.0, 1.0), (4.0, 1.0), (20.0, 2.0), (20.5, 3.0), (21.0, 4.0), (67.0, 5.0)]:
        points = add_point(points, RatePoint(at, rate), 20.0)
        if at == 21.0:
            assert points == ((0.0, 1.0), (20.0, 2.0), (21.0, 4.0))
    assert points == ((67.0, 5.0),)


def draw_arrivals(rate_at: Callable[[float], float], seconds: float, burst: int, seed: int) -> list[float]:
    """Arrivals by chance, each of `burst` requests at once."""
    rng, at, found = random.Random(seed), 0.0, []
    while (at := at + rng.expovariate(rate_at(at) / burst)) < seconds:
        found += [at] * burst
    return found


def follow_load(rate_at: Callable[[float], float], seconds: float, burst: int = 1, seed: int = 5) -> float:
    """Return the dispersion that is found, looking every 2 s."""
    arrivals, dispersion = draw_arrivals(rate_at, seconds, burst, seed), 1.0
    for points in list_points(arrivals, seconds):
        dispersion = follow_dispersion(dispersion, measure_surprise(points, WINDOW), 2.0)
    return dispersion


def list_points(arrivals: list[float], seconds: float) -> Iterator[tuple[RatePoint, ...]]:
    points: tuple[RatePoint, ...] = ()
    for now in range(20, int(seconds), 2):
        rate = (bisect_right(arrivals, now) - bisect_right(arrivals, now - WINDOW)) / WINDOW
        points = add_point(points, RatePoint(now, rate), WINDOW)
        yield points


def test_chance_arrivals_vary_as_they_do() -> None:
    assert 1.0 <= follow_load(lambda _: 5.0, 3600) < 1.4


@pytest.mark.parametrize("burst", [4, 9])
def test_bursts_are_found(burst: int) -> None:
    assert follow_load(lambda _: 10.0, 7200, burst) == pytest.approx(burst, rel=0.4)


def test_a_load_that_rises_for_minutes_is_no_burst() -> None:
    assert follow_load(lambda at: 5 + at / 4, 240) < 1.3


def test_a_start_from_nothing_and_a_step_are_no_bursts() -> None:
    assert follow_load(lambda at: 10.0 if at > 60 else 0.01, 240) < 1.8
    assert follow_load(lambda at: 40.0 if at > 600 else 10.0, 720) < 2.5


def test_no_load_and_too_short_a_time_have_no_surprise() -> None:
    assert measure_surprise((), WINDOW) is None
    assert measure_surprise([RatePoint(0, 5), RatePoint(20, 6)], WINDOW) is None
    assert measure_surprise([RatePoint(0, 0), RatePoint(20, 0), RatePoint(40, 0)], WINDOW) is None
    assert measure_surprise([RatePoint(0, 5), RatePoint(30, 6), RatePoint(40, 5)], WINDOW) is None
    assert follow_dispersion(3.0, None, 60) == 3.0


def test_a_bend_is_measured_by_what_chance_would_bend() -> None:
    points = [RatePoint(0, 4), RatePoint(20, 5), RatePoint(40, 3)]
    assert measure_surprise(points, WINDOW) == pytest.approx((4 - 10 + 3) ** 2 * 20 / (6 * 4))


def test_one_surprise_counts_for_only_so_much() -> None:
    assert follow_dispersion(2.0, 1e6, 1e9) == 2.0 * OUTLIER_SURPRISE
    assert follow_dispersion(50.0, 1e6, 1e9) == LARGEST_DISPERSION
    assert follow_dispersion(2.0, 0.0, 1e9) == 1.0
