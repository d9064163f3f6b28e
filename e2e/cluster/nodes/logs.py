"""A container's log on disk: one file for each run, each line with its time; written, followed, read back."""

import asyncio
import io
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

_CHUNK_BYTES = 64 * 1024
_STAMP_BYTES = len("2026-01-02T03:04:05.000000000Z ")
_MESSAGE_BYTES = 2048


def stamp(now: datetime) -> bytes:
    """Return what a line of a kubelet's log begins with."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z ").encode()


class LogFile:
    """Where one run of a container writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_open = True
        self._file = path.open("ab", buffering=0)
        self._rest = b""
        self._more = asyncio.Event()

    async def copy_from(self, reader: asyncio.StreamReader) -> None:
        """Write what comes until the container's output ends."""
        try:
            while chunk := await reader.read(_CHUNK_BYTES):
                self._write(chunk)
            if self._rest:
                self._write(b"\n")
        finally:
            self.close()

    def close(self) -> None:
        """Close the file, and end the streams of those who follow it."""
        self.is_open = False
        self._file.close()
        self._more.set()

    def discard(self) -> None:
        """Close and remove the file: its container has not started."""
        self.close()
        self.path.unlink()

    async def wait_for_more(self) -> None:
        """Wait until something was written, or the file was closed."""
        if self.is_open:
            await self._more.wait()

    def last_line(self) -> str:
        """Return the end of the last line that is not empty, for a terminated container's message."""
        lines = [line for line in read_lines(self.path) if line[_STAMP_BYTES:].strip()]
        return lines[-1][_STAMP_BYTES:].decode(errors="replace").strip()[-_MESSAGE_BYTES:] if lines else ""

    def _write(self, chunk: bytes) -> None:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if lines:
            prefix = stamp(datetime.now(UTC))
            self._file.write(b"".join(prefix + line + b"\n" for line in lines))
            more, self._more = self._more, asyncio.Event()
            more.set()


def read_lines(path: Path) -> list[bytes]:
    """Return all complete lines so far, with their times; none where there is no file."""
    try:
        return split_lines(path.read_bytes())
    except FileNotFoundError:
        return []


def split_lines(content: bytes) -> list[bytes]:
    """Return the lines with their ends. Only a line feed ends one, not a progress bar's carriage return."""
    return io.BytesIO(content).readlines()


@dataclass(frozen=True)
class ContainerLogs:
    """The logs of a container's runs, oldest first, and the one being written."""

    paths: tuple[Path, ...]
    live: LogFile | None = None


def find_logs(folder: Path, live: LogFile | None) -> ContainerLogs:
    """The logs in a container's folder."""
    return ContainerLogs(tuple(sorted(folder.glob("*.log"), key=lambda path: int(path.stem))), live)


@dataclass(frozen=True)
class LogQuery:
    """What `kubectl logs` asks for."""

    follow: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    since_seconds: int | None = None
    since_time: datetime | None = None
    limit_bytes: int | None = None

    def since(self, now: datetime) -> datetime | None:
        """Lines before this are left out."""
        return now - timedelta(seconds=self.since_seconds) if self.since_seconds else self.since_time


def select_lines(lines: list[bytes], query: LogQuery, now: datetime) -> list[bytes]:
    """The lines a query wants, as it wants them."""
    since = query.since(now)
    if since is not None:
        lines = [line for line in lines if line >= stamp(since)]
    if query.tail_lines is not None:
        lines = lines[-query.tail_lines :] if query.tail_lines else []
    return lines if query.timestamps else [line[_STAMP_BYTES:] for line in lines]


async def stream_log(
    path: Path, live: LogFile | None, query: LogQuery, now: datetime
) -> AsyncIterator[bytes]:
    """A log's content; with `follow` until its container ends."""
    left = query.limit_bytes if query.limit_bytes is not None else float("inf")
    lines = read_lines(path)
    seen = sum(map(len, lines))
    chunk = b"".join(select_lines(lines, query, now))
    while left > 0:
        chunk = chunk if left == float("inf") else chunk[: int(left)]
        left -= len(chunk)
        if chunk:
            yield chunk
        if not query.follow or live is None:
            return
        is_open = live.is_open
        if is_open and path.stat().st_size <= seen:  # noqa: ASYNC240  one local call
            await live.wait_for_more()
        fresh = _read_from(path, seen)
        seen += len(fresh)
        lines = split_lines(fresh)
        chunk = b"".join(lines if query.timestamps else [line[_STAMP_BYTES:] for line in lines])
        if not is_open and not fresh:
            return


def _read_from(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read()
