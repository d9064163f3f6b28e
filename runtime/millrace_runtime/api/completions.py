"""POST /v1/completions: writing answers."""

import orjson

from millrace_runtime.api.choice import Delta
from millrace_runtime.api.envelope import Envelope, encode_reason
from millrace_runtime.api.generation import Usage
from millrace_runtime.api.logprobs import NO_LOGPROBS, CompletionLogprobs, Logprobs
from millrace_runtime.api.whole_choice import WholeChoice, WholeChoices
from millrace_runtime.chat.tokenizer import Tokenizer

ID_PREFIX = "cmpl-"
_OBJECT = "text_completion"


class CompletionWriter:
    """Writes one request's chunks or its answer."""

    def __init__(self, envelope: Envelope, tokenizer: Tokenizer, *, has_logprobs: bool) -> None:
        self._envelope = envelope
        self._tokenizer = tokenizer
        self._has_logprobs = has_logprobs
        self._head = envelope.chunk_head(_OBJECT)
        self._tail = envelope.chunk_tail
        self._choices = WholeChoices(self._open_logprobs)

    def encode_opening(self, num_choices: int) -> bytes:
        """Return the chunks before the first text: this dialect has none."""
        del num_choices
        return b""

    def encode_delta(self, delta: Delta) -> bytes:
        """Return one choice's chunk."""
        logprobs = self._open_logprobs()
        logprobs.add(delta.positions)
        return b'%b{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b}%b' % (
            self._head,
            delta.index,
            orjson.dumps(delta.text),
            b"".join(logprobs.encode()),
            encode_reason(delta.finish_reason),
            self._tail,
        )

    def encode_usage(self, usage: Usage) -> bytes:
        """Return the chunk that tells the usage."""
        return self._envelope.encode_usage_chunk(_OBJECT, usage)

    def add_delta(self, delta: Delta) -> None:
        """Take one choice's news for an answer in one piece."""
        self._choices.add(delta)

    def encode_answer(self, usage: Usage) -> bytes:
        """Return the whole answer; each choice is the sum of its deltas."""
        choices = (_encode_choice(index, choice) for index, choice in self._choices)
        return self._envelope.encode_answer(_OBJECT, choices, usage)

    def _open_logprobs(self) -> Logprobs:
        return CompletionLogprobs(self._tokenizer) if self._has_logprobs else NO_LOGPROBS


def _encode_choice(index: int, choice: WholeChoice) -> list[bytes]:
    return [
        b'{"index":%d,"text":%b,"logprobs":' % (index, orjson.dumps(choice.text)),
        *choice.logprobs.encode(),
        b',"finish_reason":%b}' % encode_reason(choice.finish_reason),
    ]
