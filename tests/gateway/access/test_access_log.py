import json
import os

import pytest

from millrace_gateway.access.access_log import MOST_LETTERS, LoggedRequest, format_line
from millrace_gateway.access.limits.reservation import Usage
from millrace_gateway.access.log_writer import LogWriter
from testing.polling import wait_until_async

REQUEST = LoggedRequest(
    at=1_700_000_000.1234,
    seconds=1.23456,
    status=200,
    outcome="completed",
    client="a/keys/ada",
    namespace="a",
    service="chat",
    model="llama",
    request_id="r-1",
    usage=Usage(10, 4, 5),
)


def test_a_line_has_who_what_and_how_much() -> None:
    assert json.loads(format_line(REQUEST)) == {
        "time": 1_700_000_000.123,
        "client": "a/keys/ada",
        "namespace": "a",
        "service": "chat",
        "model": "llama",
        "status": 200,
        "outcome": "completed",
        "seconds": 1.2346,
        "request_id": "r-1",
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "completion_tokens": 5,
    }


@pytest.mark.parametrize(
    "text",
    ['"}\n{"client": "root"}', "\x1b[2J\x7f\x9b0m", "\u2028\udcff\x00", "é" * 5, "m" * 100_000],
    ids=["line", "terminal", "unicode", "accents", "long"],
)
def test_nothing_that_a_client_writes_ends_a_line_or_moves_a_cursor(text: str) -> None:
    line = format_line(LoggedRequest(0.0, 0.0, 404, "refused", model=text, request_id=text))
    assert line.endswith(b"}\n")
    assert line.isascii()
    assert all(32 <= letter < 127 for letter in line[:-1])
    assert len(line) < 4 * 1024
    assert json.loads(line)["model"].removesuffix("…") == text[:MOST_LETTERS]


async def test_lines_arrive_whole_and_in_order() -> None:
    reader, writer = os.pipe()
    log = LogWriter(writer)
    for i in range(100):
        log.write(LoggedRequest(float(i), 0.0, 200, "completed"))
    log.close()
    os.close(writer)
    with os.fdopen(reader, "rb") as lines:
        assert [json.loads(line)["time"] for line in lines] == [float(i) for i in range(100)]
    assert log.num_dropped == 0


async def test_a_reader_that_stops_costs_lines_and_no_time() -> None:
    reader, writer = os.pipe()
    log = LogWriter(writer, most_bytes=200_000)
    for _ in range(4000):
        log.write(REQUEST)
    assert log.num_dropped > 1000
    log._hand_over()
    with os.fdopen(reader, "rb") as lines:
        received = b""
        while received.count(b"\n") < 4000 - log.num_dropped:
            received += os.read(reader, 1 << 16)
        await wait_until_async("the thread to have written", lambda: log._num_written == log._num_bytes)
        log.write(REQUEST)
        log._hand_over()
        assert json.loads(lines.readline()) == {"dropped_lines": log.num_dropped}
        assert json.loads(lines.readline())["client"] == "a/keys/ada"
    log.close()
    os.close(writer)


async def test_a_reader_that_goes_ends_nothing() -> None:
    reader, writer = os.pipe()
    log = LogWriter(writer)
    os.close(reader)
    log.write(REQUEST)
    log._hand_over()
    await wait_until_async("the thread to have gone on", lambda: log._num_written == log._num_bytes)
    log.close()
    os.close(writer)
