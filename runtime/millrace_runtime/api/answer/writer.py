"""The part that both dialects share of writing one request's chunks, or its answer in one piece."""

from abc import ABC, abstractmethod
from typing import ClassVar

from millrace_runtime.api.answer.choice import Delta
from millrace_runtime.api.answer.envelope import Envelope
from millrace_runtime.api.answer.logprobs import NO_LOGPROBS, ChatLogprobs, CompletionLogprobs, Logprobs
from millrace_runtime.api.answer.whole_choice import WholeChoice, WholeChoices
from millrace_runtime.api.generation import Usage
from millrace_runtime.chat.tokenizer import Tokenizer


class Writer(ABC):
    """Turns one request's deltas into its dialect's JSON."""

    id_prefix: ClassVar[str]
    """The prefix of request ids."""
    answer_object: ClassVar[str]
    """The `object` of an answer in one piece."""
    chunk_object: ClassVar[str]
    """The `object` of a stream's chunks."""
    logprobs_type: ClassVar[type[ChatLogprobs | CompletionLogprobs]]

    def __init__(self, envelope: Envelope, tokenizer: Tokenizer, *, has_logprobs: bool) -> None:
        self._envelope = envelope
        self._tokenizer = tokenizer
        self._has_logprobs = has_logprobs
        self._head = envelope.chunk_head(self.chunk_object)
        self._tail = envelope.chunk_tail
        self._choices = WholeChoices(self._open_logprobs)

    def encode_opening(self, num_choices: int) -> bytes:
        """Return the chunks before the first text; none, unless the dialect has some."""
        del num_choices
        return b""

    @abstractmethod
    def encode_delta(self, delta: Delta) -> bytes:
        """Return a delta's chunk."""

    def encode_usage(self, usage: Usage) -> bytes:
        """Return the chunk that holds the usage."""
        return self._envelope.encode_usage_chunk(self.chunk_object, usage)

    def add_delta(self, delta: Delta) -> None:
        """Collect a delta for an answer in one piece."""
        self._choices.add(delta)

    def encode_answer(self, usage: Usage) -> bytes:
        """Return the answer in one piece: each choice is the sum of its deltas."""
        choices = (self._encode_choice(index, choice) for index, choice in self._choices)
        return self._envelope.encode_answer(self.answer_object, choices, usage)

    @abstractmethod
    def _encode_choice(self, index: int, choice: WholeChoice) -> list[bytes]:
        """Return a whole choice's JSON, in pieces."""

    def _open_logprobs(self) -> Logprobs:
        return self.logprobs_type(self._tokenizer) if self._has_logprobs else NO_LOGPROBS
