"""The record of changes: bounded whatever is in it, and read without trust."""

import json
from typing import Any

import pytest

from millrace_operator.api.change_record import (
    NUM_RECORDED,
    RECORD_BYTES,
    merge_changes,
    read_changes,
    render_changes,
)

MESSAGE = "14.2 req/s, 18 expected; one replica carries 2.6 → 6 replicas, by the forecast"


def make_change(minute: int, message: str = MESSAGE) -> dict[str, Any]:
    at = f"2026-01-{1 + minute // 1440:02d}T{minute // 60 % 24:02d}:{minute % 60:02d}:00Z"
    words = {"reason": "ScalingUp", "binding": "forecast", "message": message}
    return {"at": at, "from": minute % 7, "to": minute % 7 + 1, **words}


def with_load(change: dict[str, Any]) -> dict[str, Any]:
    names = ("arrivalsPerSecond", "promptTokens", "generationTokens", "perReplicaPerSecond")
    return {**change, "load": dict(zip(names, ("14.2", "3100", "489", "2.67"), strict=True))}


def test_it_is_read_as_it_was_written() -> None:
    changes = [make_change(minute) for minute in range(20)]
    assert read_changes(render_changes(changes)) == changes
    assert read_changes(render_changes([])) == []


@pytest.mark.parametrize(
    "load",
    [
        {"arrivalsPerSecond": "14.2", "promptTokens": "3100", "perReplicaPerSecond": "2.6e-05"},
        dict.fromkeys(("arrivalsPerSecond", "promptTokens", "generationTokens", "perReplicaPerSecond"), "0"),
    ],
)
def test_the_load_of_a_change_is_read_as_it_was_written(load: dict[str, str]) -> None:
    changes = [make_change(1), {**make_change(2), "load": load}]
    assert read_changes(render_changes(changes)) == changes


def test_two_hundred_usual_changes_are_kept_with_most_of_their_words() -> None:
    changes = [with_load(make_change(minute)) for minute in range(300)]
    found = read_changes(render_changes(changes))
    assert [one["at"] for one in found] == [one["at"] for one in changes[-NUM_RECORDED:]]
    told = [bool(one["message"]) for one in found]
    assert told == sorted(told)
    assert sum(told) >= 100


@pytest.mark.parametrize("letter", ["x", '"', "\u2192", "\U0001f600"])
def test_it_has_a_bound_whatever_the_changes_say(letter: str) -> None:
    words = {"reason": letter * 64, "binding": letter * 256, "message": letter * 1024}
    text = render_changes([{**make_change(minute), **words} for minute in range(NUM_RECORDED)])
    assert len(json.dumps(text)) <= RECORD_BYTES + 2
    found = read_changes(text)
    assert found[-1]["at"] == make_change(NUM_RECORDED - 1)["at"]
    assert found[-1]["message"] == letter * 1024


@pytest.mark.parametrize(
    "line",
    [
        "",
        "no JSON",
        "[1, 2]",
        "{}",
        '["yesterday", 1, 2, "a", "b", "c"]',
        '["2026-01-01T00:00:00", 1, 2, "a", "b", "c"]',
        '["2026-01-01T00:00:00Z", -1, 2, "a", "b", "c"]',
        '["2026-01-01T00:00:00Z", true, 2, "a", "b", "c"]',
        '["2026-01-01T00:00:00Z", 1, 2.5, "a", "b", "c"]',
        '["2026-01-01T00:00:00Z", 1, 2, "a", "b"]',
        '["2026-01-01T00:00:00Z", 1, 2, "a", "b", "\\u001b[2J"]',
        '["2026-01-01T00:00:00Z", 1, 2, "a", "b", 7]',
        '["2026-01-01T00:00:00Z", 1, 2, "a", "b", "c", 7]',
        '["2026-01-01T00:00:00Z", 1, 2, "a", "b", "c", "1234"]',
        '["2026-01-01T00:00:00Z", 1, 2, "a", "b", "c", [1, 2, 3]]',
        '["2026-01-01T00:00:00Z", 1, 2, "a", "b", "c", [1, 2, 3, "\\u001b[2J"]]',
        '["2026-01-01T00:00:00Z", 1, 2, "a", "b", "c", [1, 2, 3, 1%s]]' % (400 * "0"),
        '["2026-01-01T00:00:00Z", 1, 2, "a", "b", "c", [1, 2, 3, 4], 5]',
        "[" * 100_000,
    ],
)
def test_a_line_that_is_no_change_is_left_out_and_the_others_count(line: str) -> None:
    changes = [make_change(1), make_change(2)]
    first, second = render_changes(changes[:1]), render_changes(changes[1:])
    assert read_changes(f"{first}{line}\n{second}")[-1] == changes[1]
    assert len(read_changes(f"{line}\n{second}")) == 1


def test_changes_of_two_places_are_one_list_and_the_newer_words_count() -> None:
    old = [make_change(minute, "") for minute in range(10)]
    new = [make_change(minute) for minute in range(8, 12)]
    merged = merge_changes(old, new)
    assert [one["at"] for one in merged] == [make_change(minute)["at"] for minute in range(12)]
    assert [bool(one["message"]) for one in merged] == 8 * [False] + 4 * [True]
