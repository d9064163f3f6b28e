"""The lock of a folder: for one process that writes, or several that read."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from millrace_fetch.errors import FolderError
from millrace_fetch.plan.selection import OWN_FOLDER
from millrace_fetch.store.files import NOFOLLOW, refuse_links, writing

LOCK = "lock"
_POLL_SECONDS = 0.2
_MAX_MOVES = 10
"""Of a folder that others move away before it is ours."""


class FolderLock:
    """A model's folder that one process may have to itself."""

    def __init__(self, path: Path, names: Iterable[str] = ()) -> None:
        """`names` are those that its holder writes beside the lock: none of them may be a link."""
        self._path = path
        self._own = path / OWN_FOLDER
        self._names = (LOCK, *names)

    @asynccontextmanager
    async def held(self, say: Callable[[str], None]) -> AsyncIterator[None]:
        """Hold the lock, which ends with the process. Waits for another process that holds it.

        The folder is made where there is none.
        """
        lock = await self._take(say)
        try:
            yield
        finally:
            os.close(lock)

    @contextmanager
    def shared(self) -> Iterator[bool]:
        """Hold the lock beside others that only look. Yield whether that is so.

        It is not where somebody writes or has moved the folder away, and where nobody ever fetched into it.
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
        """Return the lock's descriptor. Who evicts a folder holds its lock, and moves it away."""
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
        raise FolderError(f"{self._path} is moved away each time that it is made: let nobody else move it")

    def _open(self) -> int | None:
        """Make the folder and its lock; None where it was moved away meanwhile."""
        with writing(self._path):
            self._path.mkdir(parents=True, exist_ok=True)
        for name in self._names:
            refuse_links(self._path, self._own / name)
        with writing(self._path), suppress(FileNotFoundError):
            self._own.mkdir(exist_ok=True)
            return os.open(self._own / LOCK, os.O_RDWR | os.O_CREAT | NOFOLLOW, 0o644)
        return None

    def _is_in_place(self, lock: int) -> bool:
        """Whether whoever comes now would wait for this lock."""
        with writing(self._path), suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(lock), (self._own / LOCK).lstat())
        return False

    async def _wait_for(self, lock: int, say: Callable[[str], None]) -> None:
        has_told = False
        while not self._try(lock):
            if not has_told:
                say(f"another millrace fetch writes {self._path}: waiting for it")
                has_told = True
            await asyncio.sleep(_POLL_SECONDS)

    def _try(self, lock: int, kind: int = fcntl.LOCK_EX) -> bool:
        with writing(self._own / LOCK):
            try:
                fcntl.flock(lock, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True
