"""How far back to look, by how often replicas are scraped."""

import pytest

from millrace_operator.autoscale.windows import DEFAULT_WINDOWS, Cadence, Windows, fit_windows


def watch(interval: float, seconds: float, *, tick: float = 2.0, lost: int = 0) -> Cadence:
    """Look every tick at two pods, of whose scrapes every `lost`-th fails."""
    cadence = Cadence()
    for number in range(int(seconds / tick)):
        scrapes = int(number * tick // interval)
        if lost and scrapes % lost == 0:
            scrapes -= 1
        cadence = cadence.observe({"a": scrapes * interval, "b": scrapes * interval + 0.7})
    return cadence


@pytest.mark.parametrize("interval", [2.0, 5.0, 15.0, 30.0, 60.0])
def test_the_interval_is_read_off_the_samples(interval: float) -> None:
    assert watch(interval, 600).interval_seconds == pytest.approx(interval)
    assert watch(interval, 600, lost=3).interval_seconds == pytest.approx(interval)


def test_before_two_samples_of_a_replica_the_interval_is_unknown() -> None:
    assert Cadence().interval_seconds is None
    assert watch(30.0, 20).interval_seconds is None


def test_a_new_pod_tells_nothing_of_the_interval() -> None:
    cadence = Cadence().observe({"a": 100.0}).observe({"a": 105.0, "b": 3.0}).observe({"c": 400.0})
    assert cadence.gaps == (5.0,)


def test_a_short_interval_keeps_the_default_windows() -> None:
    assert fit_windows(None) == fit_windows(1.0) == fit_windows(5.3) == DEFAULT_WINDOWS


@pytest.mark.parametrize("interval", [15.0, 30.0, 60.0])
def test_every_window_holds_four_scrapes_and_samples_of_three_are_fresh(interval: float) -> None:
    windows = fit_windows(interval)
    assert min(windows.rate, windows.recent, windows.latency) >= 4 * interval
    assert windows.max_age >= 3 * interval


def test_services_of_nearly_one_interval_share_their_queries() -> None:
    assert fit_windows(28.0) == fit_windows(31.0) == Windows(120.0, 120.0, 120.0, 90.0)
    assert fit_windows(1000.0).max_age == 360.0
