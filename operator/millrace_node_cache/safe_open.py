"""Opens folders below a folder of ours, and never through a link.

Tenants write into their namespace's folder. A link that a tenant puts there must not lead out of it, so each
step of a path is opened by itself, from the folder above it.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""A pipe in the place of a file does not block."""
_PLACE = os.O_PATH | FOLDER
"""The folder itself, even if it may not be read."""
NO_PLACE = (errno.ELOOP, errno.ENOTDIR, errno.ENOENT, errno.EISDIR, errno.ENXIO)
"""The errors of a path that leads through a link or a file, or to nothing."""


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
    """Return the text of a plain file; None if there is none, or it is larger than `most_bytes`."""
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
    """Return the bytes of the disk that a folder and its content take."""
    blocks = 0
    for _, folders, files, descriptor in os.fwalk(name, dir_fd=folder, follow_symlinks=False):
        for entry in (*folders, *files):
            try:
                state = os.stat(entry, dir_fd=descriptor, follow_symlinks=False)
                # A file with several names takes its room once.
                blocks += state.st_blocks if entry in folders else state.st_blocks // state.st_nlink
            except FileNotFoundError:
                continue  # a fetch has just renamed it
    return blocks * 512


def unlock(top: str) -> None:
    """Let the owner of these folders remove their content. Raises OSError."""
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
