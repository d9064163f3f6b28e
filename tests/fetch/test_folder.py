"""What is already in the folder, and what has room."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from millrace_fetch.errors import FolderError, NoSpaceError
from millrace_fetch.plan.manifest import FileRecord
from millrace_fetch.store.files import PlacedFiles
from millrace_fetch.store.folder import Folder, find_whole
from millrace_fetch.store.lock import FolderLock
from millrace_fetch.transfer.client import Client
from millrace_fetch.transfer.partial_file import PartFile
from millrace_fetch.transfer.ranges import Span
from testing.model_sources.processes import until
from testing.model_sources.servers import FakeHub
from tests.fetch.conftest import SHARDS, Fetcher

URI = "hf://org/m"


async def test_files_of_others_are_never_overwritten(fetcher: Fetcher, hub: FakeHub) -> None:
    fetcher.folder.mkdir()
    (fetcher.folder / "config.json").write_text("mine")
    for _ in range(2):
        with pytest.raises(
            FolderError, match=r"config\.json exists already, and millrace fetch did not write it"
        ):
            await fetcher.fetch(URI)
    assert (fetcher.folder / "config.json").read_text() == "mine"
    assert hub.large.requests == []


async def test_what_does_not_fit_is_not_begun(
    fetcher: Fetcher, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=10, f_frsize=4096))
    with pytest.raises(NoSpaceError, match=r"0\.0 GB free, and the fetch needs 0\.0 GB: make room"):
        await fetcher.fetch(URI)
    assert hub.large.requests == []


async def test_a_kill_before_a_file_has_its_name_costs_nothing(
    fetcher: Fetcher, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_files: PlacedFiles, _part: Path, name: str) -> None:
        if name == SHARDS[1]:
            raise RuntimeError("killed")

    install = PlacedFiles.install
    monkeypatch.setattr(PlacedFiles, "install", lambda *a: (die(*a), install(*a)))
    with pytest.raises(RuntimeError, match="killed"):
        await fetcher.fetch(URI)
    monkeypatch.setattr(PlacedFiles, "install", install)
    await fetcher.fetch(URI)
    fetcher.check(hub.files.contents)
    assert hub.large.sent[SHARDS[1]] == len(hub.files.contents[SHARDS[1]])


async def test_a_finished_file_that_is_gone_comes_again(
    fetcher: Fetcher, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def complete(_folder: Folder, _marker: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "complete", complete)
        with pytest.raises(RuntimeError, match="killed"):
            await fetcher.fetch(URI)
    for name in fetcher.names():
        (fetcher.folder / name).unlink()
    await fetcher.fetch(URI)
    fetcher.check(hub.files.contents)
    assert fetcher.witness.done == fetcher.witness.total


async def test_a_folder_that_cannot_be_made_says_so(fetcher: Fetcher, hub: FakeHub) -> None:
    fetcher.folder.write_text("a file")
    with pytest.raises(FolderError, match="can't be written"):
        await fetcher.fetch(URI)
    assert hub.num_api_requests == 0


async def test_bytes_that_rotted_between_two_runs_are_fetched_anew(fetcher: Fetcher, hub: FakeHub) -> None:
    async with _Resumed(fetcher, hub) as part:
        part.write(0, b"rotten")
        part.note(Span(0, 6))
        part.close()
    await fetcher.fetch(URI)
    fetcher.check(hub.files.contents)
    assert any("fetching it again" in text for text in fetcher.witness.said)


async def test_a_journal_with_a_torn_line_is_read_up_to_it(fetcher: Fetcher, hub: FakeHub) -> None:
    content = hub.files.contents[SHARDS[0]]
    async with _Resumed(fetcher, hub) as part:
        part.write(0, content[:50_000])
        part.note(Span(0, 50_000))
        part.close()
        with (fetcher.folder / ".millrace" / "parts" / f"{SHARDS[0]}.journal").open("a") as journal:
            journal.write('{"done": [50000, 99')
    await fetcher.fetch(URI)
    fetcher.check(hub.files.contents)
    assert hub.large.sent[SHARDS[0]] == len(content) - 50_000


class _Resumed:
    """The first shard's part, as a killed process left it."""

    def __init__(self, fetcher: Fetcher, hub: FakeHub) -> None:
        self._fetcher, self._hub = fetcher, hub

    async def __aenter__(self) -> PartFile:
        source = self._fetcher.hub_source()
        async with Client(source.authorize, 1) as client:
            manifest = await source.resolve(client, self._fetcher.witness.say)
        part = PartFile(self._fetcher.folder / ".millrace" / "parts", manifest.by_name()[SHARDS[0]])
        part.open()
        return part

    async def __aexit__(self, *_: object) -> None:
        assert self._hub.large.requests == []


