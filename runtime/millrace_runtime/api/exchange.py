"""One request from its first byte to its last: admit, read, tokenise, generate, answer, count."""

import asyncio
import logging
import time
import uuid
from functools import partial
from typing import Protocol

from starlette.types import Receive, Scope, Send

from millrace_runtime.api import chat_completions, completions
from millrace_runtime.api.booking import Booking
from millrace_runtime.api.choice import Delta
from millrace_runtime.api.envelope import DONE, Envelope
from millrace_runtime.api.errors import (
    ApiError,
    ClientGoneError,
    GenerationError,
    ModelNotFoundError,
)
from millrace_runtime.api.generation import Generation, Usage
from millrace_runtime.api.intent import GenerationRequest
from millrace_runtime.api.prompts import Prompted, Prompts, fit_prompt, read_prompts
from millrace_runtime.api.replica_state import ReplicaState
from millrace_runtime.api.wire import Answer, Body
from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.protocol.messages import EngineReady

logger = logging.getLogger(__name__)


class Writer(Protocol):
    """Writes a dialect's chunks and answers."""

    def encode_opening(self, num_choices: int) -> bytes:
        """Return the chunks before the first text."""

    def encode_delta(self, delta: Delta) -> bytes:
        """Return one choice's chunk."""

    def encode_usage(self, usage: Usage) -> bytes:
        """Return the chunk that tells the usage."""

    def add_delta(self, delta: Delta) -> None:
        """Take one choice's news for an answer in one piece."""

    def encode_answer(self, usage: Usage) -> bytes:
        """Return the whole answer."""


class OpenWriter(Protocol):
    """Makes a writer for one request."""

    def __call__(self, envelope: Envelope, tokenizer: Tokenizer, *, has_logprobs: bool) -> Writer:
        """Return the writer."""


class Dialect:
    """How one endpoint reads and writes."""

    def __init__(self, name: str, id_prefix: str, open_writer: OpenWriter) -> None:
        self.name = name
        self.id_prefix = id_prefix
        self.open_writer = open_writer


COMPLETIONS = Dialect("completion", completions.ID_PREFIX, completions.CompletionWriter)
CHAT = Dialect("chat", chat_completions.ID_PREFIX, chat_completions.ChatWriter)


