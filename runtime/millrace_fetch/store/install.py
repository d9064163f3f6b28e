"""The files of a folder that have their names: looked at, hashed, installed and removed, past no link."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath

from millrace_fetch.plan.manifest import FileRecord
from millrace_fetch.store.links import refuse_links
from millrace_fetch.transfer.partial_file import writing


class PlacedFiles:
    """A folder's files, by their names below it."""

    def __init__(self, path: Path, *, is_synced: bool) -> None:
        """With `is_synced` the disk has what is done here before it is said to be done."""
        self._path = path
        self._is_synced = is_synced

    def place(self, name: str) -> Path:
        """Return where a file is. Raises FolderError where the way there leads through a link."""
        return refuse_links(self._path, self._path / name)

    def install(self, part: Path, name: str) -> None:
        """Give a verified file its name."""
        target = self.place(name)
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            part.rename(target)
            self._sync(target.parent)

    def sync_folders_of(self, names: Iterable[str]) -> None:
        """Wait until the disk has the names of files, and has lost those that went from beside them."""
        folders = {self._path / folder for name in names for folder in PurePosixPath(name).parents}
        with writing(self._path):
            for folder in folders:
                if folder.is_dir():
                    self._sync(folder)

    def _sync(self, folder: Path) -> None:
        """Wait until the disk has a folder's names, unless nobody waits."""
        if self._is_synced:
            sync_folder(folder)

    def has(self, name: str, record: FileRecord) -> bool:
        """Whether the file is there in its size."""
        path = self.place(name)
        with suppress(OSError):
            return path.lstat().st_size == record.size_bytes
        return False

    def discard(self, name: str) -> None:
        """Remove a file that is not what it should be, or no longer of the model."""
        path = self.place(name)
        with writing(path):
            path.unlink(missing_ok=True)


def list_names(folder: Path, pattern: str) -> set[str]:
    """Return the names of the plain files below a folder, as a model's files are named."""
    paths = (path for path in folder.rglob(pattern) if path.is_file() and not path.is_symlink())
    return {path.relative_to(folder).as_posix() for path in paths}


def sync_folder(path: Path) -> None:
    """Wait until the disk has the names of a folder's files."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
