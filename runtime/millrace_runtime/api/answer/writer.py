"""Writes one request's answer in its dialect: the chunks of a stream, or one JSON document."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import orjson

from millrace_runtime.api.answer.choice import Delta
from millrace_runtime.api.answer.logprobs import (
    NO_LOGPROBS,
    ChatLogprobs,
    CompletionLogprobs,
    Logprobs,
    PromptLogprobsJson,
)
from millrace_runtime.api.answer.message import OpenMessage
from millrace_runtime.api.errors import ApiError
from millrace_runtime.api.generation import Usage
from millrace_runtime.chat.tokenizer import Tokenizer

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Envelope:
    """The fields around a request's choices."""

    request_id: str
    created: int
    """Unix time, seconds."""
    model: str
    includes_usage: bool
    """Whether a last chunk has the usage; then the others have `"usage": null`."""
    tools: list[dict[str, Any]] | None = None
    """The tools of the request, which some dialects repeat."""
    has_prompt_logprobs: bool = False
    """Whether a whole answer has its prompts' log-probabilities."""

    def chunk_head(self, object_name: str) -> bytes:
        """Return the beginning of a chunk, up to its first choice."""
        return b"data: " + orjson.dumps(self._fields(object_name))[:-1] + b',"choices":['

    @property
    def chunk_tail(self) -> bytes:
        """Return the end of a chunk, after its last choice."""
        return b'],"usage":null}\n\n' if self.includes_usage else b"]}\n\n"

    def encode_tail(self, usage: Usage) -> bytes:
        """Return a chunk from the end of its list of choices, with the usage so far."""
        return b'],"usage":' + orjson.dumps(_usage_fields(usage)) + b"}\n\n"

    def encode_usage_chunk(self, object_name: str, usage: Usage) -> bytes:
        """Return the chunk with the usage and without choices."""
        body = self._fields(object_name) | {"choices": [], "usage": _usage_fields(usage)}
        return b"data: " + orjson.dumps(body) + b"\n\n"

    def encode_answer(
        self, object_name: str, choices: Iterable[list[bytes]], usage: Usage, others: list[bytes]
    ) -> bytes:
        """Return a whole answer's JSON, with `others` as its last fields.

        They and each choice come in pieces, so that they are copied once.
        """
        pieces = [orjson.dumps(self._fields(object_name))[:-1], b',"choices":[']
        for number, choice in enumerate(choices):
            pieces += [b",", *choice] if number else choice
        pieces += [b'],"usage":', orjson.dumps(_usage_fields(usage)), *others, b"}"]
        return b"".join(pieces)

    def _fields(self, object_name: str) -> dict[str, Any]:
        return {
            "id": self.request_id,
            "object": object_name,
            "created": self.created,
            "model": self.model,
        }


class WholeChoice:
    """Collects one choice's deltas."""

    def __init__(self, logprobs: Logprobs) -> None:
        self.logprobs = logprobs
        self.finish_reason: str | None = None
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._texts)

    def add(self, delta: Delta) -> int:
        """Append the choice's next delta. Return how many bytes it takes, as far as characters are bytes."""
        self._texts.append(delta.text)
        self.finish_reason = delta.finish_reason
        return len(delta.text) + self.logprobs.add(delta.positions)


class WholeChoices:
    """Collects all choices' deltas."""

    def __init__(self, open_logprobs: Callable[[], Logprobs]) -> None:
        self._open_logprobs = open_logprobs
        self._choices: dict[int, WholeChoice] = {}

    def add(self, delta: Delta) -> int:
        """Append a delta to the choice that it is of. Return how many bytes it takes."""
        if delta.index not in self._choices:
            self._choices[delta.index] = WholeChoice(self._open_logprobs())
        return self._choices[delta.index].add(delta)

    def __iter__(self) -> Iterator[tuple[int, WholeChoice]]:
        """Yield each index and its choice, in order."""
        return iter(sorted(self._choices.items(), key=lambda item: item[0]))


class Writer(ABC):
    """Turns one request's deltas into its dialect's JSON."""

    id_prefix: ClassVar[str]
    """The prefix of request ids."""
    read_usage: Callable[[], Usage] | None = None
    """Reads the usage so far, where each chunk has it."""

    @abstractmethod
    def __init__(
        self,
        envelope: Envelope,
        tokenizer: Tokenizer,
        *,
        has_logprobs: bool,
        open_message: OpenMessage | None,
    ) -> None:
        """`open_message` is for texts that may have reasoning or calls in them; None: all is content."""

    @abstractmethod
    def encode_opening(self, num_choices: int, usage: Usage) -> bytes:
        """Return a stream's events before the first text; none, unless the dialect has some."""

    @abstractmethod
    def encode_delta(self, delta: Delta) -> bytes | None:
        """Return a delta's events; None where it makes nothing certain."""

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
        """Return an error as a stream's last event."""
        return b"data: " + cls.encode_error(error) + b"\n\n"


