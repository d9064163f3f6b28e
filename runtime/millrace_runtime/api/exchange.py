"""One request from its first byte to its last: admit, read, tokenise, generate, answer, count."""

import asyncio
import logging
import time
import uuid
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import orjson
from starlette.types import Receive, Scope, Send

from millrace_runtime.api.admission import Booking
from millrace_runtime.api.answer.choice import Delta
from millrace_runtime.api.answer.envelope import Envelope
from millrace_runtime.api.answer.message import OpenMessage, open_messages
from millrace_runtime.api.answer.writer import AnswerSpec, Writer
from millrace_runtime.api.connection.asgi import COMMENT, Answer, Body
from millrace_runtime.api.connection.middleware import read_waited
from millrace_runtime.api.dialects import Dialect
from millrace_runtime.api.errors import ApiError, ClientGoneError, GenerationError
from millrace_runtime.api.generation import Generation
from millrace_runtime.api.replica_state import ReplicaState
from millrace_runtime.api.request.answer_form import AnswerForm, choose_form, choose_grammar
from millrace_runtime.api.request.cache_salt import hash_salt, read_sender
from millrace_runtime.api.request.context_length import cut_prompts, fit_prompt
from millrace_runtime.api.request.decoding import asks_for_stream
from millrace_runtime.api.request.generation_request import GenerationRequest
from millrace_runtime.api.request.prompts import Prompts, check_scores, prove_grammar, read_prompts
from millrace_runtime.api.request.token_ids import check_ids
from millrace_runtime.chat.parsers.registry import list_markers
from millrace_runtime.protocol.messages import EngineReady, Grammar

logger = logging.getLogger(__name__)


class Prepared(NamedTuple):
    """A request that was read, checked and tokenised."""

    request: GenerationRequest
    prompts: Prompts
    form: AnswerForm
    grammar: Grammar | None


