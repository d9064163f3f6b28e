import asyncio
import socket
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_gateway.errors import BrokenAnswerError
from millrace_gateway.http.early_reports import EarlyReports
from millrace_gateway.http.replica_connection import MAX_HEAD_BYTES, ReplicaConnection
from millrace_gateway.http.usage_events import UsageEvents

DATA = [
    b'data: {"a": ": millrace-usage 1 1 1"}\n\n',
    b": waiting\n\n",
    b"event: x\ndata: 1\n\n",
    b"data: [DONE]\n\n",
]
EARLY = b"HTTP/1.1 102 Processing\r\nx-millrace-usage: 12 0 3\r\n\r\n"
USAGE = [b": millrace-usage 12 0 3\n\n", b": millrace-usage 12 4 90\n\n"]


@given(st.lists(st.sampled_from([*DATA, *USAGE])), st.lists(st.integers(0, 200)))
def test_however_a_stream_is_cut_only_usage_events_go(events: list[bytes], cuts: list[int]) -> None:
    told: list[bytes] = []
    stream, found = b"".join(events), UsageEvents(told.append)
    bounds = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[start:end] for start, end in pairwise(bounds)]
    assert b"".join(map(found.convert, pieces)) == b"".join(event for event in events if event not in USAGE)
    assert told == [event[17:-2] for event in events if event in USAGE]


def test_a_comment_without_an_end_is_not_kept_for_ever() -> None:
    found, sent = UsageEvents(), b": millrace-usage " + b"1" * 200
    assert found.convert(sent) == sent


@pytest.mark.parametrize(
    ("size", "is_cut"),
    [(1, False), (MAX_HEAD_BYTES // len(EARLY) + 1, True)],
    ids=["one a read", "many a read"],
)
async def test_early_reports_of_an_hour_are_no_long_head_and_a_flood_is(size: int, *, is_cut: bool) -> None:
    ours, theirs = socket.socketpair()
    loop, told = asyncio.get_running_loop(), []
    _, connection = await loop.create_connection(ReplicaConnection, sock=ours)
    connection.reports.on_usage = told.append
    asked = asyncio.create_task(connection.ask(b"", b""))
    await asyncio.sleep(0)
    for _ in range(0, 15_000, size):
        connection.data_received(EARLY * size)
    assert connection.is_open == (not is_cut)
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    if is_cut:
        with pytest.raises(BrokenAnswerError):
            await asked
    else:
        assert ((await asked).status, told[-1]) == (200, b"12 0 3")
    connection.abort()
    theirs.close()


def test_a_head_that_says_nothing_forgets_no_report_of_the_same_read() -> None:
    told: list[bytes] = []
    reports = EarlyReports()
    reports.on_usage = told.append
    for headers in ([(b"x-millrace-usage", b"1 0 2")], [(b"x-millrace-usage", b"1 0 3")], []):
        reports.note_head(headers)
    assert (reports.pass_on(100), reports.pass_on(100), told) == (True, False, [b"1 0 3"])
