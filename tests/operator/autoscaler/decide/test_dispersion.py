import random
from bisect import bisect_right
from collections.abc import Callable, Iterator

import pytest

from millrace_operator.autoscaler.decide.trend import (
    LARGEST_DISPERSION,
    OUTLIER_SURPRISE,
    RatePoint,
    add_point,
    follow_dispersion,
    measure_surprise,
)

WINDOW = 20.0


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


def test_nothing_is_said_of_no_load_or_too_short_a_time() -> None:
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
