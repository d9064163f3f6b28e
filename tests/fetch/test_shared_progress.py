"""What a fetch that waits for another one tells of that one."""

import asyncio
import io
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from development.ports import holding_port
from millrace_fetch.cli.progress_log import Lines
from millrace_fetch.cli.progress_server import Tally
from millrace_fetch.fetch import fetch
from millrace_fetch.store.folder import Folder
from millrace_fetch.store.shared_progress import Counts, Follower, Shared, read_counts
from testing.model_sources.processes import Forked, finish
from testing.model_sources.servers import FakeHub
from tests.fetch.conftest import Fetcher, Witness, make_model
from tests.fetch.test_command import start
from tests.fetch.test_progress_server import ask

MIB = 1 << 20


@pytest.fixture
def other_port() -> Iterator[int]:
    with holding_port() as port:
        yield port


async def start_telling(hub: FakeHub, folder: Path, port: int) -> Forked:
    return await start(hub, folder, "--progress-port", str(port))


async def ask_until_told(process: Forked, port: int) -> dict[str, int]:
    """Ask again and again until it says something."""
    while process.returncode is None:
        with suppress(aiohttp.ClientError):  # it does not listen yet
            if told := await ask(port):
                return told
        await asyncio.sleep(0.05)
    raise AssertionError(await finish(process))


async def test_who_waits_tells_how_far_the_other_is_and_nothing_new_while_that_one_stands(
    fetcher: Fetcher, free_port: int, other_port: int
) -> None:
    async with FakeHub(make_model(4 * MIB)) as hub:
        hub.large.bytes_per_second = 4e5
        first = await start_telling(hub, fetcher.folder, free_port)
        total = (await ask_until_told(first, free_port))["totalBytes"]
        second = await start_telling(hub, fetcher.folder, other_port)
        seen = [await ask_until_told(second, other_port)]
        while seen[-1]["doneBytes"] < total // 2:
            await asyncio.sleep(0.2)
            seen.append(await ask(other_port))
        assert {told["totalBytes"] for told in seen} == {total}
        done = [told["doneBytes"] for told in seen]
        assert done == sorted(done)
        assert seen[-1]["bytesPerSecond"] > 0
        assert (await ask(free_port))["doneBytes"] >= done[-1], "never more than the other has"

        first.send_signal(signal.SIGSTOP)  # it holds the lock, and gets no farther
        await asyncio.sleep(0.5)
        stands = (await ask(other_port))["doneBytes"]
        await asyncio.sleep(1.5)
        assert (await ask(other_port))["doneBytes"] == stands < total

        first.kill()
        await first.wait()
        hub.large.bytes_per_second = None
        status, out, err = await finish(second)
    assert status == 0, err
    assert "waiting for it" in err
    assert "the other fetch has" in err
    assert "has hf://org/m now" in out, "it goes on where the other was killed"
    assert not (fetcher.folder / ".millrace" / "counts.json").exists()


@pytest.mark.usefixtures("hub")
async def test_a_fetch_writes_down_its_counts_and_removes_them_once_it_is_whole(fetcher: Fetcher) -> None:
    order = fetcher.order("hf://org/m")
    counts = order.folder / ".millrace" / "counts.json"
    seen: list[Counts | None] = []

    class Spy(Witness):
        def advance(self, num_bytes: int) -> None:
            super().advance(num_bytes)
            seen.append(read_counts(counts))

    spy = Spy()
    await fetch(order, fetcher.open_source(order), spy)
    assert seen[-1] == Counts(spy.total, spy.total)
    assert not counts.exists()


def test_counts_are_written_each_second_and_at_the_end(tmp_path: Path) -> None:
    now, path, witness = [0.0], tmp_path / "counts.json", Witness()
    shared = Shared(witness, path, lambda: now[0])
    shared.begin(1000, 100)
    assert read_counts(path) == (1000, 100)
    shared.advance(100)
    assert read_counts(path) == (1000, 100)
    now[0] = 1.0
    shared.advance(100)
    assert read_counts(path) == (1000, 300)
    shared.advance(700)
    assert read_counts(path) == (1000, 1000)
    shared.follow(5, 1)
    shared.say("a word")
    assert (witness.total, witness.done, witness.followed, witness.said) == (1000, 1000, [(5, 1)], ["a word"])


def test_who_waits_is_told_the_bytes_of_a_fetch_whose_size_is_not_known(tmp_path: Path) -> None:
    path, witness = tmp_path / "counts.json", Witness()
    Shared(Witness(), path).begin(None, 100)
    Follower(witness, path).look()
    assert witness.followed == [(None, 100)]
    tally = Tally(Witness(), iter([1.0, 2.0, 3.0]).__next__)
    tally.follow(None, 100)
    tally.follow(None, 300)
    assert tally.render() == {"doneBytes": 300, "bytesPerSecond": 200}


