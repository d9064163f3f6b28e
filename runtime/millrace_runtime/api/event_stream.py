"""A request's events as its sequences' outputs arrive: written at once, or kept for their reader."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol, Self

from millrace_runtime.api.answer.prompt import split_scores
from millrace_runtime.api.errors import ClientGoneError, explain_fault
from millrace_runtime.protocol.messages import FINISH_ERROR, Begun, SequenceOutput

_MAX_PIECE_BYTES = 64 << 10
"""The size of a connection's buffer at which uvicorn makes the writer wait."""

Accept = Callable[[SequenceOutput, float], bytes | None]
"""Takes an output and the time it arrived. Returns the events to send, or None without any."""
WriteEvents = Callable[[bytes], bool]
"""Writes events at once and returns True. Returns False if the reader must write them."""
NoteBegun = Callable[[Begun, float], None]
"""Takes a sequence and the time at which its first step began."""


class Sequences(Protocol):
    """The part of the engine that a stream uses."""

    def forget(self, sequence_id: int) -> None:
        """Expect no further outputs of a sequence that has ended."""

    def abort(self, sequence_id: int) -> None:
        """Drop a sequence that has not ended."""


class EventStream:
    """The events of one request's sequences. Each iteration returns all new ones, so a step wakes it once.

    The stream accepts outputs as they arrive, even while the reader is slow. So the metrics measure the
    engine and not the reader, an ended sequence counts as ended, and no single encoding is large. Iteration
    ends after the finish reason of the last sequence. It raises GenerationError when the engine ends or fails
    on a sequence, BadRequestError for a sequence that may have no token, and ClientGoneError after
    `disconnect`.
    """

    def __init__(self, engine: Sequences, accept: Accept, note_begun: NoteBegun) -> None:
        """A new stream has no sequences: `EngineClient.generate` adds them."""
        self._engine = engine
        self._accept = accept
        self.note_begun = note_begun
        self._open_ids: set[int] = set()
        self._events: deque[bytes] = deque()
        self._waiting: deque[tuple[SequenceOutput, float]] = deque()
        """The pieces of a long output, and the outputs after it. The stream accepts one in each turn of the
        event loop, so that other streams have their turns."""
        self._failure: Exception | None = None
        self._wake: asyncio.Future[None] | None = None
        self.write: WriteEvents | None = None
        """Writes a step's events while the reader waits for some, so that the reader need not wake."""
        self.last_at = time.monotonic()
        """The time of the last events, else of the opening."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Return the new events, in pieces of some 64 KiB if the reader was slow."""
        while not self._events:
            if self._failure is not None:
                raise self._failure
            if not self._open_ids:
                raise StopAsyncIteration
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        return b"".join(self._pop_piece())

    def expect(self, sequence_ids: set[int]) -> None:
        """Add sequences. Iteration ends after the last of all sequences."""
        self._open_ids |= sequence_ids

    def put(self, output: SequenceOutput, now: float) -> None:
        """Accept a sequence's output, which arrived at `now`: at once, unless it or another one is long."""
        is_idle = not self._waiting
        if is_idle and output.prompt_logprobs is None:
            self._accept_one(output, now)
            return
        self._waiting += ((piece, now) for piece in split_scores(output))
        if is_idle:
            self._accept_next()

    def _accept_next(self) -> None:
        if not self._waiting:
            return
        output, now = self._waiting[0]
        if output.sequence_id in self._open_ids:  # else it was dropped meanwhile
            self._accept_one(output, now)
        if self._waiting:
            self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._accept_next)

    def _accept_one(self, output: SequenceOutput, now: float) -> None:
        """Accept an output, and wake the reader if it has events."""
        if output.finish_reason is not None:
            self._open_ids.discard(output.sequence_id)
            self._engine.forget(output.sequence_id)
        if output.finish_reason == FINISH_ERROR:
            self.fail(explain_fault(output.error))
            return
        try:
            events = self._accept(output, now)
            is_left = events is not None and not self._try_write(events)
        except Exception as error:  # noqa: BLE001  the same message has other requests' outputs
            self.fail(error)
            return
        if events is not None:
            self.last_at = now
        if events is not None and is_left:
            self._events.append(events)
            self._notify()
        if not self._open_ids:
            self._notify()

    def add(self, events: bytes) -> None:
        """Add events of no sequence, and wake the reader."""
        self.last_at = time.monotonic()
        self._events.append(events)
        self._notify()

    def drop(self, sequence_id: int) -> None:
        """Stop waiting for a sequence, and abort it unless the engine has ended it."""
        if sequence_id in self._open_ids:
            self._open_ids.discard(sequence_id)
            self._engine.abort(sequence_id)

    def disconnect(self) -> None:
        """End the iteration with ClientGoneError."""
        self.fail(ClientGoneError())

    def fail(self, failure: Exception) -> None:
        """End the iteration with an exception, after the events that have already arrived."""
        self._failure = self._failure or failure
        self._notify()

    def close(self) -> None:
        """Drop every sequence that has not ended."""
        self._waiting.clear()
        for sequence_id in list(self._open_ids):
            self.drop(sequence_id)

    def _try_write(self, events: bytes) -> bool:
        """Write events directly. Return False if the reader must write them.

        The reader does so while it has earlier events, which must leave first. It also writes for a request
        with several open sequences, so that all their events of a step leave in one write.
        """
        is_reader_waiting = self._wake is not None and not self._wake.done()
        if self.write is None or not is_reader_waiting or len(self._open_ids) > 1:
            return False
        return self.write(events)

    def _pop_piece(self) -> Iterator[bytes]:
        num_bytes = 0
        while self._events and num_bytes < _MAX_PIECE_BYTES:
            yield self._events[0]
            num_bytes += len(self._events.popleft())

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
