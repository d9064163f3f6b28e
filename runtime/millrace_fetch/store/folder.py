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
from millrace_fetch.plan.selection import is_read
from millrace_fetch.plan.unsafe_names import LAYERS, OWN_FOLDER, find_fault
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
        """Without `is_synced` the fetch does not wait for the disk, if the machine has a boot id."""
        self.path = path
        self.boot = None if is_synced else read_boot()
        self.files = PlacedFiles(path, is_synced=self.boot is None)
        self._own = path / OWN_FOLDER
        self._lock = FolderLock(path, _OWN_NAMES)
        self.parts = self._own / "parts"

    def locked(self, say: Callable[[str], None]) -> AbstractAsyncContextManager[None]:
        """Hold the folder's lock while entered. Waits for another holder."""
        return self._lock.held(say)

    def shared(self) -> AbstractContextManager[bool]:
        """Hold a shared lock of the folder, to read it. See FolderLock.shared."""
        return self._lock.shared()

    def read_marker(self) -> Marker | None:
        """Return the marker of a whole model in the folder, or None."""
        marker = read_marker(self._own / MANIFEST)
        return marker if marker is not None and self.believes(marker) else None

    def believes(self, marker: Marker) -> bool:
        """Whether its files are surely on the disk, or were written in this boot if that is enough."""
        return marker.boot in (None, self.boot)

    def read_previous(self) -> Marker | None:
        """Return the marker from before this fetch. Its files are ours, but may be damaged."""
        marker = self._own / MANIFEST
        return read_marker(marker if marker.exists() else self._own / _PREVIOUS)

    def drop_doubtful(self) -> None:
        """Remove the files of a marker of another boot: the disk may have no room for old and new ones."""
        previous = self.read_previous()
        if previous is not None and not self.believes(previous):
            self._drop(previous)

    def _drop(self, previous: Marker) -> None:
        """Remove all files of an old marker, then the marker: the next run must keep the new files."""
        for name in previous.files:
            self.files.discard(name)
        with writing(self._own):
            (self._own / _PREVIOUS).unlink(missing_ok=True)

    def begin(self, kept: Collection[str]) -> None:
        """Declare the folder incomplete until `complete`; only `kept` files stay as they were.

        It waits for the disk even without `is_synced`: otherwise a power failure could bring back an older
        marker that counts for all boots.
        """
        previous = self.read_previous()
        if previous is not None:
            self._write(_PREVIOUS, forget_all_but(kept, previous))
        with writing(self._own), suppress(FileNotFoundError):
            if previous is None:  # a torn marker stays as a sign that a fetch was here
                (self._own / MANIFEST).rename(self._own / _PREVIOUS)
            else:
                (self._own / MANIFEST).unlink(missing_ok=True)
            sync_folder(self._own)

    def complete(self, marker: Marker) -> None:
        """Remove files that no longer belong to the model, then write the marker."""
        for name in self._list_ours() - set(marker.files):
            self.files.discard(name)
        self._declare(marker)
        with writing(self.path):
            (self._own / _PREVIOUS).unlink(missing_ok=True)
        # After the marker: until then the journals show which files are ours.
        shutil.rmtree(self.parts, ignore_errors=True)
        shutil.rmtree(self.path / LAYERS, ignore_errors=True)

    def _list_ours(self) -> set[str]:
        """Return the names of all files that fetches have written here, also killed ones.

        With a torn marker these are all files that a replica would read.
        """
        previous = self.read_previous()
        names = {name.removesuffix(JOURNAL) for name in list_names(self.parts, f"*{JOURNAL}")}
        if self._has_torn_marker():
            names |= {name for name in list_names(self.path, "*") if is_read(name)}
        return {name for name in names if find_fault(name) is None} | set(previous.files if previous else ())

    def _declare(self, marker: Marker) -> None:
        """Write the marker, once the disk has the names of the files and no longer those of removed ones."""
        self.files.sync_folders_of(marker.files)
        self._write(MANIFEST, marker)

    def _write(self, name: str, marker: Marker) -> None:
        """Write a marker. Waits for the disk if it counts for all boots."""
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
        """Install a file that an earlier process has finished. Return its record; None if there is none."""
        if part.finished is None:
            return None
        if part.path.exists():
            self.files.install(part.path, part.file.name)
        return part.finished if self.files.has(part.file.name, part.finished) else None

    def may_be_another(self, name: str) -> bool:
        """Whether an interrupted fetch may have replaced this file."""
        return (self.parts / f"{name}{JOURNAL}").exists()

    def check_foreign(self, names: Iterable[str]) -> None:
        """Raise FolderError if the fetch would overwrite a foreign file."""
        previous, has_torn = self.read_previous(), self._has_torn_marker()
        for name in names:
            is_ours = has_torn or (previous and name in previous.files) or self.may_be_another(name)
            if self.files.place(name).exists() and not is_ours:
                raise FolderError(
                    f"{self.path / name} exists already, and millrace fetch did not write it: "
                    "give --to an empty folder"
                )

    def _has_torn_marker(self) -> bool:
        """Whether a marker is torn: then nothing records which files are ours."""
        return any(is_torn(self._own / name) for name in (MANIFEST, _PREVIOUS))

    def check_space(self, num_bytes: int) -> None:
        """Raise NoSpaceError if the disk has no room for so many bytes more."""
        with writing(self.path):
            state = os.statvfs(self.path)
        free = state.f_bavail * state.f_frsize
        if num_bytes > free:
            raise NoSpaceError(
                f"{self.path} has {free / 1e9:.1f} GB free, and the fetch needs {num_bytes / 1e9:.1f} GB: "
                "make room"
            )


def find_whole(order: Order) -> Marker | None:
    """Return the marker if the folder holds the fixed revision completely, and no process writes there.

    The node cache holds the lock while it looks for a model's readers. Without the shared lock here, a new
    reader could find a model that is being evicted. Raises FolderError for a link.
    """
    folder = Folder(order.folder, is_synced=order.is_synced)
    refuse_links(order.folder, order.folder / OWN_FOLDER / MANIFEST)
    with folder.shared() as is_held:
        marker = folder.read_marker() if is_held else None
        if marker is None or order.fixed is None or not is_wanted(order, marker, order.fixed):
            return None
        return None if list_missing(folder, marker) else marker


def is_wanted(order: Order, marker: Marker, revision: str) -> bool:
    """Whether the marker names the order's model in that revision."""
    return (order.uri.place, revision) == (marker.source, marker.revision)


def list_missing(folder: Folder, marker: Marker) -> list[str]:
    """Return the names of files that are absent or of another size."""
    return [name for name, record in marker.files.items() if not folder.files.has(name, record)]