class Exchange:
    """One request and its answer."""

    def __init__(
        self, replica: ReplicaState, dialect: Dialect, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._replica = replica
        self._dialect = dialect
        settings = replica.settings
        self._body = Body(scope, receive, settings.max_body_bytes, settings.body_seconds)
        self._answer = Answer(scope, send)
        self._arrival = time.monotonic()
        self._booking = Booking(replica.admission, replica.metrics)
        self._reading: asyncio.Future[Prompted] | None = None
        self._generation: Generation | None = None

    async def run(self) -> None:
        """Serve the request; whatever goes wrong is this client's alone."""
        failure: ApiError | None = None
        try:
            with self._replica.open_request() as ready:
                await self._serve(ready)
        except ApiError as error:
            failure = error
        except (ClientGoneError, asyncio.CancelledError) as error:
            self._settle(None)
            if isinstance(error, asyncio.CancelledError):
                raise
            return
        except Exception:
            logger.exception("a request failed")
            failure = GenerationError("this server failed on the request; its log says why")
        self._settle(failure)
        if failure is not None:
            await self._answer.fail(failure, closes=self._replica.is_draining)

    async def _serve(self, ready: EngineReady) -> None:
        self._body.check_declared()
        self._booking.admit()
        body = await self._body.read(partial(self._booking.grow, max_tokens=ready.max_model_length))
        with self._body.watch(self._disconnect):
            request, prompts = await self._read_prompts(body, ready)
            del body  # else it would be held for as long as its answer takes
            self._booking.drop_body()
            writer = self._open_writer(request)
            generation = self._plan(request, prompts, writer, ready)
            num_tokens = sum(map(len, prompts)) * request.num_choices
            del prompts  # packed by now
            self._booking.resize(generation.num_choices, num_tokens)
            self._start(generation)
            await self._write(request, generation, writer)

    async def _read_prompts(self, body: bytearray, ready: EngineReady) -> Prompted:
        """Return what the body asks for, unless the client leaves first."""
        replica = self._replica
        inline_bytes = replica.settings.inline_body_bytes
        self._reading = asyncio.ensure_future(
            read_prompts(
                self._dialect.name,
                body,
                replica.text,
                inline_bytes,
                self._accept,
                max_prompt_tokens=ready.max_model_length,
            )
        )
        try:
            return await self._reading
        except asyncio.CancelledError:
            if self._body.is_disconnected:
                raise ClientGoneError from None
            raise

    def _accept(self, request: GenerationRequest) -> None:
        self._require_model(request.model)
        self._booking.resize(request.num_sequences)

    def _require_model(self, model: str | None) -> None:
        served = self._replica.settings.served_name
        if model is not None and model != served:
            raise ModelNotFoundError(
                f"the model `{model}` is not served here: use `{served}`",
                param="model",
                code="model_not_found",
            )

    def _open_writer(self, request: GenerationRequest) -> Writer:
        envelope = Envelope(
            request_id=self._dialect.id_prefix + uuid.uuid4().hex,
            created=int(time.time()),
            model=self._replica.settings.served_name,
            includes_usage=request.includes_usage,
        )
        has_logprobs = request.sampling.num_logprobs is not None
        return self._dialect.open_writer(envelope, self._replica.tokenizer, has_logprobs=has_logprobs)

    def _plan(
        self, request: GenerationRequest, prompts: Prompts, writer: Writer, ready: EngineReady
    ) -> Generation:
        """Return the generation of prompts that fit the model; only then may they have to wait."""
        replica = self._replica
        write = writer.encode_delta if request.is_streaming else writer.add_delta
        generation = Generation(
            request,
            engine=replica.engine,
            metrics=replica.metrics,
            arrival=self._arrival,
            booking=self._booking,
            write=write,
        )
        for prompt in prompts:
            max_tokens = fit_prompt(prompt, request, ready)
            generation.add_prompt(prompt, max_tokens, replica.tokenizer)
        return generation

    def _start(self, generation: Generation) -> None:
        self._replica.require_ready()  # it may have ended, or begun to drain, while we tokenised
        generation.start()
        self._generation = generation
        if self._body.is_disconnected:
            generation.events.disconnect()

    async def _write(self, request: GenerationRequest, generation: Generation, writer: Writer) -> None:
        if request.is_streaming:
            await self._stream(request, generation, writer)
        else:
            await self._answer_whole(generation, writer)

    async def _stream(self, request: GenerationRequest, generation: Generation, writer: Writer) -> None:
        """Send each step's chunks in one write, the status with the first: early failures have their own."""
        opening = writer.encode_opening(generation.num_choices)
        async for events in generation.events:
            await self._answer.send_events(opening + events)
            self._booking.drop_events(len(events))
            opening = b""
        usage = writer.encode_usage(generation.usage) if request.includes_usage else b""
        await self._answer.end_events(usage + DONE)

    async def _answer_whole(self, generation: Generation, writer: Writer) -> None:
        async for _ in generation.events:  # there are none: the writer takes what comes
            pass
        await self._answer.send_json(200, writer.encode_answer(generation.usage))

    def _disconnect(self) -> None:
        if self._generation is not None:
            self._generation.events.disconnect()
        elif self._reading is not None:
            self._reading.cancel()

    def _settle(self, failure: ApiError | None) -> None:
        """Give back what the request holds, and count it once."""
        self._booking.release()
        if self._generation is not None:
            self._generation.close(has_failed=failure is not None)
        elif failure is not None:
            self._booking.reject(failure)
        else:
            self._booking.abort()  # the client left
