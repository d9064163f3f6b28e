"""Prometheus' arithmetic, with examples worked out by hand, and a target's scrapes: staleness, the look-back,
and counters that a restart resets.

The rules are those of https://prometheus.io/docs/prometheus/latest/querying/basics/#staleness and of
`increase` in https://prometheus.io/docs/prometheus/latest/querying/functions/.
"""

import pytest

from millrace_operator.autoscaler.simulate.batch import Counters, Sample
from millrace_operator.autoscaler.simulate.series import Series, find_span, histogram_quantile, increase

TIMES = [float(at) for at in range(0, 100, 5)]


def increase_of(times: list[float], values: list[float], end: float, window: float) -> float | None:
    span = find_span(times, end, window)
    return span and increase(span, values[span.first], values[span.last] - values[span.first])


def test_a_steady_counter_rises_by_its_rate_times_the_window() -> None:
    values = [1000 + 2 * at for at in TIMES]
    for end in (60.0, 61.5, 64.9):
        assert increase_of(TIMES, values, end, 30) == pytest.approx(60)


def test_a_window_leaves_out_the_sample_at_its_begin() -> None:
    """Of 30, 35, …, 60 the first counts no more; 25 s of samples stand for 30."""
    span = find_span(TIMES, 60, 30)
    assert span is not None
    assert (TIMES[span.first], TIMES[span.last], span.to_begin, span.to_end) == (35, 60, 5, 0)


def test_fewer_than_two_samples_have_no_increase() -> None:
    assert increase_of([0, 30, 60], [0, 1, 2], 60, 20) is None
    assert increase_of([], [], 60, 20) is None


def test_a_counter_that_began_in_the_window_is_not_taken_to_before_its_zero() -> None:
    """Half a mean distance would be 2.5 s before the first sample, where the counter was -1."""
    times, values = [50.0, 55.0, 60.0], [1.0, 5.0, 9.0]
    assert increase_of(times, values, 60, 60) == pytest.approx(8 * (10 + 1.25) / 10)


def test_a_gap_at_the_end_is_half_a_distance_at_most() -> None:
    """The last scrapes were lost: Prometheus does not extrapolate over all of the 12 s."""
    assert increase_of(TIMES, [2 * at for at in TIMES], 107, 60) == pytest.approx(2 * (45 + 3 + 2.5))


def test_a_counter_that_did_not_rise_has_no_increase() -> None:
    assert increase_of(TIMES, [7.0] * len(TIMES), 60, 30) == 0.0


def test_a_quantile_lies_within_its_bucket() -> None:
    assert histogram_quantile(0.5, (1, 2, 4), (0, 10, 0, 0)) == 1.5
    assert histogram_quantile(0.95, (1, 2, 4), (90, 0, 10, 0)) == 3.0
    assert histogram_quantile(0.5, (1, 2, 4), (8, 0, 0, 0)) == 0.5
    assert histogram_quantile(0.9, (1, 2, 4), (1, 0, 0, 9)) == 4
    assert histogram_quantile(0.9, (1, 2, 4), (0, 0, 0, 0)) is None


def scrape(at: float, received: int, first_tokens: int = 0) -> Sample:
    counters = Counters(received=received)
    counters.first_tokens[3] = first_tokens
    return counters.sample(at, running=7, waiting=0, kv_usage=0.0)


def record(*values: int, keep_seconds: float = 120.0) -> Series:
    """Return a series scraped every 5 s."""
    series = Series(keep_seconds)
    for number, value in enumerate(values):
        series.add(scrape(5.0 * number, value, value))
    return series


def rise(series: Series, end: float, window: float) -> float | None:
    found = series.increases(end, window)
    return None if found is None else found.of("received")


def test_a_failed_scrape_ends_the_present_value_until_the_next_good_one() -> None:
    series = record(1, 2, 3)
    assert series.find_newest(10.0) is not None
    series.mark_stale()
    assert series.find_newest(10.1) is None
    series.add(scrape(20.0, 4))
    newest = series.find_newest(20.0)
    assert newest is not None
    assert newest.at == 20.0


def test_rates_go_on_over_a_mark() -> None:
    series, marked = record(10, 20, 30, 40), record(10, 20, 30, 40)
    marked.mark_stale()
    assert rise(marked, 16.0, 20.0) == rise(series, 16.0, 20.0) == pytest.approx(40.0)


def test_without_a_mark_the_last_value_is_visible_for_five_minutes() -> None:
    series = record(1, 2)
    assert series.find_newest(5.0 + 299.9) is not None
    assert series.find_newest(5.0 + 300.0) is None
    assert rise(series, 200.0, 60.0) is None


def test_a_counter_that_fell_began_anew_at_zero() -> None:
    """It rose by 10 to 110, then from 0 to 5 and to 15: 25 in 15 s."""
    found = record(100, 110, 5, 15).increases(15.0, 16.0)
    assert found is not None
    assert found.of("received") == pytest.approx(25 * 16 / 15)
    counts = [0.0] * len(Counters().first_tokens)
    found.add_buckets("TimeToFirstToken", counts)
    assert counts[3] == pytest.approx(25 * 16 / 15)


def test_two_resets_in_a_window_both_count() -> None:
    assert rise(record(100, 3, 13, 4, 8), 20.0, 21.0) == pytest.approx((3 + 10 + 4 + 4) * 21 / 20)


def test_a_reset_outside_of_the_window_does_not_count() -> None:
    assert rise(record(100, 0, 10, 20), 15.0, 10.0) == pytest.approx(20.0)


def test_a_counter_that_has_passed_its_old_value_hides_its_reset() -> None:
    """As in the real one: from 3 to 4 nobody sees the reset in between."""
    assert rise(record(1, 3, 4), 10.0, 11.0) == pytest.approx(3 * (10 + 1) / 10)


def test_what_is_forgotten_takes_its_resets_with_it() -> None:
    series = record(100, 0, *range(10, 1000, 10), keep_seconds=20.0)
    assert rise(series, 500.0, 20.0) == pytest.approx(40.0)
    assert len(series.times) <= 10