class Exchange:
    """One request and its answer."""

    def __init__(
        self, replica: ReplicaState, dialect: Dialect, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._replica = replica
        self._dialect = dialect
        self._scope = scope
        self._sender: bytes | None = None
        settings = replica.settings
        self._body = Body(scope, receive, settings.max_body_bytes, settings.body_seconds)
        self._answer = Answer(scope, send, dialect.writer.encode_error, dialect.writer.encode_error_event)
        self._silent_since = time.monotonic()
        self._arrival = self._silent_since - read_waited(scope)
        self._is_streaming = False
        self._booking = Booking(replica.admission, replica.metrics)
        self._reading: asyncio.Future[Prepared] | None = None
        self._generation: Generation | None = None

    async def run(self) -> None:
        """Serve the request. A failure is answered to its own client, and affects no other request."""
        failure: ApiError | None = None
        try:
            with self._replica.open_request() as ready, self._booking:
                await self._serve(ready)
        except ApiError as error:
            failure = error
        except (ClientGoneError, asyncio.CancelledError) as error:
            self._close(None)
            if isinstance(error, asyncio.CancelledError):
                self._answer.cut_events()
                raise
            return
        except Exception:
            logger.exception("a request failed")
            failure = GenerationError("this server failed on the request; its log says why")
        self._close(failure)
        if failure is not None:
            await self._answer.fail(failure, closes=self._replica.is_draining)

    async def _serve(self, ready: EngineReady) -> None:
        self._sender = read_sender(self._scope)
        self._body.check_declared()
        self._booking.admit()
        body = await self._body.read(partial(self._booking.grow, max_tokens=ready.max_model_length))
        self._silent_since = time.monotonic()
        with self._body.watch(self._disconnect):
            request, prompts, form, grammar = await self._prepare(body, ready)
            del body  # else it would be held for as long as its answer takes
            self._booking.drop_body()
            writer = self._open_writer(request, prompts, open_messages(request.answer, form))
            self._answer.encode_error_event = writer.encode_failure
            generation = self._plan_generation(
                request, prompts, grammar, writer, ready=ready, markers=list_markers(*form.formats)
            )
            num_tokens = sum(map(len, prompts)) * request.num_choices
            del prompts  # the generation has packed them
            self._booking.resize(generation.num_choices, num_tokens)
            self._start(generation, is_streaming=request.is_streaming)
            await self._write(request, generation, writer)

    async def _prepare(self, body: bytearray, ready: EngineReady) -> "Prepared":
        """Read the body and decide on its answer. Raises ClientGoneError if the client leaves first."""
        self._is_streaming = len(body) > self._replica.settings.inline_body_bytes and asks_for_stream(body)
        self._reading = asyncio.ensure_future(self._read(body, ready))
        try:
            return await self._await_reading(self._reading)
        except asyncio.CancelledError:
            self._reading.cancel()
            if self._body.is_disconnected:
                raise ClientGoneError from None
            raise

    async def _await_reading(self, reading: "asyncio.Future[Prepared]") -> "Prepared":
        """Return the prepared request. Meanwhile a stream gets its status, and comments in silence."""
        seconds = self._replica.settings.sse_keep_alive_seconds
        while True:
            await asyncio.wait({reading}, timeout=self._silent_since + seconds - time.monotonic())
            if reading.done():
                return reading.result()
            self._silent_since = time.monotonic()
            if self._is_streaming:
                await self._answer.send_events(COMMENT)

    async def _read(self, body: bytearray, ready: EngineReady) -> "Prepared":
        replica = self._replica
        prompted = await read_prompts(
            self._dialect.name,
            body,
            replica.text,
            replica.settings.inline_body_bytes,
            self._accept,
            max_prompt_tokens=ready.max_model_length,
        )
        if (defaults := replica.settings.author_defaults) is not None:
            prompted = prompted._replace(request=prompted.request.with_defaults(defaults))
        request, prompts = cut_prompts(prompted, ready.max_model_length, replica.tokenizer)
        form = choose_form(
            request.answer,
            replica.tokenizer,
            prompts[0],
            tool_format=replica.settings.tool_format,
            reasoning_format=replica.settings.reasoning_format,
        )
        source = choose_grammar(request, form, replica.tokenizer.added_ids)
        return Prepared(request, prompts, form, await prove_grammar(source, replica.grammars))

    def _accept(self, request: GenerationRequest) -> None:
        self._replica.require_model(request.model)
        self._booking.resize(request.num_sequences)
        self._is_streaming = request.is_streaming

    def _open_writer(
        self, request: GenerationRequest, prompts: Prompts, open_message: OpenMessage | None
    ) -> Writer:
        envelope = Envelope(
            request_id=self._dialect.writer.id_prefix + uuid.uuid4().hex,
            created=int(time.time()),
            model=self._replica.settings.served_name,
            includes_usage=request.includes_usage,
            tools=request.answer.tools,
            echo=request.answer.echo,
            temperature=request.sampling.temperature,
            top_p=request.sampling.top_p,
            prompt_ids=_encode_prompts(prompts, request.num_returned) if request.returns_token_ids else None,
            has_prompt_logprobs=request.prompt.num_logprobs is not None,
        )
        self._booking.hold_events(envelope.num_bytes)
        return self._dialect.writer(
            AnswerSpec(
                envelope,
                self._replica.tokenizer,
                best_of=request.best_of,
                has_logprobs=request.sampling.num_logprobs is not None,
                names_tokens_by_id=request.names_tokens_by_id,
                open_message=open_message,
            )
        )

    def _plan_generation(
        self,
        request: GenerationRequest,
        prompts: Prompts,
        grammar: Grammar | None,
        writer: Writer,
        *,
        ready: EngineReady,
        markers: frozenset[str],
    ) -> Generation:
        """Return the prompts' generation. Raises BadRequestError for one that does not fit the model."""
        replica = self._replica
        check_ids(request, ready, replica.tokenizer.end_token_ids)
        check_scores(request, prompts, replica.settings.max_score_bytes)
        if self._sender is not None and request.priority < 0:
            request = replace(request, priority=0)  # one client of several must not starve the others
        write = writer.encode_delta if request.is_streaming else partial(self._collect, writer)
        generation = Generation(
            request,
            engine=replica.engine,
            metrics=replica.metrics,
            arrival=self._arrival,
            booking=self._booking,
            write=write,
            tokenizer=replica.tokenizer,
            vocabulary_size=ready.vocabulary_size,
            salt=hash_salt(self._sender, request.cache_salt),
            markers=markers,
        )
        if request.includes_usage_so_far:
            writer.read_usage = lambda: generation.usage
        if self._answer.report is not None:
            self._answer.report.read_usage = lambda: generation.usage
            generation.on_silence = self._answer.report_silence
        for prompt in prompts:
            max_tokens = fit_prompt(prompt, request, ready)
            generation.add_prompt(prompt, max_tokens, grammar)
        return generation

    def _start(self, generation: Generation, *, is_streaming: bool) -> None:
        self._replica.require_ready()  # it may have ended, or begun to drain, while we tokenised
        generation.start()
        if is_streaming:
            generation.events.last_at = self._silent_since
            generation.keep_alive(self._replica.settings.sse_keep_alive_seconds)
        self._generation = generation
        if self._body.is_disconnected:
            generation.events.disconnect()

    async def _write(self, request: GenerationRequest, generation: Generation, writer: Writer) -> None:
        if request.is_streaming:
            await self._stream(generation, writer)
        else:
            await self._answer_whole(generation, writer)

    async def _stream(self, generation: Generation, writer: Writer) -> None:
        """Send each step's chunks in one write.

        The status goes out with the first chunk, so that an earlier failure can have its own status.
        """
        is_open = False
        async for events in generation.events:
            opening = b""
            if not is_open and (generation.has_begun or not writer.opens_with_usage):
                is_open, opening = True, _encode_opening(generation, writer)
            await self._answer.send_events(opening + events)
            self._booking.drop_events(len(events))
            if is_open:
                generation.write_by(self._answer.write_events)
        opening = b"" if is_open else _encode_opening(generation, writer)
        await self._answer.end_events(opening + writer.encode_end(generation.usage))

    async def _answer_whole(self, generation: Generation, writer: Writer) -> None:
        async for _ in generation.events:  # it yields nothing: the writer collects the deltas
            pass
        await self._answer.send_json(200, writer.encode_answer(generation.usage))

    def _collect(self, writer: Writer, delta: Delta) -> None:
        """Hold a delta until the answer is whole: its bytes count as those of streams do."""
        self._booking.hold_events(writer.add_delta(delta))

    def _disconnect(self) -> None:
        if self._generation is not None:
            self._generation.events.disconnect()
        elif self._reading is not None:
            self._reading.cancel()

    def _close(self, failure: ApiError | None) -> None:
        """Abort the sequences that still run, and count the request once."""
        if self._generation is not None:
            self._generation.close(has_failed=failure is not None)
        elif failure is not None:
            self._booking.reject(failure)
        else:
            self._booking.abort()  # the client left


def _encode_opening(generation: Generation, writer: Writer) -> bytes:
    """Return a stream's events before the first text, as they are before the first token."""
    return writer.encode_opening(generation.num_choices, generation.usage._replace(num_completion_tokens=0))


def _encode_prompts(prompts: Prompts, num_choices: int) -> tuple[bytes, ...]:
    """Return the tokens of each choice's prompt as JSON."""
    encoded = [orjson.dumps(list(prompt)) for prompt in prompts]
    return tuple(ids for ids in encoded for _ in range(num_choices))
