"""Opens folders below one that is ours, and never through a link.

Tenants write what is in their namespace's folder. A link that one of them puts there must lead nobody out of
it, so each step of a path is opened by itself, from the folder above it.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""A pipe in the place of a file keeps nobody waiting."""
_PLACE = os.O_PATH | FOLDER
"""A folder itself, also where it may not be read."""
NO_PLACE = (errno.ELOOP, errno.ENOTDIR, errno.ENOENT, errno.EISDIR, errno.ENXIO)
"""What a path that leads through a link, a file or nothing is answered with."""


@contextmanager
def opened(top: int | str, *parts: str) -> Iterator[int]:
    """Yield a descriptor of the folder at `parts` below `top`. Raises OSError."""
    with ExitStack() as stack:
        folder = os.open(top, FOLDER & ~os.O_NOFOLLOW) if isinstance(top, str) else os.dup(top)
        stack.callback(os.close, folder)
        for part in parts:
            folder = os.open(part, FOLDER, dir_fd=folder)
            stack.callback(os.close, folder)
        yield folder


def list_folders(folder: int) -> Iterator[str]:
    """Yield the names of the folders in this one."""
    with os.scandir(folder) as entries:
        yield from (entry.name for entry in entries if entry.is_dir(follow_symlinks=False))


def read_file(folder: int, name: str, most_bytes: int) -> str | None:
    """Return what a plain file has; None where there is none such, or it is larger."""
    try:
        descriptor = os.open(name, os.O_RDONLY | FILE, dir_fd=folder)
    except OSError as error:
        if error.errno in NO_PLACE:
            return None
        raise
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        is_fine = stat.S_ISREG(state.st_mode) and state.st_size <= most_bytes
        return file.read(most_bytes).decode(errors="replace") if is_fine else None


def measure(folder: int, name: str) -> int:
    """Return what a folder takes of the disk with all that is in it."""
    blocks = 0
    for _, folders, files, descriptor in os.fwalk(name, dir_fd=folder, follow_symlinks=False):
        for entry in (*folders, *files):
            try:
                state = os.stat(entry, dir_fd=descriptor, follow_symlinks=False)
                # A file of many names counts once, as it takes its room once.
                blocks += state.st_blocks if entry in folders else state.st_blocks // state.st_nlink
            except FileNotFoundError:
                continue  # a fetch has just given it its name
    return blocks * 512


def unlock(top: str) -> None:
    """Let the owner of these folders remove what is in them. Raises OSError."""
    _let_write(os.open(top, _PLACE))
    for _, folders, _, descriptor in os.fwalk(top, follow_symlinks=False):
        for name in folders:
            try:
                _let_write(os.open(name, _PLACE, dir_fd=descriptor))
            except OSError as error:
                if error.errno not in NO_PLACE:
                    raise


def _let_write(place: int) -> None:
    try:
        os.chmod(f"/proc/self/fd/{place}", 0o700)  # noqa: PTH101  by a descriptor no link is followed
    finally:
        os.close(place)
