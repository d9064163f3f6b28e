"""POST /v1/chat/completions: writing answers."""

from typing import Any

import orjson

from millrace_runtime.api.choice import Delta
from millrace_runtime.api.envelope import Envelope, encode_reason
from millrace_runtime.api.generation import Usage
from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.protocol.step import TokenLogprobs

ID_PREFIX = "chatcmpl-"
_OBJECT = "chat.completion"
_CHUNK_OBJECT = "chat.completion.chunk"


class ChatWriter:
    """Writes one request's chunks or its answer."""

    def __init__(self, envelope: Envelope, tokenizer: Tokenizer, *, has_logprobs: bool) -> None:
        self._envelope = envelope
        self._tokenizer = tokenizer
        self._has_logprobs = has_logprobs
        self._head = envelope.chunk_head(_CHUNK_OBJECT)
        self._tail = envelope.chunk_tail

    def encode_opening(self, num_choices: int) -> bytes:
        """Return each choice's first chunk, which tells the role."""
        return b"".join(
            b'%b{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}%b'
            % (self._head, index, self._tail)
            for index in range(num_choices)
        )

    def encode_delta(self, delta: Delta) -> bytes:
        """Return one choice's chunk."""
        logprobs = orjson.dumps(self._logprobs(delta)) if self._has_logprobs else b"null"
        content = b'{"content":%b}' % orjson.dumps(delta.text) if delta.text or delta.logprobs else b"{}"
        return b'%b{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b}%b' % (
            self._head,
            delta.index,
            content,
            logprobs,
            encode_reason(delta.finish_reason),
            self._tail,
        )

    def encode_usage(self, usage: Usage) -> bytes:
        """Return the chunk that tells the usage."""
        return self._envelope.encode_usage_chunk(_CHUNK_OBJECT, usage)

    def encode_answer(self, choices: list[Delta], usage: Usage) -> bytes:
        """Return the whole answer; each choice is the sum of its deltas."""
        return self._envelope.encode_answer(_OBJECT, [self._choice(choice) for choice in choices], usage)

    def _choice(self, choice: Delta) -> dict[str, Any]:
        return {
            "index": choice.index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": self._logprobs(choice) if self._has_logprobs else None,
            "finish_reason": choice.finish_reason,
        }

    def _logprobs(self, delta: Delta) -> dict[str, Any]:
        return {"content": [self._position(token, item) for token, item in delta.logprobs], "refusal": None}

    def _position(self, token: int, item: TokenLogprobs) -> dict[str, Any]:
        top = zip(item.top_tokens, item.top_logprobs, strict=True)
        return self._entry(token, item.drawn) | {"top_logprobs": [self._entry(*pair) for pair in top]}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        spelled = self._tokenizer.token_bytes(token)
        return {"token": spelled.decode(errors="replace"), "logprob": logprob, "bytes": list(spelled)}
