"""The HTTP process's end of the engine's socket: sends sequences, and gives each request its new tokens."""

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Self

from millrace_runtime.api.answer.prompt import split_scores
from millrace_runtime.api.errors import (
    ClientGoneError,
    GenerationError,
    UnavailableError,
    explain_fault,
)
from millrace_runtime.protocol.encoding import FrameDecoder, FrameError, encode_frame
from millrace_runtime.protocol.messages import (
    FINISH_ERROR,
    Abort,
    Begun,
    EngineReady,
    FromEngine,
    Generate,
    SequenceOutput,
    Stats,
    StepOutputs,
    StepTiming,
)

logger = logging.getLogger(__name__)
_ENGINE_GONE = "the engine of this replica ended"
_NO_STATS = Stats(num_waiting=0, num_running=0, num_blocks=0, num_free_blocks=0, num_preemptions=0)
_MAX_PIECE_BYTES = 64 << 10
"""The size of a connection's buffer at which uvicorn makes the writer wait."""

Accept = Callable[[SequenceOutput, float], bytes | None]
"""Takes an output and the time it arrived. Returns the events to send, or None without any."""
NoteBegun = Callable[[Begun, float], None]
"""Takes a sequence and the time at which its first step began."""


class EventStream:
    """The events of one request's sequences. Each iteration returns all new ones, so a step wakes it once.

    The stream accepts outputs as they arrive, even while the reader is slow. So the metrics measure the
    engine and not the reader, an ended sequence counts as ended, and no single encoding is large. Iteration
    ends after the finish reason of the last sequence. It raises GenerationError when the engine ends or fails
    on a sequence, BadRequestError for a sequence that may have no token, and ClientGoneError after
    `disconnect`.
    """

    def __init__(self, client: "EngineClient", accept: Accept, note_begun: NoteBegun) -> None:
        """A new stream has no sequences: `EngineClient.generate` adds them."""
        self._client = client
        self._accept = accept
        self.note_begun = note_begun
        self._open_ids: set[int] = set()
        self._events: deque[bytes] = deque()
        self._waiting: deque[tuple[SequenceOutput, float]] = deque()
        """A long output's pieces and what came after it: one a turn, so that other streams have theirs."""
        self._failure: Exception | None = None
        self._wake: asyncio.Future[None] | None = None
        self.last_at = time.monotonic()
        """When events came last, or the stream was opened."""

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
            self._client.forget(output.sequence_id)
        if output.finish_reason == FINISH_ERROR:
            self.fail(explain_fault(output.error))
            return
        try:
            events = self._accept(output, now)
        except Exception as error:  # noqa: BLE001  the same message has other requests' outputs
            self.fail(error)
            return
        if events is not None:
            self.last_at = now
            self._events.append(events)
        if events is not None or not self._open_ids:
            self._notify()

    def add(self, events: bytes) -> None:
        """Add events that no sequence brought, and wake the reader."""
        self.last_at = time.monotonic()
        self._events.append(events)
        self._notify()

    def drop(self, sequence_id: int) -> None:
        """Stop waiting for a sequence, and abort it unless the engine has ended it."""
        if sequence_id in self._open_ids:
            self._open_ids.discard(sequence_id)
            self._client.abort(sequence_id)

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

    def _pop_piece(self) -> Iterator[bytes]:
        num_bytes = 0
        while self._events and num_bytes < _MAX_PIECE_BYTES:
            yield self._events[0]
            num_bytes += len(self._events.popleft())

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class EngineClient:
    """The engine as the HTTP process sees it, over a connected Unix socket."""

    def __init__(self, sock: socket.socket) -> None:
        """`sock` is the HTTP process's end of the socket pair; `start` begins to read it."""
        self._sock = sock
        self._transport: asyncio.Transport | None = None
        self._ready: asyncio.Future[EngineReady] | None = None
        self._streams: dict[int, EventStream] = {}
        self._next_id = 1
        self._timing_observers: list[Callable[[StepTiming], None]] = []
        self.ready: EngineReady | None = None
        """The engine's limits; None before the engine is ready, and after it has ended."""
        self.is_gone = False
        """Whether the socket has closed. This process can then serve nothing."""
        self.stats = _NO_STATS
        """The engine's newest state."""

    @property
    def num_open(self) -> int:
        """Sequences that were sent, and have neither ended nor been aborted."""
        return len(self._streams)

    async def start(self) -> EngineReady:
        """Begin reading and wait for the engine to be ready. Raises UnavailableError if it ends first."""
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        self._sock.setblocking(False)
        transport, _ = await loop.connect_accepted_socket(lambda: _EngineProtocol(self), self._sock)
        self._transport = transport
        return await asyncio.shield(self._ready)

    def observe_timing(self, observer: Callable[[StepTiming], None]) -> None:
        """Call `observer` with each step's timing."""
        self._timing_observers.append(observer)

    def reserve_id(self) -> int:
        """Return an id that no other sequence of this process has."""
        self._next_id += 1
        return self._next_id - 1

    def generate(self, prompts: Sequence[Generate], stream: EventStream) -> None:
        """Send a request's prompts; `stream` gets their outputs. Raises UnavailableError."""
        if self.ready is None or self._transport is None:
            raise UnavailableError(
                _ENGINE_GONE if self.is_gone else "the engine is still loading", retry_after=5
            )
        frames = [encode_frame(prompt) for prompt in prompts]  # what fails here leaves nothing behind
        ids = {new.sequence_id for prompt in prompts for new in prompt.sequences}
        stream.expect(ids)
        self._streams |= dict.fromkeys(ids, stream)
        for frame in frames:
            self._transport.write(frame)

    def abort(self, sequence_id: int) -> None:
        """Make the engine drop a sequence, and ignore its further outputs."""
        if self._streams.pop(sequence_id, None) is not None and self._transport is not None:
            self._transport.write(encode_frame(Abort(sequence_id)))

    def forget(self, sequence_id: int) -> None:
        """Stop expecting outputs of a sequence that ended."""
        self._streams.pop(sequence_id, None)

    async def close(self) -> None:
        """Close the socket; the engine's process sees it and ends."""
        if self._transport is not None:
            self._transport.close()
        else:
            self._sock.close()
        await asyncio.sleep(0)

    def receive(self, message: FromEngine) -> None:
        """Handle one message from the engine."""
        match message:
            case EngineReady():
                self.ready = message
                if self._ready is not None and not self._ready.done():
                    self._ready.set_result(message)
            case StepOutputs(outputs, stats, timing, begun):
                self.stats, now = stats, time.monotonic()
                self._note_begun(begun, now)
                self._deliver(outputs, now)
                if timing is not None:
                    for observe in self._timing_observers:
                        observe(timing)

    def lose(self, error: Exception | None) -> None:
        """Fail every stream: the socket has closed, so the engine is not ready any more."""
        if error is not None:
            logger.error("the engine's socket failed: %s", error)
        self.ready, self.is_gone, self.stats = None, True, _NO_STATS
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(UnavailableError(_ENGINE_GONE))
            self._ready.exception()  # without a reader asyncio would log it
        streams, self._streams = set(self._streams.values()), {}
        for stream in streams:
            stream.fail(GenerationError(_ENGINE_GONE, code="engine_gone"))

    def _note_begun(self, begun: list[Begun], now: float) -> None:
        for one in begun:
            stream = self._streams.get(one.sequence_id)
            if stream is not None:  # else its client has left, and nothing counts it
                stream.note_begun(one, now)

    def _deliver(self, outputs: list[SequenceOutput], now: float) -> None:
        for output in outputs:
            stream = self._streams.get(output.sequence_id)
            if stream is not None:  # else it was aborted, and the engine did not know yet
                stream.put(output, now)


class _EngineProtocol(asyncio.Protocol):
    """Decodes the socket's bytes into messages."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._decoder: FrameDecoder[FromEngine] = FrameDecoder(FromEngine)  # type: ignore[arg-type]
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._decoder.feed(data)
        except FrameError:
            logger.exception("the engine sent bytes that are no message")
            if self._transport is not None:
                self._transport.close()
            return
        for message in messages:
            self._client.receive(message)

    def connection_lost(self, error: Exception | None) -> None:
        self._client.lose(error)
