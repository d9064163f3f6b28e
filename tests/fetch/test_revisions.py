"""One revision, or one source, after another in a folder: no file of the one is taken for the other's."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from millrace_fetch.errors import FolderError, NoSpaceError
from millrace_fetch.store.folder import Folder
from testing.model_sources.servers import FakeHub, WebFolderServer
from tests.fetch.conftest import INDEX, NEEDED, SHARDS, Fetcher, make_model

URI = "hf://org/m"


async def fetch_and_die(fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch, uri: str = URI) -> None:
    """Fetch all, and be killed before the marker is written."""

    def die(_folder: Folder, _marker: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "complete", die)
        with pytest.raises(RuntimeError, match="killed"):
            await fetcher.fetch(uri)


def turn(contents: dict[str, bytes]) -> dict[str, bytes]:
    """Return other bytes in files of the same names and sizes."""
    return contents | {name: bytes(reversed(contents[name])) for name in SHARDS}


def put_in_one_file(contents: dict[str, bytes]) -> dict[str, bytes]:
    small = [name for name in NEEDED if name not in (INDEX, *SHARDS)]
    return {name: contents[name] for name in small} | {"model.safetensors": b"w" * 5000}


async def test_going_back_from_half_a_revision_brings_the_old_bytes(
    fetcher: Fetcher, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its shards have the names and the sizes of those that were whole."""
    old = dict(hub.files.contents)
    await fetcher.fetch(URI)
    hub.become("2" * 40, turn(old))
    await fetch_and_die(fetcher, monkeypatch)
    hub.become("1" * 40, old)
    await fetcher.fetch(URI)
    fetcher.check(old)


async def test_a_folder_that_an_earlier_version_left_so_is_not_believed_either(
    fetcher: Fetcher, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wrote down nothing of the files that it was about to replace. Their journals tell."""
    old = dict(hub.files.contents)
    await fetcher.fetch(URI)
    own = fetcher.folder / ".millrace"
    marker = (own / "manifest.json").read_text()
    hub.become("2" * 40, turn(old))
    await fetch_and_die(fetcher, monkeypatch)
    (own / "previous.json").write_text(marker)
    hub.become("1" * 40, old)
    await fetcher.fetch(URI)
    fetcher.check(old)


async def test_a_disk_that_is_full_between_two_revisions_mixes_nothing(
    fetcher: Fetcher, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = dict(hub.files.contents)
    await fetcher.fetch(URI)
    hub.become("2" * 40, turn(old))
    await fetch_and_die(fetcher, monkeypatch)
    third = turn(old) | {name: b"3" * len(old[name]) for name in SHARDS}
    hub.become("3" * 40, third)
    make = os.open

    def refuse(path: Path, flags: int, *more: int, **named: int) -> int:
        if str(path).endswith(".part") and flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "full")
        return make(path, flags, *more, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(NoSpaceError):
            await fetcher.fetch(URI)
    hub.become("1" * 40, old)
    await fetcher.fetch(URI)
    fetcher.check(old)


async def test_what_a_killed_fetch_of_another_revision_left_goes(
    fetcher: Fetcher, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica would read the index that is left, and the shards that it names."""
    old = dict(hub.files.contents)
    new = put_in_one_file(old)
    await fetch_and_die(fetcher, monkeypatch)
    hub.become("2" * 40, new)
    await fetcher.fetch(URI)
    fetcher.check(new, list(new))
    hub.become("3" * 40, old)
    await fetcher.fetch(URI)
    fetcher.check(old)


async def test_a_torn_marker_leaves_no_file_of_the_model_that_was(fetcher: Fetcher, hub: FakeHub) -> None:
    await fetcher.fetch(URI)
    (fetcher.folder / ".millrace" / "manifest.json").write_text("")
    new = put_in_one_file(dict(hub.files.contents))
    hub.become("2" * 40, new)
    await fetcher.fetch(URI)
    fetcher.check(new, list(new))


async def test_a_marker_that_can_not_be_read_just_now_is_not_a_torn_one(
    fetcher: Fetcher, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the files of others in the folder would go."""
    own = fetcher.folder / ".millrace"
    own.mkdir(parents=True)
    (own / "manifest.json").write_text("")
    (fetcher.folder / "config.json").write_text("mine")
    read = Path.read_text

    def fail(path: Path, *more: str, **named: str) -> str:
        if path.name == "manifest.json":
            raise OSError(errno.EIO, "broken")
        return read(path, *more, **named)

    monkeypatch.setattr(Path, "read_text", fail)
    with pytest.raises(FolderError, match="exists already, and millrace fetch did not write it"):
        await fetcher.fetch(URI)
    assert (fetcher.folder / "config.json").read_text() == "mine"
    assert hub.large.requests == []


@pytest.mark.parametrize("is_killed", [False, True])
async def test_two_folders_of_web_servers_with_the_same_dates_are_two(
    fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch, *, is_killed: bool
) -> None:
    """As of two fine-tunes in images that are built alike: many servers make ETags of date and size."""
    first = make_model()
    async with WebFolderServer(first) as one, WebFolderServer(turn(first)) as other:
        for server in (one, other):
            server.files.etags.update({name: f'"0-{len(content):x}"' for name, content in first.items()})
        if is_killed:
            await fetch_and_die(fetcher, monkeypatch, one.uri)
        else:
            await fetcher.fetch(one.uri)
        await fetcher.fetch(other.uri)
    fetcher.check(turn(first))


async def test_a_revision_that_has_no_room_leaves_the_one_that_is_whole(
    fetcher: Fetcher, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = dict(hub.files.contents)
    await fetcher.fetch(URI)
    hub.become("2" * 40, turn(old))
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=10, f_frsize=4096))
        with pytest.raises(NoSpaceError):
            await fetcher.fetch(URI)
    fetcher.check(old)
    hub.become("1" * 40, old)
    assert not (await fetcher.fetch(URI)).has_fetched
