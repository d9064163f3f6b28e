"""POST /v1/completions: writing answers."""

from typing import Any

import orjson

from millrace_runtime.api.choice import Delta
from millrace_runtime.api.envelope import Envelope, encode_reason
from millrace_runtime.api.generation import Usage
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
        self._offsets: dict[int, int] = {}

    def encode_opening(self, num_choices: int) -> bytes:
        """Return the chunks before the first text: this dialect has none."""
        del num_choices
        return b""

    def encode_delta(self, delta: Delta) -> bytes:
        """Return one choice's chunk."""
        logprobs = orjson.dumps(self._logprobs(delta)) if self._has_logprobs else b"null"
        return b'%b{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b}%b' % (
            self._head,
            delta.index,
            orjson.dumps(delta.text),
            logprobs,
            encode_reason(delta.finish_reason),
            self._tail,
        )

    def encode_usage(self, usage: Usage) -> bytes:
        """Return the chunk that tells the usage."""
        return self._envelope.encode_usage_chunk(_OBJECT, usage)

    def encode_answer(self, choices: list[Delta], usage: Usage) -> bytes:
        """Return the whole answer; each choice is the sum of its deltas."""
        return self._envelope.encode_answer(_OBJECT, [self._choice(choice) for choice in choices], usage)

    def _choice(self, choice: Delta) -> dict[str, Any]:
        return {
            "index": choice.index,
            "text": choice.text,
            "logprobs": self._logprobs(choice) if self._has_logprobs else None,
            "finish_reason": choice.finish_reason,
        }

    def _logprobs(self, delta: Delta) -> dict[str, Any]:
        tokens = [self._text(token) for token, _ in delta.logprobs]
        return {
            "tokens": tokens,
            "token_logprobs": [item.drawn for _, item in delta.logprobs],
            "top_logprobs": [
                {
                    self._text(top): value
                    for top, value in zip(item.top_tokens, item.top_logprobs, strict=True)
                }
                | {self._text(token): item.drawn}
                for token, item in delta.logprobs
            ],
            "text_offset": self._advance(delta.index, tokens),
        }

    def _advance(self, index: int, tokens: list[str]) -> list[int]:
        offset, offsets = self._offsets.get(index, 0), []
        for token in tokens:
            offsets.append(offset)
            offset += len(token)
        self._offsets[index] = offset
        return offsets

    def _text(self, token: int) -> str:
        return self._tokenizer.token_bytes(token).decode(errors="replace")
