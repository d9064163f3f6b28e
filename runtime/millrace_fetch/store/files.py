"""Installs and removes the files of a folder, follows no link, and explains the disk's errors."""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from millrace_fetch.errors import FolderError, NoSpaceError, StorageError
from millrace_fetch.plan.manifest import FileRecord

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PASSING = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOLCK, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that may pass by themselves, mostly of network volumes. Others, such as a missing right, stay until
a person changes something."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Translate an OSError inside the context into a FolderError that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise NoSpaceError(
                f"no space left for {path} ({error.strerror}): make room and run it again; it continues "
                "from here"
            ) from error
        kind = StorageError if error.errno in _PASSING else FolderError
        raise kind(f"{path} can't be written ({error.strerror or error})") from error


NOFOLLOW = os.O_NOFOLLOW | os.O_CLOEXEC
"""For every open: it also refuses a link that was made after `refuse_links`."""


def refuse_links(root: Path, path: Path) -> Path:
    """Return the path. Raises FolderError if any part of it below `root` is no regular file or folder.

    `root` itself is the user's choice, and may be a link.
    """
    below = path.relative_to(root)
    for part in [*reversed(below.parents), below][1:]:
        try:
            mode = (root / part).lstat().st_mode
        except FileNotFoundError:
            break
        except OSError as error:
            raise FolderError(f"{root / part} can't be read ({error.strerror})") from error
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            kind = "a symbolic link" if stat.S_ISLNK(mode) else "no regular file"
            raise FolderError(f"{root / part} is {kind}; millrace neither follows nor replaces it: remove it")
    return path


class PlacedFiles:
    """The installed files of a folder, by their names below it."""

    def __init__(self, path: Path, *, is_synced: bool) -> None:
        """With `is_synced`, each method waits for the disk."""
        self._path = path
        self._is_synced = is_synced

    def place(self, name: str) -> Path:
        """Return a file's path. Raises FolderError if it leads through a link."""
        return refuse_links(self._path, self._path / name)

    def install(self, part: Path, name: str) -> None:
        """Rename a verified file to its final name."""
        target = self.place(name)
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            part.rename(target)
            self._sync(target.parent)

    def sync_folders_of(self, names: Iterable[str]) -> None:
        """Wait until the disk has the names of these files, and has lost the names of removed ones."""
        folders = {self._path / folder for name in names for folder in PurePosixPath(name).parents}
        with writing(self._path):
            for folder in folders:
                if folder.is_dir():
                    self._sync(folder)

    def _sync(self, folder: Path) -> None:
        """Wait until the disk has a folder's names, with `is_synced` only."""
        if self._is_synced:
            sync_folder(folder)

    def has(self, name: str, record: FileRecord) -> bool:
        """Whether the file exists in its recorded size."""
        path = self.place(name)
        with suppress(OSError):
            return path.lstat().st_size == record.size_bytes
        return False

    def discard(self, name: str) -> None:
        """Remove a file that is damaged, or no longer belongs to the model."""
        path = self.place(name)
        with writing(path):
            path.unlink(missing_ok=True)


def list_names(folder: Path, pattern: str) -> set[str]:
    """Return the names of the regular files below a folder, relative to it."""
    paths = (path for path in folder.rglob(pattern) if path.is_file() and not path.is_symlink())
    return {path.relative_to(folder).as_posix() for path in paths}


def sync_folder(path: Path) -> None:
    """Wait until the disk has the names of a folder's files."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
