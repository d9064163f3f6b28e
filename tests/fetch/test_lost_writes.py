"""A disk, or a volume, that tells once that it could not write: what it has lost is never called there.

A web server announces no hash, so nothing else would find it.
"""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from millrace_fetch.errors import NoSpaceError, StorageError
from tests.fetch.conftest import SHARDS, Fetcher
from tests.fetch.servers import WebFolderServer


class Disk:
    """Has of the first shard what was waited for, and fails once with the rest."""

    def __init__(self, error: int) -> None:
        self._error = error
        self._has_failed = False
        self._content = b""

    def fail(self, descriptor: int) -> None:
        """Lose what nobody waited for, and tell of it. Nothing, of other files and after the first time."""
        if (
            self._has_failed
            or _name_of(descriptor) != f"{SHARDS[0]}.part"
            or not os.fstat(descriptor).st_size
        ):
            return
        self._has_failed = True
        size = os.fstat(descriptor).st_size
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, self._content, 0)
        os.ftruncate(descriptor, size)
        raise OSError(self._error, os.strerror(self._error))

    def keep(self, descriptor: int) -> None:
        """Write all that there is."""
        if _name_of(descriptor) == f"{SHARDS[0]}.part":
            self._content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _name_of(descriptor: int) -> str:
    return Path(f"/proc/self/fd/{descriptor}").readlink().name


async def test_a_volume_that_fails_when_the_file_is_closed(
    fetcher: Fetcher, folder_server: WebFolderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, close = Disk(errno.EDQUOT), os.close

    def close_late(descriptor: int) -> None:
        try:
            disk.fail(descriptor)
        finally:
            close(descriptor)

    order = replace(fetcher.order(folder_server.uri), is_synced=False)
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", close_late)
        with pytest.raises(NoSpaceError):
            await fetcher.fetch_order(order)
    await fetcher.fetch_order(order)
    fetcher.check(folder_server.files.contents)


@pytest.mark.parametrize("num_syncs", [1, 3])
async def test_a_disk_that_fails_once_while_others_write_the_same_file(
    fetcher: Fetcher, folder_server: WebFolderServer, monkeypatch: pytest.MonkeyPatch, num_syncs: int
) -> None:
    """Who waits for it next is told nothing."""
    disk, sync, left = Disk(errno.EIO), os.fdatasync, iter(range(num_syncs))

    def fail_once(descriptor: int) -> None:
        if next(left, None) is None:
            disk.fail(descriptor)
        sync(descriptor)
        disk.keep(descriptor)

    monkeypatch.setattr("millrace_fetch.download.REQUEST_BYTES", 20_000)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail_once)
        with pytest.raises(StorageError):
            await fetcher.fetch(folder_server.uri)
    await fetcher.fetch(folder_server.uri)
    fetcher.check(folder_server.files.contents)
