"""A fetch that does not wait for the disk: what it brought counts until the machine starts again."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from millrace_fetch.order import Order
from millrace_fetch.whole import find_whole
from tests.fetch.conftest import SHARDS, Fetcher
from tests.fetch.servers import FakeHub

URI = f"hf://org/m@{'1' * 40}"


class Machine:
    """What a fetch sees of the machine."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._boot = folder / "boot_id"
        self.num_waits = 0
        monkeypatch.setattr("millrace_fetch.marker._BOOT", self._boot)
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, lambda _: self._wait())

    def _wait(self) -> None:
        self.num_waits += 1

    def start(self, boot: str) -> None:
        """Start it again."""
        self._boot.write_text(f"{boot}\n")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path, monkeypatch)
    machine.start("first")
    return machine


def make_order(fetcher: Fetcher, *, is_synced: bool = False) -> Order:
    return replace(fetcher.order(URI), is_synced=is_synced)


async def test_the_disk_is_waited_for_unless_somebody_asks_not_to(
    fetcher: Fetcher, hub: FakeHub, machine: Machine
) -> None:
    await fetcher.fetch_order(make_order(fetcher))
    fetcher.check(hub.files.contents)
    assert machine.num_waits == 0
    assert find_whole(make_order(fetcher)) is not None
    fetcher.folder.rename(fetcher.folder.with_name("other"))
    await fetcher.fetch_order(make_order(fetcher, is_synced=True))
    assert machine.num_waits > len(SHARDS)


@pytest.mark.parametrize("is_synced", [False, True])
async def test_after_a_start_of_the_machine_all_is_fetched_anew(
    fetcher: Fetcher, hub: FakeHub, machine: Machine, *, is_synced: bool
) -> None:
    await fetcher.fetch_order(make_order(fetcher))
    machine.start("second")
    shard = fetcher.folder / SHARDS[0]
    shard.write_bytes(bytes(shard.stat().st_size))  # its name and its size, and nothing that was written
    assert find_whole(make_order(fetcher)) is None
    await fetcher.fetch_order(make_order(fetcher, is_synced=is_synced))
    fetcher.check(hub.files.contents)
    assert all(hub.large.sent[name] == 2 * len(hub.files.contents[name]) for name in SHARDS)


async def test_who_waits_for_the_disk_believes_nothing_that_nobody_waited_for(
    fetcher: Fetcher, hub: FakeHub, machine: Machine
) -> None:
    await fetcher.fetch_order(make_order(fetcher))
    assert find_whole(make_order(fetcher, is_synced=True)) is None
    await fetcher.fetch_order(make_order(fetcher, is_synced=True))
    assert machine.num_waits > len(SHARDS)
    assert all(hub.large.sent[name] == 2 * len(hub.files.contents[name]) for name in SHARDS)
    machine.start("second")
    assert find_whole(make_order(fetcher, is_synced=True)) is not None


@pytest.mark.usefixtures("hub")
async def test_what_was_waited_for_lasts(fetcher: Fetcher, machine: Machine) -> None:
    await fetcher.fetch_order(make_order(fetcher, is_synced=True))
    machine.start("second")
    assert find_whole(make_order(fetcher)) is not None
    assert not (await fetcher.fetch_order(make_order(fetcher))).has_fetched


@pytest.mark.parametrize("boot", ["first", "second"])
async def test_a_killed_fetch_goes_on_in_the_same_boot_alone(
    fetcher: Fetcher, hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch, boot: str
) -> None:
    def die(*_: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("millrace_fetch.folder.Folder.complete", die)
        with pytest.raises(RuntimeError, match="killed"):
            await fetcher.fetch_order(make_order(fetcher))
    machine.start(boot)
    await fetcher.fetch_order(make_order(fetcher))
    fetcher.check(hub.files.contents)
    times = 1 if boot == "first" else 2
    assert all(hub.large.sent[name] == times * len(hub.files.contents[name]) for name in SHARDS)


@pytest.mark.usefixtures("hub")
async def test_where_nothing_tells_boots_apart_the_disk_is_waited_for(
    fetcher: Fetcher, machine: Machine
) -> None:
    machine.start("")
    await fetcher.fetch_order(make_order(fetcher))
    assert machine.num_waits > len(SHARDS)
    machine.start("second")
    assert find_whole(make_order(fetcher)) is not None
