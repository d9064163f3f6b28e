"""Installs and removes the files of a folder, follows no link, and translates disk errors."""

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
"""Of volumes over a network, mostly. Others, such as a folder of another user, stay."""
NOFOLLOW = os.O_NOFOLLOW | os.O_CLOEXEC
"""For every open: a link that came after the look is refused, too."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say what an OSError means for the user."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise NoSpaceError(
                f"no space left for {path} ({error.strerror}): make room and run it again; it goes on "
                "from there"
            ) from error
        kind = StorageError if error.errno in _PASSING else FolderError
        raise kind(f"{path} can't be written ({error.strerror or error})") from error


def refuse_links(root: Path, path: Path) -> Path:
    """Return the path. Raises FolderError where what is there is no plain file or folder, at any depth.

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
            kind = "a symbolic link" if stat.S_ISLNK(mode) else "no plain file"
            raise FolderError(f"{root / part} is {kind}, which is never followed nor replaced: remove it")
    return path


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
