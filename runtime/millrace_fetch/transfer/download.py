"""Downloads files in ranges, several at a time, for all sources alike.

Each of a few workers takes the next range of the next file. Every 8 MiB a worker writes a line into the
file's journal, so a kill loses at most 8 MiB of each connection.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar

import aiohttp

from millrace_fetch.errors import ChangedError, CorruptError, RefusedError, UnavailableError
from millrace_fetch.plan.manifest import FileRecord, RemoteFile
from millrace_fetch.progress import Say
from millrace_fetch.store.folder import Folder
from millrace_fetch.transfer.client import Chunks, Client, is_of_another, read_file_bytes
from millrace_fetch.transfer.concurrency import find_first
from millrace_fetch.transfer.partial_file import PartFile
from millrace_fetch.transfer.ranges import Span, split
from millrace_fetch.transfer.retry import MAX_TRIES, give_up, pause
from millrace_fetch.transfer.stall import Waits, describe_standstill, is_progress

REQUEST_BYTES = 64 << 20
"""The size of one range request."""
NOTE_BYTES = 8 << 20
"""Written bytes between two lines of a journal."""
CHUNK_BYTES = 1 << 20
_MAX_BEGINNINGS = 2
"""How often a file with a wrong checksum is fetched: the second time the source itself must be wrong."""

TICK_SECONDS = 1.0
"""Between two checks for a stall."""

T = TypeVar("T")


@dataclass
class _Item:
    """A file in the download."""

    part: PartFile
    threads: ThreadPoolExecutor
    waits: Waits
    num_open_spans: int = 0
    num_beginnings: int = 1
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function that waits for the disk in a thread."""
        with self.waits.on_disk() if self.part.file.is_resumable else nullcontext():
            return await self._run(function, *arguments)

    async def note(self, span: Span) -> None:
        """Record a range, after any other: a record may wait minutes for the hash of the bytes before it."""
        with self.waits.on_disk():
            async with self.lock:
                await self._run(self.part.note, span)

    async def _run(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.threads, function, *arguments)


@dataclass(frozen=True)
class _Piece:
    """The work of one request. `span` is None for a file without range requests."""

    item: _Item
    span: Span | None


class Download:
    """Downloads the files of one manifest into a folder."""

    def __init__(self, client: Client, folder: Folder, advance: Callable[[int], None], say: Say) -> None:
        self._client = client
        self._folder = folder
        self._advance = advance
        self._say = say
        self._pieces: deque[_Piece] = deque()
        self._records: dict[str, FileRecord] = {}
        self._waits = Waits()

    async def run(self, parts: Sequence[PartFile], connections: int) -> dict[str, FileRecord]:
        """Fetch all files, and return their records. Raises the first FetchError."""
        source = self._generate(parts)
        try:
            # The exit waits until no thread writes any more: another attempt may start at once.
            with ThreadPoolExecutor(connections) as self._threads:
                async with asyncio.TaskGroup() as group:
                    watching = group.create_task(self._watch())
                    async with asyncio.TaskGroup() as workers:
                        for _ in range(connections):
                            workers.create_task(self._work(source))
                    watching.cancel()
        except ExceptionGroup as error:
            raise find_first(error) from error
        finally:
            _close_all(parts)
        assert len(self._records) == len(parts), "a file was left out"
        return self._records

    async def _watch(self) -> None:
        """Raise UnavailableError once the source stalls."""
        while True:
            # Counts ticks and reads no clock: the time in which a process is stopped (SIGSTOP) does not
            # count.
            await asyncio.sleep(TICK_SECONDS)
            if self._waits.tick(TICK_SECONDS):
                raise UnavailableError(describe_standstill())

    def _generate(self, parts: Sequence[PartFile]) -> Iterator[_Piece]:
        """Yield pieces in order. A worker opens a file with its first piece, so few files are open."""
        for part in parts:
            if record := self._folder.settle(part):
                self._records[part.file.name] = record
                continue
            if part.finished:
                self._advance(-part.num_done_bytes)
                part.reset()
            part.open()
            yield from self._plan(_Item(part, self._threads, self._waits))

    def _plan(self, item: _Item) -> list[_Piece]:
        file, spans = item.part.file, list[Span | None]()
        if file.is_resumable:
            spans += [piece for gap in item.part.missing() for piece in split(gap, REQUEST_BYTES)]
            # A file with all its bytes also gets one piece, after which it is verified.
            end = file.size_bytes or 0
            spans = spans or [Span(end, end)]
        pieces = [_Piece(item, span) for span in spans or [None]]
        item.num_open_spans = len(pieces)
        return pieces

    async def _work(self, source: Iterator[_Piece]) -> None:
        while piece := self._pieces.popleft() if self._pieces else next(source, None):
            size = await self._fetch_with_tries(piece)
            piece.item.num_open_spans -= 1
            if piece.item.num_open_spans == 0:
                await self._finish(piece.item, size)

    async def _finish(self, item: _Item, size: int) -> None:
        part = item.part
        try:
            record = await item.call(part.finish, size)
        except CorruptError as error:
            if item.num_beginnings >= _MAX_BEGINNINGS:
                raise CorruptError(f"{error}, twice: the source or a proxy on the way is broken") from error
            self._say(f"{error}; fetching it again")
            item.num_beginnings += 1
            self._advance(-size)
            part.reset()
            self._pieces.extend(self._plan(item))
            return
        self._folder.files.install(part.path, part.file.name)
        self._records[part.file.name] = record

    async def _fetch_with_tries(self, piece: _Piece) -> int:
        """Fetch a piece with retries, and return the file's size. Progress resets the count of failures."""
        position = piece.span.start if piece.span else 0
        num_failures = 0
        while True:
            began = monotonic()
            transfer = _Transfer(self._client, piece.item, self._advance, position)
            try:
                with self._fetching(piece):
                    return await transfer.run(piece.span)
            except RefusedError as error:
                if error.status == 416:  # the file has become shorter
                    raise ChangedError(f"{piece.item.part.file.name} changed during the fetch") from error
                raise
            except UnavailableError as error:
                if piece.span is None:
                    self._advance(-transfer.position)
                gained = transfer.noted - position if piece.span else 0
                num_failures = 1 if is_progress(gained, monotonic() - began) else num_failures + 1
                position = transfer.noted if piece.span else 0
                if num_failures >= MAX_TRIES:
                    raise give_up(error, is_kept=piece.span is not None) from error
                # A wait for Retry-After does not count as a stall; our own backoff does.
                with nullcontext() if error.retry_after_seconds else self._fetching(piece):
                    await pause(error, num_failures, self._say)

    def _fetching(self, piece: _Piece) -> AbstractContextManager[None]:
        """Count a connection for the stall check, unless it fetches a file whole.

        Such a file can't be resumed, so the end of the fetch would lose all of its bytes. Its connection has
        a limit of its own.
        """
        return self._waits.fetching() if piece.span else nullcontext()


