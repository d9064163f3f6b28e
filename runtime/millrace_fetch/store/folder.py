"""The folder of a model: its marker, the files that belong to a fetch, and the free space.

A fetch writes `.millrace/manifest.json` last, by an atomic rename: its presence means that the model is
whole.
"""

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from pathlib import Path

from millrace_fetch.errors import FolderError, NoSpaceError
from millrace_fetch.plan.manifest import FileRecord
from millrace_fetch.plan.selection import LAYERS, OWN_FOLDER, find_fault, is_read
from millrace_fetch.plan.uri import Order
from millrace_fetch.store.files import NOFOLLOW, PlacedFiles, list_names, refuse_links, sync_folder, writing
from millrace_fetch.store.lock import FolderLock
from millrace_fetch.store.marker import Marker, forget_all_but, is_torn, read_boot, read_marker, render_marker
from millrace_fetch.transfer.partial_file import JOURNAL, PartFile

MANIFEST = "manifest.json"
_NEW = "manifest.json.new"
_PREVIOUS = "previous.json"
_OWN_NAMES = (MANIFEST, _NEW, _PREVIOUS, "parts", "layers")


class Folder:
    """A model's folder, while this process alone writes it."""

    def __init__(self, path: Path, *, is_synced: bool = True) -> None:
        """Without `is_synced` nobody waits for the disk, where the machine tells one boot from another."""
        self.path = path
        self.boot = None if is_synced else read_boot()
        self.files = PlacedFiles(path, is_synced=self.boot is None)
        self._own = path / OWN_FOLDER
        self._lock = FolderLock(path, _OWN_NAMES)
        self.parts = self._own / "parts"

    def locked(self, say: Callable[[str], None]) -> AbstractAsyncContextManager[None]:
        """Hold the folder's lock, which ends with the process. Waits for another process that holds it."""
        return self._lock.held(say)

    def shared(self) -> AbstractContextManager[bool]:
        """Hold the folder's lock beside others that only look. See FolderLock."""
        return self._lock.shared()

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

    def drop_doubtful(self) -> None:
        """Remove what was whole and nobody can believe: there may be no room for it beside what comes."""
        previous = self.read_previous()
        if previous is not None and not self.believes(previous):
            self._drop(previous)

    def _drop(self, previous: Marker) -> None:
        """Remove all files of what was whole, and then its record: the next run is to keep what comes now."""
        for name in previous.files:
            self.files.discard(name)
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
            sync_folder(self._own)

    def complete(self, marker: Marker) -> None:
        """Remove what is no longer of the model, and then say that it is whole."""
        for name in self._list_ours() - set(marker.files):
            self.files.discard(name)
        self._declare(marker)
        with writing(self.path):
            (self._own / _PREVIOUS).unlink(missing_ok=True)
        # After the marker: until then the journals tell which files are ours.
        shutil.rmtree(self.parts, ignore_errors=True)
        shutil.rmtree(self.path / LAYERS, ignore_errors=True)

    def _list_ours(self) -> set[str]:
        """Return the names of all files that fetches have put here, also of those that were killed.

        Where nobody knows it any more, they are those that a replica would read.
        """
        previous = self.read_previous()
        names = {name.removesuffix(JOURNAL) for name in list_names(self.parts, f"*{JOURNAL}")}
        if self._has_torn_marker():
            names |= {name for name in list_names(self.path, "*") if is_read(name)}
        return {name for name in names if find_fault(name) is None} | set(previous.files if previous else ())

    def _declare(self, marker: Marker) -> None:
        """Say what is whole, once the disk has the names of its files, and has lost those that went."""
        self.files.sync_folders_of(marker.files)
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
                sync_folder(self._own)

    def settle(self, part: PartFile) -> FileRecord | None:
        """Give a file that an earlier process has finished its name. None where there is none such."""
        if part.finished is None:
            return None
        if part.path.exists():
            self.files.install(part.path, part.file.name)
        return part.finished if self.files.has(part.file.name, part.finished) else None

    def may_be_another(self, name: str) -> bool:
        """Whether a fetch that did not come to its end may have put another file in this one's place."""
        return (self.parts / f"{name}{JOURNAL}").exists()

    def check_foreign(self, names: Iterable[str]) -> None:
        """Raise FolderError where a file that is not ours would be overwritten."""
        previous, has_torn = self.read_previous(), self._has_torn_marker()
        for name in names:
            is_ours = has_torn or (previous and name in previous.files) or self.may_be_another(name)
            if self.files.place(name).exists() and not is_ours:
                raise FolderError(
                    f"{self.path / name} is there already, and not from millrace fetch: "
                    "give --to an empty folder"
                )

    def _has_torn_marker(self) -> bool:
        """Whether a marker is there that says nothing: then nobody knows any more which files are ours."""
        return any(is_torn(self._own / name) for name in (MANIFEST, _PREVIOUS))

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


def find_whole(order: Order) -> Marker | None:
    """Return what the folder has of a fixed revision, if that is all of it, and nobody writes there.

    Whoever evicts a model looks for its readers while it holds the lock. So this takes part in the lock, or a
    reader that comes meanwhile would be told of a model that goes. Raises FolderError of a link.
    """
    folder = Folder(order.folder, is_synced=order.is_synced)
    refuse_links(order.folder, order.folder / OWN_FOLDER / MANIFEST)
    with folder.shared() as is_held:
        marker = folder.read_marker() if is_held else None
        if marker is None or order.fixed is None or not is_wanted(order, marker, order.fixed):
            return None
        return None if list_missing(folder, marker) else marker


def is_wanted(order: Order, marker: Marker, revision: str) -> bool:
    """Whether the marker is of the model in that revision."""
    return (order.uri.place, revision) == (marker.source, marker.revision)


def list_missing(folder: Folder, marker: Marker) -> list[str]:
    """Return the names of files that are not there in their size."""
    return [name for name, record in marker.files.items() if not folder.files.has(name, record)]