class OpenAiWriter(Writer):
    """What OpenAI's two older dialects share: choices side by side, and chunks of one shape."""

    answer_object: ClassVar[str]
    """The `object` of a whole answer."""
    chunk_object: ClassVar[str]
    """The `object` of a stream's chunks."""
    logprobs_type: ClassVar[type[ChatLogprobs | CompletionLogprobs]]

    def __init__(
        self,
        envelope: Envelope,
        tokenizer: Tokenizer,
        *,
        has_logprobs: bool,
        open_message: OpenMessage | None,
    ) -> None:
        self._envelope = envelope
        self._tokenizer = tokenizer
        self._has_logprobs = has_logprobs
        self._open_message = open_message
        self._head = envelope.chunk_head(self.chunk_object)
        self._tail = envelope.chunk_tail
        self._choices = WholeChoices(self._open_logprobs)
        self._scores: dict[int, PromptLogprobsJson] = {}

    @property
    def tail(self) -> bytes:
        """A chunk from the end of its list of choices."""
        if self.read_usage is None:
            return self._tail
        return self._envelope.encode_tail(self._complete(self.read_usage()))

    @property
    def num_reasoning_tokens(self) -> int | None:
        """Tokens of all choices' reasoning; None where nobody looks for it."""
        return None

    def encode_opening(self, num_choices: int, usage: Usage) -> bytes:
        """Return nothing."""
        del num_choices, usage
        return b""

    def encode_end(self, usage: Usage) -> bytes:
        """Return the chunk that holds the usage, where it is asked for, and the end."""
        if not self._envelope.includes_usage:
            return DONE
        return self._envelope.encode_usage_chunk(self.chunk_object, self._complete(usage)) + DONE

    def add_delta(self, delta: Delta) -> int:
        """Collect a delta for a whole answer. Return how many bytes it takes."""
        num_bytes = self._scores_of(delta.index).add(delta.scores) if delta.scores else 0
        return num_bytes + self._choices.add(delta)

    def encode_answer(self, usage: Usage) -> bytes:
        """Return the whole answer: each choice is the sum of its deltas."""
        choices = (self._encode_choice(index, choice) for index, choice in self._choices)
        others = self._encode_others()
        return self._envelope.encode_answer(self.answer_object, choices, self._complete(usage), others)

    def _encode_others(self) -> list[bytes]:
        """Return further fields of a whole answer, in pieces, each behind a comma."""
        return []

    def _encode_scores(self, index: int) -> list[bytes]:
        """Return the field with the log-probabilities of a choice's prompt, in the same way."""
        if not self._envelope.has_prompt_logprobs:
            return []
        return [b',"prompt_logprobs":', *self._scores_of(index).encode()]

    def _scores_of(self, index: int) -> PromptLogprobsJson:
        if index not in self._scores:
            self._scores[index] = PromptLogprobsJson(self._tokenizer)
        return self._scores[index]

    @abstractmethod
    def _encode_choice(self, index: int, choice: WholeChoice) -> list[bytes]:
        """Return a whole choice's JSON, in pieces."""

    def _complete(self, usage: Usage) -> Usage:
        return usage._replace(num_reasoning_tokens=self.num_reasoning_tokens)

    def _open_logprobs(self) -> Logprobs:
        return self.logprobs_type(self._tokenizer) if self._has_logprobs else NO_LOGPROBS


class CompletionWriter(OpenAiWriter):
    """Writes text completions."""

    id_prefix = "cmpl-"
    answer_object = chunk_object = "text_completion"
    logprobs_type = CompletionLogprobs

    def encode_delta(self, delta: Delta) -> bytes:
        """Return a chunk with the delta's text."""
        logprobs = self._open_logprobs()
        logprobs.add(delta.positions)
        return b'%b{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b}%b' % (
            self._head,
            delta.index,
            orjson.dumps(delta.text),
            b"".join(logprobs.encode()),
            encode_reason(delta.finish_reason),
            self.tail,
        )

    def _encode_choice(self, index: int, choice: WholeChoice) -> list[bytes]:
        return [
            b'{"index":%d,"text":%b,"logprobs":' % (index, orjson.dumps(choice.text)),
            *choice.logprobs.encode(),
            b',"finish_reason":%b' % encode_reason(choice.finish_reason),
            *self._encode_scores(index),
            b"}",
        ]


def _usage_fields(usage: Usage) -> dict[str, Any]:
    """Return OpenAI's usage object."""
    prompt, completion, reasoning = usage
    fields: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if reasoning is not None:
        fields["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return fields


def encode_reason(reason: str | None) -> bytes:
    """Return a finish reason as JSON."""
    return b"null" if reason is None else b'"' + reason.encode() + b'"'
