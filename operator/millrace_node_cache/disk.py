"""The disk: `<root>/<namespace>/` is a namespace's claim, and `<root>/.millrace/` is ours.

A namespace's name never begins with a dot. An evicted model first moves to our folder, in one step, and is
removed there. So if this process is killed, a folder is either complete in its place or waits for removal.
"""

import errno
import fcntl
import itertools
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from millrace_fetch.plan.unsafe_names import OWN_FOLDER
from millrace_fetch.store.folder import MANIFEST
from millrace_fetch.store.lock import LOCK
from millrace_fetch.store.marker import parse_marker
from millrace_node_cache.models import DiskSpace, Model, ModelKey, Uses
from millrace_node_cache.safe_open import FILE, NO_PLACE, list_folders, measure, opened, read_file, unlock
from millrace_runtime.contract import FOLDER_KEPT

OURS = ".millrace"
MODE = 0o2770
"""The pods that fetch have our group, and their files get it too."""
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_GOING = "going"
_FOLDER = re.compile("[a-z0-9][a-z0-9-]{0,99}")
"""The operator names a model's folder so. Any other folder is a tenant's own, and stays as it is."""
_MOST_MODELS = 1000
"""The models listed for a namespace: its tenants can make any number of folders."""
_MARKER_BYTES = 2 << 20
"""Some thousands of files. One of 16 MiB took 400 MiB of memory to read."""
_MOST_BYTES = 10**18


class Disk:
    """Reads and writes the disk for this process. One thread at a time calls it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._going = root / OURS / _GOING
        self._marks = Marks(root / OURS / "used")

    def prepare(self, namespaces: Iterable[str]) -> None:
        """Make the folder of each namespace, and ours. The root must be there. Raises OSError."""
        (self._root / OURS).mkdir(exist_ok=True)
        self._marks.prepare()
        self._going.mkdir(exist_ok=True)
        for namespace in namespaces:
            self._make_claim(self._root / namespace)

    def _make_claim(self, folder: Path) -> None:
        with suppress(FileExistsError):
            folder.mkdir()
        state = folder.stat()
        if state.st_uid == os.geteuid() and state.st_mode & 0o7777 != MODE:
            folder.chmod(MODE)

    def measure(self) -> DiskSpace:
        """Return the disk's size and use. Like df it leaves out blocks reserved for root. Raises OSError."""
        state = os.statvfs(self._root)
        used = state.f_blocks - state.f_bfree
        return DiskSpace((used + state.f_bavail) * state.f_frsize, used * state.f_frsize)

    def list_models(self, uses: Mapping[str, Uses | None], now: float) -> tuple[Model, ...]:
        """Return the models of all namespaces, and record which are used now. Raises OSError."""
        with opened(str(self._root)) as root:
            keys = [
                ModelKey(namespace, folder)
                for namespace in list_folders(root)
                if _NAMESPACE.fullmatch(namespace)
                for folder in _list_models(root, namespace)
            ]
            models = [
                Model(key, sizes.num_bytes, sizes.whole_bytes, self._mark(key, uses, now), sizes.is_closed)
                for key in keys
                if (sizes := _read_sizes(root, key))
            ]
        self._marks.forget_all_but({model.key.name for model in models})
        return tuple(models)

    def check_open(self, namespace: str) -> None:
        """Raise OSError if the folder of a namespace's models may not be read."""
        try:
            with opened(str(self._root), namespace, FOLDER_KEPT):
                pass
        except OSError as error:
            if error.errno not in NO_PLACE:
                raise

    def _mark(self, key: ModelKey, uses: Mapping[str, Uses | None], now: float) -> float:
        """Record a use now if pods read the model, and return the time of its last use."""
        if key.name in (uses.get(key.namespace) or {}):
            self._marks.note_use(key.name, now)
        return self._marks.read(key.name, now)

    @contextmanager
    def locked(self, key: ModelKey) -> Iterator[bool]:
        """Yield whether the folder's lock is ours, and not a fetch's. Raises OSError."""
        with opened(str(self._root), key.namespace, FOLDER_KEPT, key.folder) as folder:
            lock = _open_lock(folder)
            try:
                yield lock is None or _try_lock(lock)
            finally:
                if lock is not None:
                    os.close(lock)

    def move_away(self, key: ModelKey) -> None:
        """Take a folder out of its namespace, for `sweep` to remove. Raises OSError."""
        with opened(str(self._root), key.namespace, FOLDER_KEPT) as folder:
            os.rename(key.folder, self._going / secrets.token_hex(8), src_dir_fd=folder)

    def sweep(self) -> None:
        """Remove the folders that were moved away, without following links. Raises OSError if one stays."""
        failure: OSError | None = None
        for rubbish in self._going.iterdir():
            try:
                _remove(rubbish)
            except OSError as error:
                failure = error
            except RecursionError:
                failure = OSError(errno.ELOOP, f"{rubbish} is too deep: remove it by hand")
        if failure is not None:
            raise failure


