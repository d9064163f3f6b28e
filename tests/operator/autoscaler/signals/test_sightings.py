"""When replicas were seen last, and what is said of those that are silent."""

from millrace_operator.autoscaler.signals.scrapes import NEVER_SEEN, Sighting

NOW = 1_700_000_000.0
"""22:13:20 UTC."""


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
