"""The lock of a folder: for one process that writes, or several that read."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from millrace_fetch.errors import FolderError
from millrace_fetch.plan.unsafe_names import OWN_FOLDER
from millrace_fetch.store.files import NOFOLLOW, refuse_links, writing

LOCK = "lock"
_POLL_SECONDS = 0.2
_MAX_MOVES = 10
"""How often another process may move the folder away before the lock is held."""


class FolderLock:
    """The lock of one model's folder."""

    def __init__(self, path: Path, names: Iterable[str]) -> None:
        """`names` are the files that the holder writes beside the lock: none of them may be a link."""
        self._path = path
        self._own = path / OWN_FOLDER
        self._names = (LOCK, *names)

    @asynccontextmanager
    async def held(self, say: Callable[[str], None]) -> AsyncIterator[None]:
        """Hold the lock while entered, at most until the process ends. Waits for another holder.

        Creates the folder if it does not exist.
        """
        lock = await self._take(say)
        try:
            yield
        finally:
            os.close(lock)

    @contextmanager
    def shared(self) -> Iterator[bool]:
        """Hold the lock together with other readers while entered. Yields whether it is held.

        It is not if a process writes or has moved the folder away, or if nothing was ever fetched into it.
        """
        refuse_links(self._path, self._own / LOCK)
        try:
            lock = os.open(self._own / LOCK, os.O_RDONLY | NOFOLLOW)
        except OSError:
            yield False
            return
        try:
            yield self._try(lock, fcntl.LOCK_SH) and self._is_in_place(lock)
        finally:
            os.close(lock)

    async def _take(self, say: Callable[[str], None]) -> int:
        """Return the lock's descriptor. The node cache evicts a folder under its lock, and moves it away."""
        for _ in range(_MAX_MOVES):
            lock = self._open()
            if lock is None:
                continue
            try:
                await self._wait_for(lock, say)
                if self._is_in_place(lock):
                    return lock
            except BaseException:
                os.close(lock)
                raise
            os.close(lock)
        raise FolderError(f"another process moves {self._path} away again and again: stop it")

    def _open(self) -> int | None:
        """Create the folder and its lock. Return None if it was moved away meanwhile."""
        with writing(self._path):
            self._path.mkdir(parents=True, exist_ok=True)
        for name in self._names:
            refuse_links(self._path, self._own / name)
        with writing(self._path), suppress(FileNotFoundError):
            self._own.mkdir(exist_ok=True)
            return os.open(self._own / LOCK, os.O_RDWR | os.O_CREAT | NOFOLLOW, 0o644)
        return None

    def _is_in_place(self, lock: int) -> bool:
        """Whether this is still the folder's lock file, for which a new process would wait."""
        with writing(self._path), suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(lock), (self._own / LOCK).lstat())
        return False

    async def _wait_for(self, lock: int, say: Callable[[str], None]) -> None:
        has_reported = False
        while not self._try(lock):
            if not has_reported:
                say(f"another millrace fetch writes {self._path}: waiting for it")
                has_reported = True
            await asyncio.sleep(_POLL_SECONDS)

    def _try(self, lock: int, kind: int = fcntl.LOCK_EX) -> bool:
        with writing(self._own / LOCK):
            try:
                fcntl.flock(lock, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True