def test_nobody_is_told_twice_that_a_fetch_is_as_far_as_it_was(tmp_path: Path) -> None:
    path, witness = tmp_path / "counts.json", Witness()
    follower = Follower(witness, path)
    follower.look()
    other = Shared(Witness(), path)
    other.begin(1000, 100)
    follower.look()
    follower.look()
    other.begin(1000, 90)  # another process goes on, and has lost a little
    follower.look()
    assert witness.followed == [(1000, 100), (1000, 90)]


def test_a_tally_that_followed_another_fetch_begins_anew_with_its_own() -> None:
    now, witness = [0.0], Witness()
    tally = Tally(witness, lambda: now[0])
    tally.follow(1000, 100)
    now[0] = 10.0
    tally.follow(1000, 600)
    assert tally.render() == {"totalBytes": 1000, "doneBytes": 600, "bytesPerSecond": 50}
    assert (witness.total, witness.followed) == (0, [(1000, 100), (1000, 600)])
    tally.follow(1000, 50)
    assert tally.render()["bytesPerSecond"] == 0
    tally.begin(2000, 700)
    assert tally.render() == {"totalBytes": 2000, "doneBytes": 700, "bytesPerSecond": 0}


def test_a_log_has_a_line_now_and_then_of_the_other_fetch(tmp_path: Path) -> None:
    now = [0.0]
    with (tmp_path / "log").open("w+") as stream:
        with Lines(stream, lambda: now[0]) as lines:
            for done in (100, 105, 250, 250):
                lines.follow(1000, done)
                now[0] += 2
        stream.seek(0)
        assert (
            stream.read() == "millrace fetch: the other fetch has 25 %, 250 B of 1.0 kB, 38 B/s, 20s left\n"
        )


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[1, 2]", "{}", '{"totalBytes": 1}', '{"totalBytes": 1, "doneBytes": 2}'),
        *('{"totalBytes": "9", "doneBytes": 2}', '{"totalBytes": true, "doneBytes": 0}'),
        *('{"totalBytes": 9, "doneBytes": -2}', f'{{"totalBytes": {10**30}, "doneBytes": 0}}'),
        *('{"doneBytes": -1}', '{"totalBytes": null}', "[" * 1_000_000),
    ],
)
def test_counts_that_cannot_be_so_say_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "counts.json"
    path.write_text(text)
    assert read_counts(path) is None


def test_nothing_is_read_or_written_through_what_others_put_there(tmp_path: Path) -> None:
    path, victim = tmp_path / "counts.json", tmp_path / "victim"
    victim.write_text('{"totalBytes": 9, "doneBytes": 2}')
    path.symlink_to(victim)
    assert read_counts(path) is None
    Shared(Witness(), path).begin(1000, 100)
    assert "1000" not in victim.read_text()
    path.unlink()
    os.mkfifo(path)
    assert read_counts(path) is None
    Shared(Witness(), path).begin(1000, 100)
    path.unlink()
    path.mkdir()
    Shared(Witness(), path).begin(1000, 100)
    assert read_counts(path) is None


async def test_who_takes_the_lock_removes_the_counts_of_a_fetch_that_was_killed(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "model")
    (tmp_path / "model" / ".millrace").mkdir(parents=True)
    Shared(Witness(), folder.counts).begin(1000, 100)
    async with folder.locked(lambda _: None):
        assert not folder.counts.exists()


@pytest.mark.usefixtures("hub")
async def test_who_takes_the_lock_at_once_follows_nobody(fetcher: Fetcher) -> None:
    await fetcher.fetch("hf://org/m")
    assert fetcher.witness.followed == []


def test_a_folder_in_the_place_of_the_counts_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    path.mkdir()
    before = len(list(Path("/proc/self/fd").iterdir()))
    shared = Shared(Lines(io.StringIO()), path)
    for _ in range(50):
        assert read_counts(path) is None
        shared.begin(10, 0)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before, "fewer, where what others left is collected"


async def test_a_folder_in_the_place_of_the_counts_stops_no_fetch(fetcher: Fetcher) -> None:
    async with FakeHub(make_model(MIB)) as hub:
        Folder(fetcher.folder).counts.mkdir(parents=True)
        process = await start(hub, fetcher.folder)
        assert (await finish(process))[0] == 0


def test_another_fetch_that_begins_with_less_has_a_rate_of_its_own() -> None:
    stream = io.StringIO()
    now = 0.0
    lines = Lines(stream, lambda: now)
    for done in (0, 500 * MIB, 100 * MIB, 200 * MIB, 300 * MIB):
        now += 31.0
        lines.follow(1000 * MIB, done)
    assert " -" not in stream.getvalue()
    assert "0 B/s" not in stream.getvalue()
