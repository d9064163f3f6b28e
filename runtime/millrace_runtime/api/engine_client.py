"""The HTTP process's end of the engine's socket: sends sequences, and gives each request its new tokens."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Sequence

from millrace_runtime.api.errors import GenerationError, UnavailableError
from millrace_runtime.api.event_stream import EventStream
from millrace_runtime.protocol.encoding import FrameDecoder, FrameError, encode_frame
from millrace_runtime.protocol.messages import (
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
        frames = [encode_frame(prompt) for prompt in prompts]  # before anything changes: it may raise
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
