"""One file in several ranges at the same time, as every shard of a real model comes."""

import json
from pathlib import Path

import pytest

from millrace_fetch.transfer.ranges import Span, find_missing, merge
from testing.model_sources.processes import start_fetch, until
from testing.model_sources.servers import FakeHub
from tests.fetch.conftest import SHARDS, Fetcher, make_model

URI = "hf://org/m"
REQUEST_BYTES = 1 << 20
SHARD_BYTES = 8 * REQUEST_BYTES
CONNECTIONS = 4
_SPLITTING = f"""
import millrace_fetch.transfer.download
millrace_fetch.transfer.download.REQUEST_BYTES = {REQUEST_BYTES}
"""
"""A test's small shards are taken apart as large ones are."""


@pytest.fixture
def contents() -> dict[str, bytes]:
    return make_model(SHARD_BYTES)


@pytest.fixture(autouse=True)
def _splitting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace_fetch.transfer.download.REQUEST_BYTES", REQUEST_BYTES)


def read_noted(folder: Path, name: str) -> list[Span]:
    """Return the ranges of a file that its journal has."""
    journal = folder / ".millrace" / "parts" / f"{name}.journal"
    lines = [json.loads(line) for line in journal.read_text().splitlines() if line.endswith("}")]
    return merge(Span(*line["done"]) for line in lines if "done" in line)


def find_asked(hub: FakeHub, name: str) -> list[Span]:
    return sorted(Span(first, end) for asked, first, end in hub.large.ranges if asked == name)


async def test_a_file_comes_in_several_ranges_at_once_and_each_byte_once(
    fetcher: Fetcher, hub: FakeHub
) -> None:
    hub.large.bytes_per_second = 20e6  # so that a range takes longer than to ask for the next
    await fetcher.fetch(URI)
    fetcher.check(hub.files.contents)
    for name in SHARDS:
        size = len(hub.files.contents[name])
        starts = range(0, size, REQUEST_BYTES)
        assert find_asked(hub, name) == [Span(start, min(start + REQUEST_BYTES, size)) for start in starts]
        assert hub.large.most_open[name] > 1


async def test_a_kill_amid_several_ranges_has_none_asked_again_that_was_noted(
    fetcher: Fetcher, hub: FakeHub
) -> None:
    name, flags = SHARDS[0], ("--connections", str(CONNECTIONS))

    def slow_down(_: str) -> None:
        if hub.large.sent[name] > (CONNECTIONS + 1) * REQUEST_BYTES:  # two ranges are whole, or more
            hub.large.bytes_per_second = 1e5

    hub.large.bytes_per_second, hub.large.on_sent = 20e6, slow_down
    environment = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(fetcher.folder.parent)}
    process = await start_fetch(URI, fetcher.folder, *flags, before=_SPLITTING, **environment)
    journal = fetcher.folder / ".millrace" / "parts" / f"{name}.journal"
    await until(lambda: journal.exists() and journal.read_text().count("done") >= 2)
    process.kill()
    await process.communicate()
    assert hub.large.most_open[name] > 1
    await until(lambda: not hub.large.open[name])

    noted = read_noted(fetcher.folder, name)
    assert 2 * REQUEST_BYTES <= sum(span.num_bytes for span in noted) < SHARD_BYTES
    hub.large.ranges.clear()
    hub.large.on_sent = hub.large.bytes_per_second = None
    await fetcher.fetch(URI)
    fetcher.check(hub.files.contents)
    asked = find_asked(hub, name)
    assert merge(asked) == list(find_missing(SHARD_BYTES, noted))
    assert sum(span.num_bytes for span in asked) == sum(span.num_bytes for span in merge(asked))
