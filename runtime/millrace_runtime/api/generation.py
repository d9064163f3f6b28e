"""A request in progress: its sequences in the engine, their text as it arrives, and their latencies."""

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from millrace_runtime.api.admission import Booking
from millrace_runtime.api.answer.choice import Choice, Delta
from millrace_runtime.api.answer.prompt import Echo, PromptReader
from millrace_runtime.api.connection.asgi import COMMENT
from millrace_runtime.api.engine_client import EngineClient
from millrace_runtime.api.event_stream import EventStream, WriteEvents
from millrace_runtime.api.metrics import ReplicaMetrics
from millrace_runtime.api.request.generation_request import GenerationRequest
from millrace_runtime.api.usage import Usage
from millrace_runtime.chat.stop import build_stops
from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.protocol.encoding import pack_tokens
from millrace_runtime.protocol.messages import (
    FINISH_ABORT,
    FINISH_ERROR,
    Begun,
    Generate,
    Grammar,
    NewSequence,
    SequenceOutput,
)
from millrace_runtime.protocol.sampling import Sampling, count_mask_bytes

Write = Callable[[Delta], bytes | None]
"""Writes a delta. Returns its events, or None if the answer is one JSON document."""


class Generation:
    """Runs a request's sequences and turns their outputs into events."""

    def __init__(
        self,
        request: GenerationRequest,
        *,
        engine: EngineClient,
        metrics: ReplicaMetrics,
        arrival: float,
        booking: Booking,
        write: Write,
        tokenizer: Tokenizer,
        vocabulary_size: int,
        salt: bytes,
        markers: frozenset[str],
    ) -> None:
        """Only requests with the same `salt` share computed prefixes.

        `markers` are the texts that the answer's parser looks for: special tokens among them stay in the
        text.
        """
        self._request = request
        self._stops = build_stops(request.stops, tokenizer.special_texts, is_kept=request.keeps_stop)
        self._tokenizer = tokenizer
        specials = tokenizer.special_texts if markers else {}
        self._markers = {token: text for token, text in specials.items() if text in markers}
        allowed = request.allowed_ids
        self._allowed = None if allowed is None else build_mask(allowed, vocabulary_size)
        self._engine = engine
        self._metrics = metrics
        self._arrival = arrival
        self._booking = booking
        self._write = write
        self._salt = salt
        self._choices: dict[int, Choice] = {}
        self._prompts: list[Generate] = []
        self._num_prompt_tokens = 0
        self._num_cached_tokens: dict[int, int] = {}
        """By the number of the prompt, once a choice of it has begun."""
        self._alarm: asyncio.TimerHandle | None = None
        self.on_silence: Callable[[], None] = lambda: None
        """Called after tokens without an event."""
        self.events = EventStream(engine, self._accept, self._note_begun)
        """The events of each step, from `start` on."""

    def add_prompt(self, prompt: Sequence[int], max_tokens: int, grammar: Grammar | None) -> None:
        """Plan the choices of one prompt, which fit `grammar`. `start` sends them."""
        request = self._request
        ends = () if request.ignores_end else self._tokenizer.end_token_ids
        stop_ids = [*ends, *request.stop_token_ids]
        self._num_prompt_tokens += len(prompt)
        sequences = [
            NewSequence(self._engine.reserve_id(), self._build_sampling(number, stop_ids))
            for number in range(request.num_choices)
        ]
        self._prompts.append(
            Generate(
                sequences=sequences,
                prompt=pack_tokens(prompt),
                max_tokens=max_tokens,
                stop_token_ids=stop_ids,
                grammar=grammar,
                bad_words=[list(word) for word in request.bad_sequences],
                salt=self._salt,
                priority=request.priority,
            )
        )
        for sequence in sequences:
            self._choices[sequence.sequence_id] = Choice(
                len(self._choices),
                prompt,
                self._tokenizer,
                self._stops,
                frozenset(() if request.keeps_stop else stop_ids),
                hides_special=request.hides_special,
                min_tokens=request.min_tokens,
                markers=self._markers,
                returns_token_ids=request.returns_token_ids,
                client_ends=frozenset(request.stop_token_ids).difference(ends),
                reader=self._open_reader(prompt),
            )

    def start(self) -> None:
        """Send the prompts to the engine. Raises UnavailableError."""
        prompts, self._prompts = self._prompts, []  # else they would stay in memory until the end
        self._engine.generate(prompts, self.events)

    def write_by(self, write: WriteEvents) -> None:
        """From now on call `write` for a step's events, without the reader, wherever they need not wait."""

        def write_held(events: bytes) -> bool:
            is_written = write(events)
            if is_written:
                self._booking.drop_events(len(events))
            return is_written

        self.events.write = write_held

    def keep_alive(self, seconds: float) -> None:
        """Add a comment to the events whenever no event has come for `seconds`."""
        now = time.monotonic()
        rest = self.events.last_at + seconds - now
        if rest <= 0:
            self._booking.hold_events(len(COMMENT))
            self.events.add(COMMENT)
            rest = seconds
        self._alarm = asyncio.get_running_loop().call_later(rest, self.keep_alive, seconds)

    def close(self, *, has_failed: bool) -> None:
        """Abort and count the sequences that have not ended."""
        if self._alarm is not None:
            self._alarm.cancel()
        self.events.close()
        for choice in self._choices.values():
            if choice.finish_reason is None:
                choice.finish_reason = FINISH_ERROR if has_failed else FINISH_ABORT
                self._metrics.finish(choice, self._arrival, time.monotonic())

    @property
    def num_choices(self) -> int:
        """Choices of all prompts."""
        return len(self._choices)

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return Usage(
            self._num_prompt_tokens,
            sum(choice.num_tokens for choice in self._choices.values()),
            sum(self._num_cached_tokens.values()),
        )

    @property
    def has_begun(self) -> bool:
        """Whether the first step of a sequence has begun."""
        return bool(self._num_cached_tokens)

    def _note_begun(self, begun: Begun, now: float) -> None:
        choice = self._choices[begun.sequence_id]
        choice.num_cached_tokens = begun.num_cached
        self._num_cached_tokens.setdefault(choice.index // self._request.num_choices, begun.num_cached)
        self._metrics.queue_time.observe(now - self._arrival)

    def _accept(self, output: SequenceOutput, now: float) -> bytes | None:
        choice = self._choices[output.sequence_id]
        if output.tokens:
            self._time_tokens(choice, len(output.tokens), now)
        written = []
        if (delta := choice.read_prompt(output)) is not None:
            written.append(self._write(delta))
        delta = choice.accept(output)
        if choice.finish_reason is not None:
            if choice.first_token_at is None:
                self._booking.start_sequence(choice.num_prompt_tokens)
            self._metrics.finish(choice, self._arrival, now)
            self._booking.end_sequence()
            self.events.drop(output.sequence_id)  # the engine knows no stop strings and would go on
        if delta is not None:
            written.append(self._write(delta))
        events = b"".join(event for event in written if event is not None)
        self._booking.hold_events(len(events))
        if not events:
            self.on_silence()
        return events or None

    def _time_tokens(self, choice: Choice, num_tokens: int, now: float) -> None:
        if choice.first_token_at is None:
            choice.first_token_at, choice.num_first_tokens = now, num_tokens
            self._booking.start_sequence(choice.num_prompt_tokens)
            self._metrics.time_to_first_token.observe(now - self._arrival)
        else:
            self._metrics.inter_token.observe(now - choice.last_token_at)
        choice.last_token_at = now

    def _open_reader(self, prompt: Sequence[int]) -> PromptReader | None:
        """Return the reader of a prompt's echo and scores; None if the answer has neither."""
        wish, echo = self._request.prompt, None
        if not wish.is_echoed and wish.num_logprobs is None:
            return None
        if wish.is_echoed:
            text = wish.texts[len(self._prompts) - 1] if wish.texts else None
            echo = Echo(prompt, text, self._tokenizer)
        return PromptReader(
            prompt,
            echo,
            num_logprobs=self._request.sampling.num_logprobs,
            wants_scores=wish.num_logprobs is not None,
        )

    def _build_sampling(self, choice: int, stop_ids: Sequence[int]) -> Sampling:
        request, sampling = self._request, self._request.sampling
        if request.best_of is not None and sampling.num_logprobs is None:
            sampling = msgspec.structs.replace(sampling, num_logprobs=0)  # to find the best by
        return msgspec.structs.replace(
            sampling,
            seed=request.seed_of(choice),
            allowed=self._allowed,
            min_tokens=request.min_tokens,
            held_back=tuple(stop_ids) if request.min_tokens else (),
        )


def build_mask(packed: bytes, vocabulary_size: int) -> bytes:
    """Return a mask that allows these packed tokens, laid out as those of `Executor.provide_masks`."""
    is_allowed = np.zeros(8 * count_mask_bytes(vocabulary_size), dtype=bool)
    is_allowed[np.frombuffer(packed, dtype="<i4")] = True
    return np.packbits(is_allowed, bitorder="little").tobytes()
