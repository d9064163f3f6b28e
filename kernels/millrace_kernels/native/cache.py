"""Folders of libraries, such as the private cache of libraries that this machine has compiled.

The name of every library ends with a hash of its bytes, so that a truncated library is found before it is
mapped: a read past the end of a mapped file kills the process, at every start.
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
"""The next build removes files that nothing has used for longer."""
HOUR_SECONDS = 3600
"""An older temporary folder belongs to a killed build."""


def find_default_cache() -> Path:
    """Return the folder of this user's compiled libraries. Raises BuildError."""
    try:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:
        raise BuildError(f"there is no folder for compiled libraries: {error}: set XDG_CACHE_HOME") from error
    return Path(root) / "millrace" / "kernels"


def open_cache(folder: Path) -> Path:
    """Return the folder, created if missing. Raises BuildError if other users can write to it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_private = _is_private(folder)
    except OSError as error:
        raise BuildError(f"no library can be stored in {folder}: {error}: set XDG_CACHE_HOME") from error
    if not is_private:
        raise BuildError(f"other users can write to {folder}, so no library is loaded from it: chmod go-w it")
    return folder


def find_intact(folder: Path, stem: str) -> Path | None:
    """Return a library with undamaged bytes, or None; `stem` may be a pattern."""
    return next((file for file in sorted(folder.glob(f"{stem}-*.so")) if is_intact(file)), None)


def is_intact(library: Path) -> bool:
    """Whether a library's bytes match the hash in its name."""
    return library.stem.endswith(f"-{digest_of(library)}")


def digest_of(file: Path) -> str:
    """Return a hash of a file's bytes."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def place(made: Path, folder: Path, stem: str) -> Path:
    """Move a library to its name in the folder. After a power failure it is complete or absent."""
    target = folder / f"{stem}-{digest_of(made)}.so"
    _flush(made)
    made.replace(target)
    _flush(folder)
    return target


def note_use(file: Path) -> None:
    """Touch a file, so that no build removes it as unused; creates a mark."""
    with suppress(OSError):
        file.touch()


def drop_old(folder: Path, prefix: str, except_for: Path) -> None:
    """Remove old libraries and marks except one, and folders of killed builds, as far as possible."""
    for file in (*folder.glob(f"{prefix}-*.so"), *folder.glob("*.passed")):
        if file != except_for and _age_seconds(file) > MONTH_SECONDS:
            with suppress(OSError):
                file.unlink()
    for left in folder.glob("tmp*"):
        if _age_seconds(left) > HOUR_SECONDS:
            rmtree(left, ignore_errors=True)


def _age_seconds(path: Path) -> float:
    """Return a file's age; 0 if another process has removed it."""
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
    """Whether only this user or root can write files here."""
    status = folder.stat()
    return status.st_uid in {os.geteuid(), 0} and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
