"""The watch against an API server that misbehaves."""

import asyncio
import gc
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_kubernetes import watch
from millrace_kubernetes.collection import Object
from millrace_kubernetes.watch import MAX_BACKOFF_SECONDS, SLICE, backoff_seconds
from tests.kubernetes.conftest import PODS, Followed, Recorded, make_item


async def test_lists_then_follows(followed: Followed) -> None:
    followed.put("one")
    followed.follow()
    await followed.until_streaming()
    assert followed.sink.lists == [["one"]]
    followed.put("two")
    await followed.until_named("one", "two")
    followed.api.remove(PODS.path, make_item("one"))
    await followed.until_named("two")
    assert {request["labelSelector"] for request in followed.api.requests} == {"app=web"}
    assert set(followed.api.user_agents) == {"reader"}


async def test_long_lists_come_in_pages(followed: Followed) -> None:
    for number in range(5):
        followed.put(f"s{number}")
    followed.follow(replace(PODS, page=2))
    await followed.until_streaming()
    assert [len(names) for names in followed.sink.lists] == [5]
    assert followed.num_lists == 3


class Stepping(Recorded):
    """A sink that takes a list in steps, and fails at the last one of its first list."""

    num_steps = 0

    def replace(self, items: Sequence[Object], version: str) -> Iterator[None]:  # type: ignore[override]
        for _ in range(3 * SLICE):
            self.num_steps += 1
            yield
        super().replace(items, version)


async def test_others_run_while_a_sink_takes_a_list_in_steps_and_a_failed_one_is_listed_again(
    followed: Followed,
) -> None:
    followed.sink = sink = Stepping()
    sink.num_refused_lists = 1
    followed.put("one")
    followed.follow()
    seen = set()
    while not sink.lists:
        seen.add(sink.num_steps)
        await asyncio.sleep(0)
    assert {SLICE, 2 * SLICE, 3 * SLICE} <= seen
    assert followed.num_lists == 2
    assert gc.isenabled()


