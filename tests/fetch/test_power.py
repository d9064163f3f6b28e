"""A power failure at any moment: no file that is there in its size is believed to be what it is not."""

from dataclasses import replace
from pathlib import Path

import pytest

from testing.model_sources.servers import FakeHub
from tests.fetch.conftest import SHARDS, Fetcher
from tests.fetch.power import Disk

URI = "hf://org/m"
CONTENTS = {"config.json": b"{}", SHARDS[0]: b"1" * 2000, SHARDS[1]: b"2" * 2000}


@pytest.fixture
def contents() -> dict[str, bytes]:
    return dict(CONTENTS)


class Boot:
    """Of the machine."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.begin("first")

    def begin(self, name: str) -> None:
        """Start the machine again."""
        self._path.write_text(name)


@pytest.fixture
def boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Boot:
    monkeypatch.setattr("millrace_fetch.store.marker._BOOT", tmp_path / "boot_id")
    return Boot(tmp_path / "boot_id")


@pytest.fixture
def disk(fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch) -> Disk:
    fetcher.folder.mkdir()
    return Disk(fetcher.folder, monkeypatch)


async def fetch(fetcher: Fetcher, *, is_synced: bool) -> None:
    await fetcher.fetch_order(replace(fetcher.order(URI), is_synced=is_synced, connections=1))


@pytest.mark.usefixtures("boot")
@pytest.mark.parametrize("is_synced", [False, True])
async def test_of_two_revisions_none_has_files_of_the_other(
    fetcher: Fetcher, hub: FakeHub, disk: Disk, *, is_synced: bool
) -> None:
    await fetch(fetcher, is_synced=True)
    for number in ("2", "3"):
        hub.files.contents.update({name: number.encode() * 2000 for name in SHARDS})
        hub.move_on(number * 40)
        await fetch(fetcher, is_synced=is_synced)
    assert disk.num_steps > 10
    assert disk.faults == set()


@pytest.mark.usefixtures("hub")
async def test_what_a_start_lost_does_not_come_back(fetcher: Fetcher, disk: Disk, boot: Boot) -> None:
    """Nobody waited for it. Then somebody does, and it has been torn."""
    await fetch(fetcher, is_synced=False)
    boot.begin("second")
    shard = fetcher.folder / SHARDS[0]
    shard.write_bytes(bytes(shard.stat().st_size))
    for path in (shard, fetcher.folder):
        disk.keep(path)
    await fetch(fetcher, is_synced=True)
    assert disk.num_steps > 5
    assert disk.faults == set()
