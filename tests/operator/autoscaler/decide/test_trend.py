import random

import pytest

from millrace_operator.autoscaler.decide.trend import RatePoint, add_point, extrapolate, fit_trend


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
