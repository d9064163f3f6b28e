import random

import pytest

from millrace_operator.autoscale.forecast import RatePoint, fit_trend, forecast_rate


def test_a_ramp_is_met_in_advance() -> None:
    points = [RatePoint(t, 1 + 0.1 * t) for t in range(0, 20, 2)]
    assert abs(forecast_rate(points, points[-1].rate, 10, 20) - (points[-1].rate + 1.0)) < 1e-6


def test_a_falling_load_forecasts_no_less_than_now() -> None:
    points = [RatePoint(t, 10 - 0.1 * t) for t in range(0, 20, 2)]
    assert forecast_rate(points, 8.0, 60, 20) == 8.0


def test_noise_is_no_trend() -> None:
    rng = random.Random(3)
    points = [RatePoint(t, 5 + rng.gauss(0, 0.5)) for t in range(0, 30, 2)]
    assert forecast_rate(points, 5.0, 60, 20) == 5.0


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
        forecast_rate(seen[-31:], seen[-1].rate, 60, 20) / seen[-1].rate for seen in ticks if seen[-1].rate
    ]
    assert sum(gain > 1 for gain in gains) <= 0.01 * len(gains)


def test_a_forecast_is_at_most_double() -> None:
    points = [RatePoint(t, t) for t in range(10)]
    assert forecast_rate(points, 9.0, 1000, 20) == 18.0


def test_too_few_points_have_no_trend() -> None:
    assert fit_trend([RatePoint(0, 1), RatePoint(1, 5)], 20).slope == 0
    assert fit_trend([RatePoint(0, 1)] * 9, 20).slope == 0
    assert forecast_rate([], 2.0, 10, 20) == 2.0
