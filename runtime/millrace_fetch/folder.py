"""The folder that a model is fetched into: who may write it, what is complete, what has room.

`.millrace/manifest.json` is written last, by an atomic rename: where it is, the model is whole.
"""

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath

from millrace_fetch.errors import FolderError, NoSpaceError
from millrace_fetch.links import NOFOLLOW, refuse_links
from millrace_fetch.manifest import FileRecord
from millrace_fetch.marker import Marker, forget_all_but, is_torn, read_boot, read_marker, render_marker
from millrace_fetch.names import LAYERS, OWN_FOLDER, find_fault
from millrace_fetch.part import JOURNAL, PartFile, writing
from millrace_fetch.selection import is_read

LOCK = "lock"
MANIFEST = "manifest.json"
_NEW = "manifest.json.new"
_PREVIOUS = "previous.json"
_COUNTS = "counts.json"
_LOCK_POLL_SECONDS = 0.2
_MAX_MOVES = 10
"""Of a folder that others move away before it is ours."""


class Folder:
    """A model's folder, while this process alone writes it."""

    def __init__(self, path: Path, *, is_synced: bool = True, verify: bool = False) -> None:
        """Without `is_synced` nobody waits for the disk, where the machine tells one boot from another.

        With `verify` no file of an earlier fetch is taken over without its hash.
        """
        self.path = path
        self._verify = verify
        self.boot = None if is_synced else read_boot()
        self._own = path / OWN_FOLDER
        self.parts = self._own / "parts"
        self.counts = self._own / _COUNTS
        """How far the fetch is that holds the lock."""

    @asynccontextmanager
    async def locked(
        self, say: Callable[[str], None], look: Callable[[], None] = lambda: None
    ) -> AsyncIterator[None]:
        """Hold the folder's lock, which ends with the process. Waits for another process that holds it.

        `look` is called again and again meanwhile.
        """
        lock = await self._take_lock(say, look)
        try:
            self._drop_counts()  # of a fetch that was killed: nobody is to take them for this one's
            yield
        finally:
            os.close(lock)

    @contextmanager
    def shared(self) -> Iterator[bool]:
        """Hold the folder's lock beside others that only look. Yield whether that is so.

        It is not where somebody writes or has moved the folder away, and where nobody ever fetched into it.
        """
        refuse_links(self.path, self._own / LOCK)
        try:
            lock = os.open(self._own / LOCK, os.O_RDONLY | NOFOLLOW)
        except OSError:
            yield False
            return
        try:
            yield self._try_lock(lock, fcntl.LOCK_SH) and self._is_in_place(lock)
        finally:
            os.close(lock)

    def _drop_counts(self) -> None:
        """Remove the counts. They are for others alone, so it does not matter where that fails."""
        with suppress(OSError):
            self.counts.unlink(missing_ok=True)

    async def _take_lock(self, say: Callable[[str], None], look: Callable[[], None]) -> int:
        """Return the lock's descriptor. Who evicts a folder holds its lock, and moves it away."""
        for _ in range(_MAX_MOVES):
            lock = self._open_lock()
            if lock is None:
                continue
            try:
                await self._wait_for(
                    lock, lambda: say(f"another millrace fetch writes {self.path}: waiting for it"), look
                )
                if self._is_in_place(lock):
                    return lock
            except BaseException:
                os.close(lock)
                raise
            os.close(lock)
        raise FolderError(f"{self.path} is moved away each time that it is made: let nobody else move it")

    def _open_lock(self) -> int | None:
        """Make the folder and its lock; None where it was moved away meanwhile."""
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        for name in (LOCK, MANIFEST, _NEW, _PREVIOUS, _COUNTS, "parts", "layers"):
            refuse_links(self.path, self._own / name)
        with writing(self.path), suppress(FileNotFoundError):
            self._own.mkdir(exist_ok=True)
            return os.open(self._own / LOCK, os.O_RDWR | os.O_CREAT | NOFOLLOW, 0o644)
        return None

    def _is_in_place(self, lock: int) -> bool:
        """Whether whoever comes now would wait for this lock."""
        with writing(self.path), suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(lock), (self._own / LOCK).lstat())
        return False

    async def _wait_for(self, lock: int, tell: Callable[[], None], look: Callable[[], None]) -> None:
        has_told = False
        while not self._try_lock(lock):
            if not has_told:
                tell()
                has_told = True
            look()
            await asyncio.sleep(_LOCK_POLL_SECONDS)

    def _try_lock(self, lock: int, kind: int = fcntl.LOCK_EX) -> bool:
        with writing(self._own / LOCK):
            try:
                fcntl.flock(lock, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def read_marker(self) -> Marker | None:
        """Return what is whole here, or None."""
        marker = read_marker(self._own / MANIFEST)
        return marker if marker is not None and self.believes(marker) else None

    def believes(self, marker: Marker) -> bool:
        """Whether its files are on the disk; or came in this boot, where that is enough."""
        return marker.boot in (None, self.boot)

    def read_previous(self) -> Marker | None:
        """Return what was whole here before this fetch began. It may not be believed, but is ours."""
        marker = self._own / MANIFEST
        return read_marker(marker if marker.exists() else self._own / _PREVIOUS)

    def find_doubtful(self) -> Marker | None:
        """Return what was whole here and is not believed; None where there is none such."""
        marker = read_marker(self._own / MANIFEST)
        return None if marker is None or self.believes(marker) else marker

    def list_lost(self, marker: Marker) -> list[str]:
        """Return the names of files that are not as they were. The others are on the disk, if that counts."""
        return [name for name, record in marker.files.items() if not self._has_all_of(name, record)]

    def _has_all_of(self, name: str, record: FileRecord) -> bool:
        if not self.has(name, record):
            return False
        return self._hash_file(name, is_synced=self.boot is None) == record.sha256

    def revive(self, marker: Marker, lost: Iterable[str]) -> None:
        """Believe a marker again of what is not lost."""
        for name in lost:
            self.discard(name)
        self._declare(replace(marker, boot=self.boot))

    def drop_doubtful(self) -> None:
        """Remove what was whole and nobody can believe: there may be no room for it beside what comes."""
        previous = self.read_previous()
        if previous is not None and not self.believes(previous):
            self._drop(previous)

    def _drop(self, previous: Marker) -> None:
        """Remove all files of what was whole, and then its record: the next run is to keep what comes now."""
        for name in previous.files:
            self.discard(name)
        with writing(self._own):
            (self._own / _PREVIOUS).unlink(missing_ok=True)

    def begin(self, kept: Collection[str]) -> None:
        """From now on, and until `complete`, nothing is whole here, and only `kept` is what it was.

        The disk has that before any file is replaced, whoever waits for it: after a power failure there may
        be an older marker else, that counts for all boots.
        """
        previous = self.read_previous()
        if previous is not None:
            self._write(_PREVIOUS, forget_all_but(kept, previous))
        with writing(self._own), suppress(FileNotFoundError):
            if previous is None:  # a torn one stays, to tell that there was one
                (self._own / MANIFEST).rename(self._own / _PREVIOUS)
            else:
                (self._own / MANIFEST).unlink(missing_ok=True)
            _sync_folder(self._own)

    def complete(self, marker: Marker) -> None:
        """Remove what is no longer of the model, and then say that it is whole."""
        for name in self._list_ours() - set(marker.files):
            self.discard(name)
        self._declare(marker)
        with writing(self.path):
            (self._own / _PREVIOUS).unlink(missing_ok=True)
        self._drop_counts()
        # After the marker: until then the journals tell which files are ours.
        shutil.rmtree(self.parts, ignore_errors=True)
        shutil.rmtree(self.path / LAYERS, ignore_errors=True)

    def _list_ours(self) -> set[str]:
        """Return the names of all files that fetches have put here, also of those that were killed.

        Where nobody knows it any more, they are those that a replica would read.
        """
        previous = self.read_previous()
        names = {name.removesuffix(JOURNAL) for name in _list_names(self.parts, f"*{JOURNAL}")}
        if self._has_torn_marker():
            names |= {name for name in _list_names(self.path, "*") if is_read(name)}
        return {name for name in names if find_fault(name) is None} | set(previous.files if previous else ())

    def _declare(self, marker: Marker) -> None:
        """Say what is whole, once the disk has the names of its files, and has lost those that went."""
        folders = {self.path / folder for name in marker.files for folder in PurePosixPath(name).parents}
        with writing(self.path):
            for folder in folders:
                if folder.is_dir():
                    self._sync(folder)
        self._write(MANIFEST, marker)

    def _write(self, name: str, marker: Marker) -> None:
        """Write a marker; once the disk has it, where it counts for all boots."""
        with writing(self.path):
            temporary = self._own / _NEW
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | NOFOLLOW, 0o644)
            with os.fdopen(descriptor, "w") as file:
                json.dump(render_marker(marker), file, indent=1)
                file.flush()
                if marker.boot is None:
                    os.fsync(file.fileno())
            temporary.rename(self._own / name)
            if marker.boot is None:
                _sync_folder(self._own)

    def install(self, part: Path, name: str) -> None:
        """Give a verified file its name."""
        target = self._place(name)
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            part.rename(target)
            self._sync(target.parent)

    def _sync(self, folder: Path) -> None:
        """Wait until the disk has a folder's names, unless nobody waits."""
        if self.boot is None:
            _sync_folder(folder)

    def settle(self, part: PartFile) -> FileRecord | None:
        """Give a file that an earlier process has finished its name. None where there is none such."""
        if part.finished is None:
            return None
        if part.path.exists():
            self.install(part.path, part.file.name)
        return part.finished if self.keeps(part.file.name, part.finished) else None

    def keeps(self, name: str, record: FileRecord) -> bool:
        """Whether a file of an earlier fetch is there: by its size; where it is asked for, by its hash."""
        return self.has(name, record) and (not self._verify or self.hash_file(name) == record.sha256)

    def has(self, name: str, record: FileRecord) -> bool:
        """Whether the file is there in its size."""
        path = self._place(name)
        with suppress(OSError):
            return path.lstat().st_size == record.size_bytes
        return False

    def discard(self, name: str) -> None:
        """Remove a file that is not what it should be, or no longer of the model."""
        path = self._place(name)
        with writing(path):
            path.unlink(missing_ok=True)

    def hash_file(self, name: str) -> str:
        """Return the sha256 of a file that is there."""
        return self._hash_file(name, is_synced=False)

    def _hash_file(self, name: str, *, is_synced: bool) -> str:
        """Return the sha256 of a file that is there, once the disk has it where that is asked for."""
        path = self._place(name)
        with writing(path), os.fdopen(os.open(path, os.O_RDONLY | NOFOLLOW), "rb") as file:
            if is_synced:
                os.fsync(file.fileno())
            return hashlib.file_digest(file, "sha256").hexdigest()

    def may_be_another(self, name: str) -> bool:
        """Whether a fetch that did not come to its end may have put another file in this one's place."""
        return (self.parts / f"{name}{JOURNAL}").exists()

    def check_foreign(self, names: Iterable[str]) -> None:
        """Raise FolderError where a file that is not ours would be overwritten."""
        previous, has_torn = self.read_previous(), self._has_torn_marker()
        for name in names:
            is_ours = has_torn or (previous and name in previous.files) or self.may_be_another(name)
            if self._place(name).exists() and not is_ours:
                raise FolderError(
                    f"{self.path / name} is there already, and not from millrace fetch: "
                    "give --to an empty folder"
                )

    def _has_torn_marker(self) -> bool:
        """Whether a marker is there that says nothing: then nobody knows any more which files are ours."""
        return any(is_torn(self._own / name) for name in (MANIFEST, _PREVIOUS))

    def _place(self, name: str) -> Path:
        """Return where a file is. Raises FolderError where the way there leads through a link."""
        return refuse_links(self.path, self.path / name)

    def check_space(self, num_bytes: int) -> None:
        """Raise NoSpaceError where so many bytes more do not fit."""
        with writing(self.path):
            state = os.statvfs(self.path)
        free = state.f_bavail * state.f_frsize
        if num_bytes > free:
            raise NoSpaceError(
                f"{self.path} has {free / 1e9:.1f} GB free, and {num_bytes / 1e9:.1f} GB are still to come: "
                "make room"
            )


def _list_names(folder: Path, pattern: str) -> set[str]:
    """Return the names of the plain files below a folder, as a model's files are named."""
    paths = (path for path in folder.rglob(pattern) if path.is_file() and not path.is_symlink())
    return {path.relative_to(folder).as_posix() for path in paths}


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
