"""How long a watch pauses after each kind of failure."""

import asyncio

import pytest

from millrace_kubernetes import watch
from tests.kubernetes.conftest import PODS, Followed


async def test_a_stream_that_lived_long_enough_is_no_failure_however_it_ends(
    followed: Followed, num_failures: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "BRIEF_SECONDS", 0.0)
    followed.follow()
    await followed.until_streaming()
    for _ in range(4):
        await asyncio.sleep(0.02)  # let it begin on this side too
        await followed.cut()
    assert num_failures == [1, 1, 1, 1]


async def test_streams_that_end_at_once_are_failures_in_a_row_whatever_they_sent(
    followed: Followed, num_failures: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "BRIEF_SECONDS", 60.0)
    followed.follow()
    await followed.until_streaming()
    for number in range(3):
        followed.put(f"s{number}")
        await followed.until(lambda number=number: f"s{number}" in followed.sink.names)
        await followed.cut()
    assert num_failures == [1, 2, 3]


async def test_errors_instead_of_events_are_failures_in_a_row(
    followed: Followed, num_failures: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "BRIEF_SECONDS", 60.0)
    followed.follow()
    for number in range(3):
        await followed.until_streaming_anew(number)
        followed.api.send(PODS.path, "ERROR", {"code": 500, "message": "no such revision"})
    await followed.until_streaming_anew(3)
    assert num_failures == [1, 2, 3]
    assert followed.num_lists == 4


async def test_what_an_outage_ends_with_is_listed_soon(
    followed: Followed, num_failures: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "BRIEF_SECONDS", 0.0)
    followed.follow()
    await followed.until_streaming()
    await asyncio.sleep(0.02)  # let it begin on this side too
    followed.api.failures = [500, 500, 500, 410]
    await followed.cut()
    assert num_failures == [1, 2, 3, 4, 1]


async def test_lists_whose_versions_are_expired_at_once_are_failures_in_a_row(
    followed: Followed, num_failures: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "BRIEF_SECONDS", 60.0)
    followed.follow()
    for number in range(3):
        await followed.until_streaming_anew(number)
        followed.api.send(PODS.path, "ERROR", {"code": 410, "message": "too old resource version"})
    await followed.until_streaming_anew(3)
    assert num_failures == [1, 2, 3]


async def test_lists_that_are_expired_themselves_are_failures_in_a_row(
    followed: Followed, num_failures: list[int]
) -> None:
    followed.api.failures = [410, 410, 410, 410]
    followed.follow()
    await followed.until_streaming()
    assert num_failures == [1, 2, 3, 4]
