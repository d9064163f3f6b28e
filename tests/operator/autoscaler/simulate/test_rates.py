"""Prometheus' arithmetic, with examples worked out by hand from its documented rules."""

import pytest

from millrace_operator.autoscaler.simulate.series import find_span, histogram_quantile, increase

TIMES = [float(at) for at in range(0, 100, 5)]


def rise(times: list[float], values: list[float], end: float, window: float) -> float | None:
    span = find_span(times, end, window)
    return span and increase(span, values[span.first], values[span.last] - values[span.first])


def test_a_steady_counter_rises_by_its_rate_times_the_window() -> None:
    values = [1000 + 2 * at for at in TIMES]
    for end in (60.0, 61.5, 64.9):
        assert rise(TIMES, values, end, 30) == pytest.approx(60)


def test_a_window_leaves_out_the_sample_at_its_begin() -> None:
    """Of 30, 35, …, 60 the first counts no more; 25 s of samples stand for 30."""
    span = find_span(TIMES, 60, 30)
    assert span is not None
    assert (TIMES[span.first], TIMES[span.last], span.to_begin, span.to_end) == (35, 60, 5, 0)


def test_fewer_than_two_samples_tell_nothing() -> None:
    assert rise([0, 30, 60], [0, 1, 2], 60, 20) is None
    assert rise([], [], 60, 20) is None


def test_a_counter_that_began_in_the_window_is_not_taken_to_before_its_zero() -> None:
    """Half a mean distance would be 2.5 s before the first sample, where the counter was -1."""
    times, values = [50.0, 55.0, 60.0], [1.0, 5.0, 9.0]
    assert rise(times, values, 60, 60) == pytest.approx(8 * (10 + 1.25) / 10)


def test_a_gap_at_the_end_is_half_a_distance_at_most() -> None:
    """The last scrapes were lost: what came in 12 s is not made up."""
    assert rise(TIMES, [2 * at for at in TIMES], 107, 60) == pytest.approx(2 * (45 + 3 + 2.5))


def test_a_counter_that_did_not_rise_has_no_increase() -> None:
    assert rise(TIMES, [7.0] * len(TIMES), 60, 30) == 0.0


def test_a_quantile_lies_within_its_bucket() -> None:
    assert histogram_quantile(0.5, (1, 2, 4), (0, 10, 0, 0)) == 1.5
    assert histogram_quantile(0.95, (1, 2, 4), (90, 0, 10, 0)) == 3.0
    assert histogram_quantile(0.5, (1, 2, 4), (8, 0, 0, 0)) == 0.5
    assert histogram_quantile(0.9, (1, 2, 4), (1, 0, 0, 9)) == 4
    assert histogram_quantile(0.9, (1, 2, 4), (0, 0, 0, 0)) is None
