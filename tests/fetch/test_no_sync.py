"""A fetch that does not wait for the disk: what it brought counts until the machine starts again."""

import errno
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from millrace_fetch.errors import NoSpaceError
from millrace_fetch.plan.uri import Order
from millrace_fetch.store.folder import find_whole
from testing.model_sources.servers import FakeHub
from tests.fetch.conftest import NEEDED, SHARDS, Fetcher

URI = f"hf://org/m@{'1' * 40}"


class Machine:
    """What a fetch sees of the machine."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._boot = folder / "boot_id"
        self.num_waits = 0
        monkeypatch.setattr("millrace_fetch.store.marker._BOOT", self._boot)
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


async def fail_at_the_end(fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch, order: Order) -> None:
    def die(*_: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("millrace_fetch.store.folder.Folder.complete", die)
        with pytest.raises(RuntimeError, match="killed"):
            await fetcher.fetch_order(order)


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


@pytest.mark.parametrize(("boot", "is_synced"), [("second", False), ("second", True), ("first", True)])
async def test_what_nobody_waited_for_comes_anew_after_a_start_and_for_who_waits(
    fetcher: Fetcher, hub: FakeHub, machine: Machine, boot: str, *, is_synced: bool
) -> None:
    await fetcher.fetch_order(make_order(fetcher))
    machine.start(boot)
    shard = fetcher.folder / SHARDS[0]
    shard.write_bytes(bytes(shard.stat().st_size))  # its name and its size, and nothing that was written
    assert find_whole(make_order(fetcher, is_synced=is_synced)) is None
    await fetcher.fetch_order(make_order(fetcher, is_synced=is_synced))
    fetcher.check(hub.files.contents)
    assert all(hub.large.sent[name] == 2 * len(hub.files.contents[name]) for name in SHARDS)
    machine.start("third")
    assert (find_whole(make_order(fetcher)) is not None) is is_synced


@pytest.mark.parametrize("text", ["", None])
async def test_a_marker_that_a_power_failure_took_refuses_nothing(
    fetcher: Fetcher, hub: FakeHub, machine: Machine, text: str | None
) -> None:
    """The disk has the marker's name, or that of the one before, and not what was written there."""
    await fetcher.fetch_order(make_order(fetcher))
    own = fetcher.folder / ".millrace"
    (own / "manifest.json").write_text("")
    if text is None:
        (own / "manifest.json").rename(own / "previous.json")
    machine.start("second")
    await fetcher.fetch_order(make_order(fetcher))
    fetcher.check(hub.files.contents)


async def test_what_nobody_believes_takes_no_room(
    fetcher: Fetcher, hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod has room for its model once."""
    room = int(1.5 * sum(len(hub.files.contents[name]) for name in NEEDED))

    def count(_: Path) -> SimpleNamespace:
        used = sum(path.stat().st_size for path in fetcher.folder.rglob("*") if path.is_file())
        return SimpleNamespace(f_bavail=room - used, f_frsize=1)

    monkeypatch.setattr(os, "statvfs", count)
    await fetcher.fetch_order(make_order(fetcher))
    machine.start("second")
    for name in SHARDS:
        (fetcher.folder / name).write_bytes(bytes(len(hub.files.contents[name])))
    await fetcher.fetch_order(make_order(fetcher))
    fetcher.check(hub.files.contents)
    own = fetcher.folder / ".millrace"
    (own / "manifest.json").rename(own / "previous.json")
    machine.start("third")
    await fetcher.fetch_order(make_order(fetcher))
    fetcher.check(hub.files.contents)


@pytest.mark.parametrize("is_synced", [False, True])
async def test_what_nobody_believes_goes_once(
    fetcher: Fetcher, hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch, *, is_synced: bool
) -> None:
    """A fetch that is killed again and again goes on each time."""
    await fetcher.fetch_order(make_order(fetcher))
    own = fetcher.folder / ".millrace"
    (own / "manifest.json").rename(own / "previous.json")
    machine.start("second")
    for _ in range(2):
        await fail_at_the_end(fetcher, monkeypatch, make_order(fetcher, is_synced=is_synced))
    await fetcher.fetch_order(make_order(fetcher, is_synced=is_synced))
    fetcher.check(hub.files.contents)
    assert all(hub.large.sent[name] == 2 * len(hub.files.contents[name]) for name in SHARDS)


@pytest.mark.parametrize("is_synced", [False, True])
async def test_a_volume_that_tells_at_its_end_that_it_could_not_write_is_believed(
    fetcher: Fetcher, hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch, *, is_synced: bool
) -> None:
    """One over a network, or with a quota. What the file had is lost."""
    close, lost = os.close, []

    def close_late(descriptor: int) -> None:
        is_part = Path(f"/proc/self/fd/{descriptor}").readlink().name == f"{SHARDS[0]}.part"
        size = os.fstat(descriptor).st_size
        if is_part and not lost:
            os.ftruncate(descriptor, 0)
            os.ftruncate(descriptor, size)
        close(descriptor)
        if is_part and not lost:
            lost.append(descriptor)
            raise OSError(errno.EDQUOT, "quota")

    monkeypatch.setattr(os, "close", close_late)
    with pytest.raises(NoSpaceError):
        await fetcher.fetch_order(make_order(fetcher, is_synced=is_synced))
    await fetcher.fetch_order(make_order(fetcher, is_synced=is_synced))
    fetcher.check(hub.files.contents)
    assert machine.num_waits > 0 if is_synced else machine.num_waits == 0


async def test_who_stops_waiting_goes_on_with_what_was_waited_for(
    fetcher: Fetcher, hub: FakeHub, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fail_at_the_end(fetcher, monkeypatch, make_order(fetcher, is_synced=True))
    await fetcher.fetch_order(make_order(fetcher))
    fetcher.check(hub.files.contents)
    assert all(hub.large.sent[name] == len(hub.files.contents[name]) for name in SHARDS)
    assert machine.num_waits > 0


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
    await fail_at_the_end(fetcher, monkeypatch, make_order(fetcher))
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
