import random

from millrace_operator.autoscale.forecast import RatePoint, fit_trend, forecast_rate


def test_a_ramp_is_met_in_advance() -> None:
    points = [RatePoint(t, 1 + 0.1 * t) for t in range(0, 20, 2)]
    assert abs(forecast_rate(points, points[-1].rate, 10) - (points[-1].rate + 1.0)) < 1e-6


def test_a_falling_load_forecasts_no_less_than_now() -> None:
    points = [RatePoint(t, 10 - 0.1 * t) for t in range(0, 20, 2)]
    assert forecast_rate(points, 8.0, 60) == 8.0


def test_noise_is_no_trend() -> None:
    rng = random.Random(3)
    points = [RatePoint(t, 5 + rng.gauss(0, 0.5)) for t in range(0, 30, 2)]
    assert forecast_rate(points, 5.0, 60) == 5.0


def test_a_forecast_is_at_most_double() -> None:
    points = [RatePoint(t, t) for t in range(10)]
    assert forecast_rate(points, 9.0, 1000) == 18.0


def test_too_few_points_have_no_trend() -> None:
    assert fit_trend([RatePoint(0, 1), RatePoint(1, 5)]).slope == 0
    assert fit_trend([RatePoint(0, 1)] * 9).slope == 0
    assert forecast_rate([], 2.0, 10) == 2.0
