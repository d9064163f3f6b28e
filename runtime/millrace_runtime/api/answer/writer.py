"""Writes one request's answer in its dialect: the chunks of a stream, or one JSON document."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from millrace_runtime.api.answer.choice import Delta
from millrace_runtime.api.answer.envelope import Envelope
from millrace_runtime.api.answer.message import Message, OpenMessage
from millrace_runtime.api.errors import ApiError
from millrace_runtime.api.request.choices import BestOf
from millrace_runtime.api.usage import Usage
from millrace_runtime.chat.parsers.answer import Part, PlainParser
from millrace_runtime.chat.tokenizer import Tokenizer


@dataclass(frozen=True)
class AnswerSpec:
    """The values of a request that its writer needs."""

    envelope: Envelope
    tokenizer: Tokenizer
    has_logprobs: bool = False
    best_of: BestOf | None = None
    names_tokens_by_id: bool = False
    """Whether log-probabilities name tokens by their ids."""
    open_message: OpenMessage | None = None
    """Opens the Message that splits off reasoning and calls; None: all text is content."""


class Writer(ABC):
    """Turns one request's deltas into its dialect's JSON."""

    id_prefix: ClassVar[str]
    """The prefix of request ids."""
    read_usage: Callable[[], Usage] | None = None
    """Reads the usage so far, where each chunk has it."""

    def __init__(self, spec: AnswerSpec) -> None:
        self._envelope = spec.envelope
        self._open_message = spec.open_message

    @property
    def opens_with_usage(self) -> bool:
        """Whether a stream's opening has the usage, which is known once the engine has begun."""
        return self.read_usage is not None

    @abstractmethod
    def encode_opening(self, num_choices: int, usage: Usage) -> bytes:
        """Return a stream's events before the first text; none, unless the dialect has some."""

    @abstractmethod
    def encode_delta(self, delta: Delta) -> bytes | None:
        """Return a delta's events; None while no new part of the answer is certain."""

    @abstractmethod
    def encode_end(self, usage: Usage) -> bytes:
        """Return a stream's last events."""

    @abstractmethod
    def add_delta(self, delta: Delta) -> int:
        """Collect a delta for a whole answer. Return how many bytes it takes."""

    @abstractmethod
    def encode_answer(self, usage: Usage) -> bytes:
        """Return the whole answer: each choice is the sum of its deltas."""

    @staticmethod
    def encode_error(error: ApiError) -> bytes:
        """Return an error in the dialect's shape."""
        return error.encode()

    @classmethod
    def encode_error_event(cls, error: ApiError) -> bytes:
        """Return an error as a stream's last event, where nothing is written yet."""
        return b"data: " + cls.encode_error(error) + b"\n\n"

    def encode_failure(self, error: ApiError) -> bytes:
        """Return an error as the last event of this stream."""
        return self.encode_error_event(error)


class PartsWriter(Writer):
    """Writes reasoning, content and calls in the order of the answer: one choice, no log-probabilities."""

    def __init__(self, spec: AnswerSpec) -> None:
        super().__init__(spec)
        self._message = Message(PlainParser()) if spec.open_message is None else spec.open_message()
        self._finish: str | None = None
        self._stop_string: str | None = None

    def encode_delta(self, delta: Delta) -> bytes | None:
        """Return the events of a delta; None while it may be content or something else."""
        return b"".join(self._accept(delta)) or None

    def add_delta(self, delta: Delta) -> int:
        """Collect a delta for a whole answer. Return how many bytes it takes."""
        for _ in self._accept(delta):
            pass
        return len(delta.text)

    def _accept(self, delta: Delta) -> Iterator[bytes]:
        for part in self._message.accept(delta).parts:
            yield self._encode_part(part)
        # Only now: a part may end the one before it, which the answer's end did not cut.
        self._finish = delta.finish_reason
        self._stop_string = delta.stop_string

    @abstractmethod
    def _encode_part(self, part: Part) -> bytes:
        """Return the events of a part, which may begin another one."""
