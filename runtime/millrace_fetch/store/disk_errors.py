"""Errors of the disk: no space, what passes by itself, and what needs a person."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace_fetch.errors import FolderError, NoSpaceError, StorageError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PASSING = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOLCK, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Mostly from network volumes. Others, such as a missing right, stay until a person changes something."""


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