def test_a_marker_of_another_version_is_no_marker(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    (tmp_path / ".millrace").mkdir()
    outside = (
        '{"source": "", "revision": "", "include": [], "files": '
        '{"../x": {"size_bytes": 1, "sha256": "", "identity": null}}}'
    )
    for text in ("", "[]", "{}", '{"files": {"a": 1}}', outside):
        (tmp_path / ".millrace" / "manifest.json").write_text(text)
        assert folder.read_marker() is None
    assert not folder.files.has("absent", FileRecord(1, "", None))


PLANTED = [
    ".millrace",
    ".millrace/lock",
    ".millrace/manifest.json",
    ".millrace/manifest.json.new",
    ".millrace/parts",
    f".millrace/parts/{SHARDS[0]}.part",
    f".millrace/parts/{SHARDS[0]}.journal",
    SHARDS[0],
    "additional_chat_templates",
]


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("is_folder", [False, True])
async def test_nothing_goes_through_a_link_that_others_planted(
    fetcher: Fetcher, hub: FakeHub, tmp_path: Path, name: str, *, is_folder: bool
) -> None:
    hub.files.contents["additional_chat_templates/tools.jinja"] = b"{{ tools }}"
    outside = tmp_path / "outside"
    if is_folder:
        outside.mkdir()
    else:
        outside.write_text("not ours")
    link = fetcher.folder / name
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    with pytest.raises(
        FolderError, match=f"{name} is a symbolic link; millrace neither follows nor replaces it"
    ):
        await fetcher.fetch(URI)
    assert list(outside.iterdir()) == [] if is_folder else outside.read_text() == "not ours"
    assert link.is_symlink()


async def test_a_link_in_the_place_of_a_fetched_file_is_not_read(
    fetcher: Fetcher, hub: FakeHub, tmp_path: Path
) -> None:
    await fetcher.fetch(URI)
    outside = tmp_path / "outside"
    outside.write_bytes(hub.files.contents[SHARDS[0]])
    (fetcher.folder / SHARDS[0]).unlink()
    (fetcher.folder / SHARDS[0]).symlink_to(outside)
    with pytest.raises(FolderError, match="is a symbolic link"):
        await fetcher.fetch(URI)


async def test_the_folder_itself_may_be_a_link(fetcher: Fetcher, hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    fetcher.folder.symlink_to(tmp_path / "disk")
    await fetcher.fetch(URI)
    fetcher.check(hub.files.contents)


async def test_who_waited_for_a_folder_that_was_moved_away_makes_it_anew(
    fetcher: Fetcher, hub: FakeHub, tmp_path: Path
) -> None:
    await fetcher.fetch(URI)
    evicted = tmp_path / "evicted"
    async with Folder(fetcher.folder).locked(fetcher.witness.say):
        waiting = asyncio.ensure_future(fetcher.fetch(URI))
        await until(lambda: any("waiting for it" in text for text in fetcher.witness.said))
        fetcher.folder.rename(evicted)
    assert (await waiting).has_fetched
    fetcher.check(hub.files.contents)


async def test_who_takes_a_lock_of_a_folder_that_another_made_anew_waits_for_that_one(tmp_path: Path) -> None:
    """Two wait, the folder is moved away, and they never hold it both."""
    path, holders, most = tmp_path / "model", 0, 0

    async def hold() -> None:
        nonlocal holders, most
        async with Folder(path).locked(lambda _: None):
            holders += 1
            most = max(most, holders)
            await asyncio.sleep(0.3)
            holders -= 1

    async with Folder(path).locked(lambda _: None):
        waiting = [asyncio.ensure_future(hold()) for _ in range(3)]
        await asyncio.sleep(0.3)
        path.rename(tmp_path / "evicted")
    await asyncio.gather(*waiting)
    assert most == 1


async def test_a_whole_model_is_found_beside_others_who_look_and_not_while_somebody_may_evict_it(
    fetcher: Fetcher, hub: FakeHub, tmp_path: Path
) -> None:
    await fetcher.fetch(URI)
    order = replace(fetcher.order(URI), revision=hub.commit)
    folder = Folder(fetcher.folder)
    with folder.shared() as is_held:
        assert is_held
        assert find_whole(order) is not None
    async with folder.locked(fetcher.witness.say):
        assert find_whole(order) is None, "whoever holds the lock may be about to move it away"
        fetcher.folder.rename(tmp_path / "evicted")
        fetcher.folder.mkdir()
        assert find_whole(order) is None
    assert find_whole(replace(order, folder=tmp_path / "absent")) is None


async def test_a_folder_that_is_always_moved_away_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FolderLock, "_is_in_place", lambda _folder, _lock: False)
    with pytest.raises(FolderError, match=r"another process moves .* away again and again"):
        async with Folder(tmp_path / "model").locked(lambda _: None):
            raise AssertionError("it was entered")


async def test_a_pipe_is_not_waited_for(fetcher: Fetcher, hub: FakeHub) -> None:
    (fetcher.folder / ".millrace").mkdir(parents=True)
    os.mkfifo(fetcher.folder / ".millrace" / "manifest.json")
    with pytest.raises(FolderError, match="is no regular file"):
        await fetcher.fetch(URI)
    assert hub.num_api_requests == 0