class _Transfer:
    """One request's bytes, from the socket to the disk."""

    def __init__(self, client: Client, item: _Item, advance: Callable[[int], None], position: int) -> None:
        self._client = client
        self._item = item
        self._advance = advance
        self.position = self.noted = position

    async def run(self, span: Span | None) -> int:
        """Fetch the rest of a span, or the whole file, and return the file's size."""
        file = self._item.part.file
        if span and self.position == span.end:
            return span.end
        headers = _range_headers(file, Span(self.position, span.end)) if span else {}
        async with self._client.request("GET", file.url, headers) as response:
            _check_answer(file, response, self.position, is_range=bool(headers))
            try:
                await self._copy(response, span.end if span else file.size_bytes)
            finally:
                await self._note()
        return file.size_bytes if file.size_bytes is not None else self.position

    async def _copy(self, response: aiohttp.ClientResponse, end: int | None) -> None:
        part = self._item.part
        async for chunk in Chunks(response, CHUNK_BYTES):
            if end is not None and self.position + len(chunk) > end:
                raise CorruptError(f"{part.file.name} has more bytes than announced: run it again")
            await self._item.call(part.write, self.position, chunk)
            self.position += len(chunk)
            self._advance(len(chunk))
            self._item.waits.count(len(chunk))
            if self.position - self.noted >= NOTE_BYTES:
                await self._note()
        if end is not None and self.position < end:
            raise UnavailableError(f"{part.file.name} ended {end - self.position} bytes early")

    async def _note(self) -> None:
        if self.position > self.noted and self._item.part.file.is_resumable:
            await self._item.note(Span(self.noted, self.position))
            self.noted = self.position


def _range_headers(file: RemoteFile, span: Span) -> dict[str, str]:
    if span == (0, file.size_bytes):
        return {}  # the whole file: no range request is needed
    headers = {"Range": f"bytes={span.start}-{span.end - 1}"}
    is_strong = file.validator and not file.validator.startswith("W/")
    if file.validator and is_strong:
        headers["If-Range"] = file.validator
    return headers


def _check_answer(file: RemoteFile, response: aiohttp.ClientResponse, begin: int, *, is_range: bool) -> None:
    """Raise an error if the answer is not the manifest's file, or does not begin at `begin`.

    It compares only values that both name. A file with a checksum and without a validator is verified at its
    end: the hosts behind a Hub may have ETags of their own.
    """
    total = read_file_bytes(response, file.name, begin)
    has_other_size = None not in (total, file.size_bytes) and total != file.size_bytes
    is_judged_by_checksum = file.checksum is not None and file.validator is None
    if not is_judged_by_checksum and (has_other_size or is_of_another(response, file.validator)):
        raise ChangedError(f"{file.name} changed during the fetch")
    if has_other_size:
        raise CorruptError(
            f"{file.name} has {total} bytes, but {file.size_bytes} were announced: try again later"
        )
    if is_range and response.status != 206:
        raise RefusedError(
            f"the server announced range requests, but sends no part of {file.name}", response.status
        )


def _close_all(parts: Sequence[PartFile]) -> None:
    """Close all parts, even if one fails: a volume reports a failed write for each file, at its close."""
    with ExitStack() as exits:
        for part in parts:
            exits.callback(part.close)