def _remove(rubbish: Path) -> None:
    if rubbish.is_symlink() or not rubbish.is_dir():  # a tenant may put any file in a model's place
        rubbish.unlink()
        return
    try:
        shutil.rmtree(rubbish)
    except PermissionError:
        unlock(str(rubbish))
        shutil.rmtree(rubbish)


def _list_models(root: int, namespace: str) -> list[str]:
    try:
        with opened(root, namespace, FOLDER_KEPT) as folder:
            names = (name for name in list_folders(folder) if _FOLDER.fullmatch(name))
            return sorted(itertools.islice(names, _MOST_MODELS))
    except PermissionError:
        return []  # a tenant made it unreadable; the agent reports that by `check_open`
    except OSError as error:
        if error.errno in NO_PLACE:
            return []
        raise


class _Sizes(NamedTuple):
    """The sizes of a model's folder, as `Model` has them."""

    num_bytes: int
    whole_bytes: int | None
    is_closed: bool = False


def _read_sizes(root: int, key: ModelKey) -> _Sizes | None:
    """Return the bytes that a model takes, and its size if it is complete; None if it has just gone."""
    try:
        with opened(root, key.namespace, FOLDER_KEPT) as folder:
            return _Sizes(measure(folder, key.folder), _read_whole(folder, key.folder))
    except (PermissionError, RecursionError):
        return _Sizes(0, None, is_closed=True)
    except OSError as error:
        if error.errno in NO_PLACE:
            return None
        raise


def _read_whole(folder: int, name: str) -> int | None:
    """Return the size of a model's files; None if one is missing."""
    try:
        with opened(folder, name, OWN_FOLDER) as own:
            text = read_file(own, MANIFEST, _MARKER_BYTES)
    except OSError as error:
        if error.errno in NO_PLACE:
            return None
        raise
    marker = None if text is None else parse_marker(text)
    # A tenant may have written the marker.
    sizes = [record.size_bytes for record in marker.files.values()] if marker else []
    is_sound = marker and all(isinstance(size, int) and 0 <= size <= _MOST_BYTES for size in sizes)
    return min(sum(sizes), _MOST_BYTES) if is_sound else None


def _open_lock(folder: int) -> int | None:
    """Return the lock of a model's folder; None if its path is something that no fetch locks."""
    with suppress(FileExistsError):
        os.mkdir(OWN_FOLDER, dir_fd=folder)
    try:
        with opened(folder, OWN_FOLDER) as own:
            return os.open(LOCK, os.O_RDWR | os.O_CREAT | FILE, 0o644, dir_fd=own)
    except OSError as error:
        if error.errno in NO_PLACE:
            return None
        raise


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Marks:
    """The time of each model's last use. Only this process writes the folder of these files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def prepare(self) -> None:
        """Make the folder. Raises OSError."""
        self._folder.mkdir(exist_ok=True)

    def note_use(self, name: str, now: float) -> None:
        """Note that a model is used now. Raises OSError."""
        path = self._folder / name
        path.touch()
        os.utime(path, (now, now))

    def read(self, name: str, now: float) -> float:
        """Return when a model was last used. An unknown model counts as used now. Raises OSError."""
        try:
            return (self._folder / name).stat().st_mtime
        except FileNotFoundError:
            self.note_use(name, now)
            return now

    def forget_all_but(self, names: Collection[str]) -> None:
        """Remove the marks of models that are gone. Raises OSError."""
        for path in self._folder.iterdir():
            if path.name not in names:
                path.unlink(missing_ok=True)
