"""How often replicas are scraped, how far back to look, and when each replica was seen last."""

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, cycle, islice, repeat

import pytest

from millrace_operator.autoscaler.signals.scrapes import (
    DEFAULT_WINDOWS,
    NEVER_SEEN,
    Cadence,
    Sighting,
    Windows,
    fit_windows,
)

NOW = 1_700_000_000.0
"""22:13:20 UTC."""
INTERVALS = [2.0, 5.0, 15.0, 30.0, 60.0]
BEGAN = 1_700_000_000.0


def watch(times: Sequence[float], until: float, pods: int = 1, tick: float = 2.0) -> Iterator[Cadence]:
    """Look every tick at pods that are scraped at these times, each at a phase of its own."""
    cadence, now = Cadence(), 0.0
    while now < until:
        phases = {f"pod-{number}": 0.7 * number for number in range(pods)}
        seen = {
            pod: max((at + phase for at in times if at + phase <= now), default=None)
            for pod, phase in phases.items()
        }
        cadence = cadence.observe({pod: BEGAN + at for pod, at in seen.items() if at is not None})
        yield cadence
        now += tick


def last(cadences: Iterable[Cadence]) -> float | None:
    *_, final = cadences
    return final.interval_seconds


def every(interval: float, count: int, since: float = 0.0) -> list[float]:
    return [since + interval * number for number in range(count)]


@pytest.mark.parametrize("interval", INTERVALS)
def test_the_interval_is_read_off_the_samples(interval: float) -> None:
    assert last(watch(every(interval, 20), 20 * interval)) == pytest.approx(interval)


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize("seed", range(5))
def test_half_of_the_scrapes_may_be_lost(interval: float, seed: int) -> None:
    """Chance decides which. It is never taken for shorter, and nearly always for what it is."""
    rng = random.Random(seed)
    times = [at for at in every(interval, 200) if rng.random() < 0.5]
    found = [c.interval_seconds for c in watch(times, 200 * interval, pods=3, tick=interval) if c.gaps][30:]
    assert min(filter(None, found)) == pytest.approx(interval)
    assert sum(seconds == pytest.approx(interval) for seconds in found) > 0.9 * len(found)


@pytest.mark.parametrize(
    ("before", "after"), [(5.0, 60.0), (60.0, 5.0), (5.0, 15.0), (30.0, 15.0), (15.0, 30.0)]
)
@pytest.mark.parametrize("pods", [1, 3])
def test_a_changed_interval_is_followed_within_five_of_its_scrapes(
    before: float, after: float, pods: int
) -> None:
    times = every(before, 40)
    times += every(after, 30, since=times[-1] + after)
    changed = times[39]
    assert last(watch(times, changed, pods)) == pytest.approx(before)
    assert last(watch(times, changed + 5 * after, pods)) == pytest.approx(after)


@pytest.mark.parametrize("down_seconds", [7.0, 61.0, 900.0])
def test_a_restart_of_prometheus_changes_nothing(down_seconds: float) -> None:
    """It leaves one long gap, and its next scrape may come at another phase: one short gap."""
    times = every(5.0, 30)
    times += [times[-1] + down_seconds, times[-1] + down_seconds + 1.5]
    times += every(5.0, 30, since=times[-1] + 5.0)
    known = [cadence.interval_seconds for cadence in watch(times, times[-1]) if len(cadence.gaps) == 1][10:]
    assert set(map(round, filter(None, known))) == {5}


def test_one_lost_scrape_of_all_replicas_at_once_changes_nothing() -> None:
    times = [at for number, at in enumerate(every(15.0, 40)) if number != 20]
    known = [cadence.interval_seconds for cadence in watch(times, 600.0, pods=20) if cadence.gaps]
    assert {round(seconds) for seconds in known if seconds} == {15}


def test_an_answer_now_of_one_and_now_of_the_other_of_a_pair_is_no_shorter_interval() -> None:
    """Behind one address, a pair takes turns for minutes; each change leaves one gap that is too short."""
    gaps = cycle([15.0] * 9 + [7.0])
    times = list(accumulate(islice(gaps, 100), initial=0.0))
    known = [cadence.interval_seconds for cadence in watch(times, times[-1]) if cadence.gaps]
    assert {round(seconds) for seconds in known[20:] if seconds} == {15}


def test_before_two_samples_of_a_replica_the_interval_is_unknown() -> None:
    assert Cadence().interval_seconds is None
    assert last(watch(every(30.0, 5), 20.0)) is None


def test_a_new_pod_says_nothing_about_the_interval() -> None:
    cadence = Cadence().observe({"a": 100.0}).observe({"a": 105.0, "b": 3.0})
    assert cadence.interval_seconds == 5.0


def test_when_all_replicas_are_replaced_the_interval_stays_known() -> None:
    """The new ones have no two samples for twice the interval."""
    cadence = Cadence()
    for at in every(60.0, 5):
        cadence = cadence.observe({"old": at})
    for at in (300.0, 302.0):
        cadence = cadence.observe({"new": at - at % 60.0})
    assert cadence.interval_seconds == 60.0
    for at in every(5.0, 3, since=305.0):
        cadence = cadence.observe({"new": at})
    assert cadence.interval_seconds == 5.0


def test_an_outage_in_which_nothing_is_known_forgets_nothing() -> None:
    cadence = Cadence()
    for at in every(30.0, 5):
        cadence = cadence.observe({"a": at})
    for nothing in repeat({}, 100):
        cadence = cadence.observe(nothing)
    assert cadence.interval_seconds == 30.0


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


def test_what_was_seen_outlives_its_series_and_not_its_pod() -> None:
    seen = NEVER_SEEN.observe([Sighting("a", "", NOW), Sighting("b", "", NOW)], ["a", "b", "new"])
    assert seen.observe([], ["a", "new"]).newest == {"a": NOW}
    assert seen.observe([Sighting("a", "", NOW - 60)], ["a"]).newest == {"a": NOW}


def test_the_times_are_those_of_one_source_until_it_stops() -> None:
    seen = NEVER_SEEN
    for second in range(0, 60, 5):
        seen = seen.observe(
            [Sighting("a", "one", NOW + second), Sighting("a", "two", NOW + second + 2)], ["a"]
        )
        assert seen.by_one_source(15.0) == {"a": NOW + second}
    for second in range(60, 80, 5):
        seen = seen.observe([Sighting("a", "two", NOW + second + 2)], ["a"])
    assert seen.by_one_source(15.0) == {"a": NOW + 77}
    assert seen.newest == {"a": NOW + 77}


def test_three_silent_pods_are_named_and_the_others_counted() -> None:
    seen = NEVER_SEEN.observe([Sighting("b", "", NOW)], ["b"])
    assert seen.describe(["a"], 15.0) == "no samples of the last 15 s of a (none so far)"
    assert seen.describe("edcba", 90.0) == (
        "no samples of the last 90 s of a (none so far), b (none since 22:13:20 UTC), "
        "c (none so far) and 2 more"
    )
