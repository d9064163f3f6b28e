import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from e2e.cluster.nodes.errors import SettingsError
from e2e.cluster.nodes.logs import LogFile, LogQuery, select_lines, stream_log
from e2e.cluster.nodes.logs_server import parse_query
from e2e.cluster.nodes.settings import parse_node

pytestmark = pytest.mark.reads("e2e/cluster", "testing/polling.py", "operator/millrace_kubernetes")

LINES = [b"2026-01-02T03:04:0%d.000000000Z line %d\n" % (number, number) for number in range(5)]
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def texts(query: LogQuery) -> list[bytes]:
    return select_lines(LINES, query, NOW)


def test_queries_select_lines() -> None:
    assert texts(LogQuery(tail_lines=2)) == [b"line 3\n", b"line 4\n"]
    assert texts(LogQuery(tail_lines=0)) == []
    assert texts(LogQuery(since_seconds=2)) == [b"line 3\n", b"line 4\n"]
    assert texts(LogQuery(timestamps=True, tail_lines=1)) == LINES[-1:]


def test_the_kubelets_parameters() -> None:
    query = parse_query(
        {"follow": "true", "tailLines": "3", "sinceTime": "2026-01-02T03:04:05Z", "limitBytes": "9"}
    )
    assert query == LogQuery(follow=True, tail_lines=3, since_time=NOW, limit_bytes=9)


async def collect(path: Path, live: LogFile | None, query: LogQuery) -> bytes:
    return b"".join([chunk async for chunk in stream_log(path, live, query, datetime.now(UTC))])


async def test_following_ends_with_the_container(tmp_path: Path) -> None:
    path, reader = tmp_path / "0.log", asyncio.StreamReader()
    log_file = LogFile(path)
    copying = asyncio.create_task(log_file.copy_from(reader))
    reader.feed_data(b"one\ntwo\nthr")
    await asyncio.sleep(0.01)
    following = asyncio.create_task(collect(path, log_file, LogQuery(follow=True, tail_lines=1)))
    await asyncio.sleep(0.01)
    reader.feed_data(b"ee\n\nlast words")
    reader.feed_eof()
    assert await following == b"two\nthree\n\nlast words\n"
    await copying
    assert log_file.last_line() == "last words"
    assert await collect(path, None, LogQuery(limit_bytes=5)) == b"one\nt"


def test_a_node_is_described_in_one_word() -> None:
    node = parse_node("name=gpu-0,gpus=8,cpu=8,memory=16Gi")
    assert node.capacity["nvidia.com/gpu"] == "8"
    assert "nvidia.com/gpu" not in parse_node("name=a").capacity


@pytest.mark.parametrize(
    "text", ["cpu=1", "name=a,color=red", "name=a,cpu=lots", "name=a,gpus=1.5", "name=a,name=b"]
)
def test_a_wrong_node_says_what_to_write(text: str) -> None:
    with pytest.raises(SettingsError, match="--node"):
        parse_node(text)


async def write_log(path: Path, content: bytes) -> LogFile:
    """Return the closed log of a container that wrote this."""
    log_file, reader = LogFile(path), asyncio.StreamReader()
    reader.feed_data(content)
    reader.feed_eof()
    await log_file.copy_from(reader)
    return log_file


async def test_a_carriage_return_does_not_end_a_line(tmp_path: Path) -> None:
    progress = b"loading 1 %\rloading 50 % of what there is to be loaded\rloaded\n"
    path = tmp_path / "0.log"
    log_file = await write_log(path, b"begin\n" + progress)
    assert await collect(path, None, LogQuery()) == b"begin\n" + progress
    assert await collect(path, None, LogQuery(tail_lines=1)) == progress
    assert log_file.last_line() == progress.decode().strip()


async def test_following_keeps_what_comes_after_a_carriage_return(tmp_path: Path) -> None:
    path, reader = tmp_path / "0.log", asyncio.StreamReader()
    log_file = LogFile(path)
    copying = asyncio.create_task(log_file.copy_from(reader))
    following = asyncio.create_task(collect(path, log_file, LogQuery(follow=True)))
    await asyncio.sleep(0.01)
    reader.feed_data(b"loading 1 %\rloading 50 % of what there is to be loaded\n")
    reader.feed_eof()
    await copying
    assert await following == b"loading 1 %\rloading 50 % of what there is to be loaded\n"
