"""Folders of libraries, such as the private cache of those that this machine compiled and of their marks.

The name of every library ends with a hash of its bytes, so one that was cut short is found out before it is
mapped: a read past the end of a mapped file ends the process, and would end it at every start.
"""

import hashlib
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from shutil import rmtree

from millrace_kernels.native.errors import BuildError

MONTH_SECONDS = 30 * 24 * 3600
"""A file that was not used for longer is removed at the next build."""
HOUR_SECONDS = 3600
"""An older folder of a build was left by one that was killed."""


def default_cache() -> Path:
    """Return the folder of this user's compiled libraries. Raises BuildError."""
    try:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:
        raise BuildError(f"there is no folder for compiled libraries: {error}: set XDG_CACHE_HOME") from error
    return Path(root) / "millrace" / "kernels"


def open_cache(folder: Path) -> Path:
    """Return the folder, created if it is missing. Raises BuildError where others could write files."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_private = _is_private(folder)
    except OSError as error:
        raise BuildError(f"no library can be kept in {folder}: {error}: set XDG_CACHE_HOME") from error
    if not is_private:
        raise BuildError(f"{folder} can be written by others, so no library is loaded from it: chmod go-w it")
    return folder


def find_intact(folder: Path, stem: str) -> Path | None:
    """Return a library whose bytes are as they were written, or None; `stem` may be a pattern."""
    return next((file for file in sorted(folder.glob(f"{stem}-*.so")) if is_intact(file)), None)


def is_intact(library: Path) -> bool:
    """Whether a library's bytes are as they were written."""
    return library.stem.endswith(f"-{digest_of(library)}")


def digest_of(file: Path) -> str:
    """Return a hash of a file's bytes."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def place(made: Path, folder: Path, stem: str) -> Path:
    """Move a library to its name in the folder. After a loss of power all of it is there or nothing."""
    target = folder / f"{stem}-{digest_of(made)}.so"
    _flush(made)
    made.replace(target)
    _flush(folder)
    return target


def note_use(file: Path) -> None:
    """Touch a file, so that no build drops it as unused. A mark is created so."""
    with suppress(OSError):
        file.touch()


def drop_old(folder: Path, prefix: str, except_for: Path) -> None:
    """Remove old libraries and marks except one, and what killed builds left. What can't be removed stays."""
    for file in (*folder.glob(f"{prefix}-*.so"), *folder.glob("*.passed")):
        if file != except_for and _age_seconds(file) > MONTH_SECONDS:
            with suppress(OSError):
                file.unlink()
    for left in folder.glob("tmp*"):
        if _age_seconds(left) > HOUR_SECONDS:
            rmtree(left, ignore_errors=True)


def _age_seconds(path: Path) -> float:
    """Return a file's age; 0 for one that another process has removed."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_private(folder: Path) -> bool:
    """Whether only this user, or root, can have put a file here."""
    status = folder.stat()
    return status.st_uid in {os.geteuid(), 0} and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
