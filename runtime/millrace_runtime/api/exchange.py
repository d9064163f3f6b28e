"""One request from its first byte to its last: admit, read, tokenise, generate, answer, count."""

import asyncio
import logging
import time
import uuid
from functools import partial
from typing import Protocol

from starlette.types import Receive, Scope, Send

from millrace_runtime.api import chat_completions, completions
from millrace_runtime.api.admission import Refusal, Ticket
from millrace_runtime.api.choice import Delta
from millrace_runtime.api.envelope import DONE, Envelope
from millrace_runtime.api.errors import (
    ApiError,
    ClientGoneError,
    GenerationError,
    ModelNotFoundError,
    OverloadedError,
)
from millrace_runtime.api.generation import Generation, Usage
from millrace_runtime.api.intent import GenerationRequest
from millrace_runtime.api.prompts import Prompts, fit_prompt, read_prompts
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
        self._answer = Answer(send)
        self._arrival = time.monotonic()
        self._num_sequences = 0
        """Counted as received, and neither as rejected nor, choice by choice, as finished."""
        self._ticket: Ticket | None = None
        self._generation: Generation | None = None

    async def run(self) -> None:
        """Serve the request; whatever goes wrong is this client's alone."""
        failure: ApiError | None = None
        try:
            await self._serve()
        except ApiError as error:
            failure = error
        except (ClientGoneError, asyncio.CancelledError) as error:
            self._settle(None)
            if isinstance(error, asyncio.CancelledError):
                raise
        except Exception:
            logger.exception("a request failed")
            failure = GenerationError("this server failed on the request; its log says why")
        self._settle(failure)
        if failure is not None:
            await self._answer.fail(failure, closes=self._replica.is_draining)

    async def _serve(self) -> None:
        ready = self._replica.require_ready()
        self._body.check_declared()
        ticket = self._ticket = self._admit()
        body = await self._body.read(partial(self._grow, ticket))
        with self._body.watch(self._disconnect):
            request, prompts = await read_prompts(
                self._dialect.name,
                body,
                self._replica.text,
                self._replica.settings.inline_body_bytes,
                partial(self._accept, ticket),
                max_prompt_tokens=ready.max_model_length,
            )
            del body  # else it would be held for as long as its answer takes
            self._replica.admission.drop_body(ticket)
            self._resize(
                ticket, len(prompts) * request.num_choices, sum(map(len, prompts)) * request.num_choices
            )
            generation = self._generate(request, prompts, ready)
            await self._write(request, generation)

    def _admit(self) -> Ticket:
        self._receive_sequences(1)
        admitted = self._replica.admission.admit(self._body.declared_bytes or 0)
        if isinstance(admitted, Refusal):
            raise _overloaded(admitted)
        return admitted

    def _grow(self, ticket: Ticket, num_body_bytes: int) -> None:
        refusal = self._replica.admission.grow(ticket, num_body_bytes)
        if refusal is not None:
            raise _overloaded(refusal)

    def _resize(self, ticket: Ticket, num_sequences: int, num_tokens: int) -> None:
        self._receive_sequences(num_sequences)
        refusal = self._replica.admission.resize(ticket, num_sequences, num_tokens)
        if refusal is not None:
            raise _overloaded(refusal)

    def _accept(self, ticket: Ticket, request: GenerationRequest) -> None:
        self._require_model(request.model)
        self._resize(ticket, request.num_sequences, ticket.num_tokens)

    def _receive_sequences(self, num_sequences: int) -> None:
        self._replica.metrics.num_received += num_sequences - self._num_sequences
        self._num_sequences = num_sequences

    def _require_model(self, model: str | None) -> None:
        served = self._replica.settings.served_name
        if model is not None and model != served:
            raise ModelNotFoundError(
                f"the model `{model}` is not served here: use `{served}`",
                param="model",
                code="model_not_found",
            )

    def _generate(self, request: GenerationRequest, prompts: Prompts, ready: EngineReady) -> Generation:
        replica = self._replica
        generation = Generation(replica.engine, replica.metrics, self._arrival, self._start_tokens)
        for prompt in prompts:
            max_tokens = fit_prompt(prompt, request, ready)
            generation.add_prompt(request, prompt, max_tokens, replica.tokenizer)
        replica.require_ready()  # it may have ended, or begun to drain, while we tokenised
        generation.start()
        self._generation = generation
        if self._body.is_disconnected:
            generation.disconnect()
        return generation

    def _start_tokens(self, num_tokens: int) -> None:
        if self._ticket is not None:
            self._replica.admission.start(self._ticket, num_tokens)

    async def _write(self, request: GenerationRequest, generation: Generation) -> None:
        envelope = Envelope(
            request_id=self._dialect.id_prefix + uuid.uuid4().hex,
            created=int(time.time()),
            model=self._replica.settings.served_name,
            includes_usage=request.includes_usage,
        )
        has_logprobs = request.sampling.num_logprobs is not None
        writer = self._dialect.open_writer(envelope, self._replica.tokenizer, has_logprobs=has_logprobs)
        if request.is_streaming:
            await self._stream(request, generation, writer)
        else:
            await self._answer_whole(generation, writer)

    async def _stream(self, request: GenerationRequest, generation: Generation, writer: Writer) -> None:
        """Send each step's chunks in one write, the status with the first: early failures have their own."""
        opening = writer.encode_opening(generation.num_choices)
        async for deltas in generation.deltas():
            await self._answer.send_events(opening + b"".join(map(writer.encode_delta, deltas)))
            opening = b""
        usage = writer.encode_usage(generation.usage) if request.includes_usage else b""
        await self._answer.end_events(usage + DONE)

    async def _answer_whole(self, generation: Generation, writer: Writer) -> None:
        async for deltas in generation.deltas():
            for delta in deltas:
                writer.add_delta(delta)
        await self._answer.send_json(200, writer.encode_answer(generation.usage))

    def _disconnect(self) -> None:
        if self._generation is not None:
            self._generation.disconnect()

    def _settle(self, failure: ApiError | None) -> None:
        """Give back what the request holds, and count it once."""
        ticket, self._ticket = self._ticket, None
        generation, self._generation = self._generation, None
        num_sequences, self._num_sequences = self._num_sequences, 0
        metrics = self._replica.metrics
        if ticket is not None:
            self._replica.admission.release(ticket)
        if generation is not None:
            generation.close(has_failed=failure is not None)
        elif failure is not None:
            metrics.num_received += max(0, 1 - num_sequences)  # refused before it was admitted
            metrics.rejected[failure.reason] += max(1, num_sequences)
        elif num_sequences:
            metrics.finished["abort"] += num_sequences  # the client left before the engine knew of it


def _overloaded(refusal: Refusal) -> OverloadedError:
    return OverloadedError(refusal.message, retry_after=refusal.retry_after_seconds)