async def test_a_list_that_cannot_be_read_is_asked_for_again(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a proxy in between sends such a one. The watch must not end by it."""
    faults = iter([KeyError("metadata"), TypeError("null")])

    def pack(item: Object) -> Object:
        for fault in faults:
            raise fault
        return item

    monkeypatch.setitem(vars(PODS), "pack", pack)
    followed.put("one")
    followed.follow()
    await followed.until_named("one")


async def test_an_expired_version_lists_again(followed: Followed) -> None:
    followed.follow()
    await followed.until_streaming()
    followed.api.objects[PODS.path]["u"] = make_item("missed")  # an event that never came
    followed.api.expire(PODS.path)
    await followed.until_named("missed")
    await followed.until_streaming()


async def test_a_410_answer_lists_again(followed: Followed) -> None:
    followed.follow()
    await followed.until_streaming()
    followed.api.objects[PODS.path]["u"] = make_item("missed")
    followed.api.failures = [410]
    followed.api.cut(PODS.path)
    await followed.until_named("missed")


@pytest.mark.parametrize(
    "line",
    [
        b'{"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "no such revision"}}\n',
        b'{"type": "ADDED", "object": {"metadata": 5}}\n',
        b"no json\n",
    ],
)
async def test_a_line_that_is_no_event_lists_again(followed: Followed, line: bytes) -> None:
    followed.follow()
    await followed.until_streaming()
    followed.api.objects[PODS.path]["u"] = make_item("missed")
    followed.api.send_raw(PODS.path, line)
    await followed.until_named("missed")


async def test_a_cut_stream_goes_on_where_it_was(followed: Followed) -> None:
    followed.follow()
    await followed.until_streaming()
    api = followed.api
    followed.put("one")
    api.send(PODS.path, "BOOKMARK", {"metadata": {"resourceVersion": "77"}})
    api.send_raw(PODS.path, b'{"type": "ADDED", "object": {"met')  # half an event
    api.cut(PODS.path)
    await followed.until_named("one")
    await followed.until(lambda: api.requests[-1].get("resourceVersion") == "77")
    await followed.until_streaming()
    assert len([request for request in api.requests if "watch" not in request]) == 1


async def test_an_event_of_any_length_in_any_pieces_is_read(followed: Followed) -> None:
    followed.follow()
    await followed.until_streaming()
    item = make_item("big")
    item["metadata"] |= {"resourceVersion": "11", "annotations": {"long": "x" * 300_000}}
    line = json.dumps({"type": "ADDED", "object": item}).encode() + b"\n\n"
    for begin in range(0, len(line), 70_001):
        followed.api.send_raw(PODS.path, line[begin : begin + 70_001])
    await followed.until_named("big")


async def test_while_the_api_server_is_down_the_last_known_stays(followed: Followed) -> None:
    followed.put("one")
    followed.follow()
    await followed.until_streaming()
    await followed.runner.cleanup()
    await asyncio.sleep(0.1)
    assert followed.sink.names == {"one"}
    await followed.serve()
    await followed.until_streaming()
    followed.put("two")
    await followed.until_named("one", "two")


async def test_refusals_and_nonsense_are_logged_and_outlived(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    followed.api.failures = [403, 500, 403]
    followed.put("one")
    followed.follow()
    await followed.until_streaming()
    assert "the API server answered 403: told to say 403" in caplog.text
    followed.api.send_raw(PODS.path, b'{"type": "ADDED", "object": {"metadata": 5}}\n')
    await followed.until(lambda: "no event: TypeError" in caplog.text)
    await followed.until_streaming()
    followed.api.send_raw(PODS.path, b"no json\n")
    await followed.until(lambda: "no event: JSONDecodeError" in caplog.text)
    await followed.until_streaming()
    assert followed.sink.names == {"one"}


async def test_only_a_403_says_that_it_may_not_read(followed: Followed) -> None:
    """A 401 passes with the next token, a 404 with the definition: neither means that a Role lacks."""
    followed.api.failures = [401, 404, 500, 403]
    followed.follow()
    await followed.until_streaming()
    assert followed.num_refusals == 1


async def test_an_event_that_the_sink_fails_at_is_logged_with_its_trace_and_listed_again(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    followed.follow()
    await followed.until_streaming()
    followed.sink.refused = "bad"
    for name in ("bad", "good"):
        followed.put(name)
    await followed.until_named("bad", "good")
    [record] = [record for record in caplog.records if record.exc_info]
    assert record.getMessage() == "watching /api/v1/pods: the sink failed at ADDED of bad"


async def test_a_list_that_the_sink_fails_at_is_logged_with_its_trace_and_read_again(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    followed.sink.num_refused_lists = 1
    followed.put("one")
    followed.follow()
    await followed.until_named("one")
    [record] = [record for record in caplog.records if record.exc_info]
    assert record.getMessage() == "watching /api/v1/pods: the sink failed at the list"


async def test_a_stream_that_ends_at_once_is_a_failure(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    followed.follow()
    await followed.until_streaming()
    followed.api.finish(PODS.path)
    await followed.until(lambda: "the stream ended at once; again in" in caplog.text)
    await followed.until_streaming()


async def test_a_silent_api_server_is_given_up(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "STREAM_SECONDS", 1.4)  # 1 s, whatever is drawn
    monkeypatch.setattr(watch, "GRACE_SECONDS", 0.1)
    followed.api.num_ignored = 1  # the list; its stream is silent then
    followed.follow()
    await followed.until_streaming_anew(num_watches=1)
    assert followed.num_lists == 2


async def test_a_renewed_token_is_used(followed: Followed) -> None:
    followed.follow()
    await followed.until_streaming()
    followed.token_file.write_text("second")
    followed.api.cut(PODS.path)
    await followed.until(lambda: followed.api.tokens[-1] == "Bearer second")
    assert followed.api.tokens[0] == "Bearer first"


@pytest.mark.parametrize("content", [b"\xff", b"two\nlines"])
async def test_a_token_that_can_be_none_is_logged_and_read_again(
    followed: Followed, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    followed.token_file.write_bytes(content)
    followed.follow()
    await followed.until(lambda: "/token can't be used" in caplog.text)
    followed.token_file.write_text("second")
    await followed.until_streaming()


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_the_pause_grows_to_its_bound_and_is_spread(num_failures: int, draw: float) -> None:
    pause = backoff_seconds(num_failures, draw)
    assert 0.1 <= pause <= MAX_BACKOFF_SECONDS
    assert backoff_seconds(num_failures + 1, draw) >= pause
    assert backoff_seconds(num_failures, 0.0) * 2 >= pause
    assert backoff_seconds(num_failures, draw, most=1.0) == min(pause, 0.5 + draw / 2)


async def test_bookmarks_of_a_quiet_collection_and_an_api_server_that_is_away_are_signs_of_life(
    followed: Followed,
) -> None:
    followed.follow()
    await followed.until_streaming()
    before = followed.num_lives
    assert before > 0
    item = {"metadata": {"resourceVersion": str(followed.api.version)}}
    followed.api.send(PODS.path, "BOOKMARK", item)
    await followed.until(lambda: followed.num_lives == before + 1)
    await followed.runner.cleanup()
    before = followed.num_failures
    await followed.until(lambda: followed.num_lives > before + 5 and followed.num_failures > before + 5)
    await followed.serve()


async def test_a_watch_whose_sink_fails_at_each_list_gives_no_sign_of_life(followed: Followed) -> None:
    followed.sink.num_refused_lists = 1000
    followed.follow()
    followed.api.expire(PODS.path)
    await followed.until(lambda: followed.sink.num_refused_lists < 999)
    before = followed.num_lives
    await followed.until(lambda: followed.sink.num_refused_lists < 994)
    assert followed.num_lives == before
    followed.sink.num_refused_lists = 0
    await followed.until(lambda: followed.num_lives > before)
