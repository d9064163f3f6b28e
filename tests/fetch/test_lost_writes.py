"""A disk, or a volume, that tells once that it could not write: what it has lost is never called there.

A web server announces no hash, so nothing else would find it.
"""

import asyncio
import contextlib
import errno
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from millrace_fetch.errors import NoSpaceError, StorageError
from testing.model_sources.servers import Fault, WebFolderServer
from tests.fetch.conftest import SHARDS, Fetcher


class Disk:
    """Has of the shards what was waited for, loses the rest at once, and tells so once for each of them."""

    def __init__(self, folder: Path, error: int) -> None:
        self._parts = folder / ".millrace" / "parts"
        self._error = error
        self._content = {f"{name}.part": b"" for name in SHARDS}
        self._untold: set[str] = set()
        self._lock = threading.Lock()

    def fail(self, descriptor: int) -> None:
        """Lose what nobody waited for, or tell that it is lost; of other files nothing."""
        name = _name_of(descriptor)
        with self._lock:  # files are closed in threads
            if name in self._content and os.fstat(descriptor).st_size:
                self._lose()
            if name in self._untold:
                self._untold.remove(name)
                raise OSError(self._error, os.strerror(self._error))

    def _lose(self) -> None:
        self._untold |= {name for name in self._content if (self._parts / name).exists()}
        for path in [self._parts / name for name in self._content]:
            if path.exists():
                size = path.stat().st_size
                path.write_bytes(self._content[path.name])
                os.truncate(path, size)
        self._content.clear()

    def close(self, descriptor: int) -> None:
        """Close a file, and fail only then."""
        try:
            self.fail(descriptor)
        finally:
            os.closerange(descriptor, descriptor + 1)

    def keep(self, descriptor: int) -> None:
        """Write all that there is."""
        if _name_of(descriptor) in self._content:
            self._content[_name_of(descriptor)] = os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _name_of(descriptor: int) -> str:
    return Path(f"/proc/self/fd/{descriptor}").readlink().name


async def test_a_volume_that_fails_when_the_file_is_closed(
    fetcher: Fetcher, folder_server: WebFolderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = replace(fetcher.order(folder_server.uri), is_synced=False)
    # To the end: a file that is closed late is one of which the volume tells late.
    monkeypatch.setattr(os, "close", Disk(fetcher.folder, errno.EDQUOT).close)
    with pytest.raises(NoSpaceError):
        await fetcher.fetch_order(order)
    with contextlib.suppress(NoSpaceError):  # of the other file, if that is closed only now
        await fetcher.fetch_order(order)
    await fetcher.fetch_order(order)
    fetcher.check(folder_server.files.contents)


async def test_a_volume_that_fails_when_two_files_are_closed_after_a_stop(
    fetcher: Fetcher, folder_server: WebFolderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them is closed, and tells of itself alone."""
    files = folder_server.files
    order = replace(fetcher.order(folder_server.uri), is_synced=False)
    monkeypatch.setattr("millrace_fetch.transfer.download.REQUEST_BYTES", 10_000)
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", Disk(fetcher.folder, errno.EDQUOT).close)
        files.faults.append(_keep_open(SHARDS[0]))
        fetching = asyncio.ensure_future(fetcher.fetch_order(order))
        files.on_sent = lambda _: fetching.cancel() if files.sent[SHARDS[1]] >= 40_000 else None
        with pytest.raises((NoSpaceError, asyncio.CancelledError)):
            await fetching
    files.faults, files.on_sent = [], None
    await fetcher.fetch_order(order)
    fetcher.check(files.contents)


def _keep_open(name: str) -> Fault:
    """Never give the last bytes of a file."""

    def fault(request: web.Request) -> web.StreamResponse | None:
        is_last = request.path.endswith(name) and request.headers.get("Range") == "bytes=90000-99999"
        return web.Response(status=500) if is_last else None

    return fault


@pytest.mark.parametrize("num_syncs", [1, 3])
async def test_a_disk_that_fails_once_while_others_write_the_same_file(
    fetcher: Fetcher, folder_server: WebFolderServer, monkeypatch: pytest.MonkeyPatch, num_syncs: int
) -> None:
    """Who waits for it next is told nothing."""
    disk, sync, left = Disk(fetcher.folder, errno.EIO), os.fdatasync, iter(range(num_syncs))

    def fail_once(descriptor: int) -> None:
        if next(left, None) is None:
            disk.fail(descriptor)
        sync(descriptor)
        disk.keep(descriptor)

    monkeypatch.setattr("millrace_fetch.transfer.download.REQUEST_BYTES", 20_000)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail_once)
        with pytest.raises(StorageError):
            await fetcher.fetch(folder_server.uri)
    await fetcher.fetch(folder_server.uri)
    fetcher.check(folder_server.files.contents)
