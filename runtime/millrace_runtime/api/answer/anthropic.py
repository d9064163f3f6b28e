"""POST /v1/messages: Anthropic's messages of content blocks, whole or as its events."""

import re
from typing import Any

import orjson

from millrace_runtime.api.answer.message import Call, Text
from millrace_runtime.api.answer.writer import AnswerSpec, PartsWriter
from millrace_runtime.api.errors import ApiError
from millrace_runtime.api.usage import Usage
from millrace_runtime.chat.parsers.answer import CallDelta, Part
from millrace_runtime.protocol.messages import FINISH_LENGTH, FINISH_STOP

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_THINKING = "thinking"
_EMPTY_TEXT = {"type": "text", "text": ""}
_TOO_LONG = "context_length_exceeded"
_TOO_MUCH = re.compile(r"the prompt has (\d+) tokens and (\d+) more are asked for, .* limit is (\d+) in all")


class MessagesWriter(PartsWriter):
    """Writes one message."""

    id_prefix = "msg_"

    def __init__(self, spec: AnswerSpec) -> None:
        super().__init__(spec)
        self._block: str | None = None
        """The kind of the block that is open."""
        self._num_blocks = 0

    @property
    def opens_with_usage(self) -> bool:
        """Always: `message_start` has it."""
        return True

    def encode_opening(self, num_choices: int, usage: Usage) -> bytes:
        """Return the event that begins the message."""
        del num_choices
        message = self._fields([], usage) | {"stop_reason": None, "stop_sequence": None}
        return _event("message_start", message=message)

    def encode_end(self, usage: Usage) -> bytes:
        """Return the events that end the block and the message."""
        reason = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_string}
        delta = _event("message_delta", delta=reason, usage=_encode_usage(usage))
        empty = self._open_block("text", _EMPTY_TEXT) if self._is_silent else b""
        return empty + self._close_block() + delta + _event("message_stop")

    def encode_answer(self, usage: Usage) -> bytes:
        """Return the whole message."""
        message = self._message
        blocks = [self._encode_block(part) for part in message.parts]
        if self._is_silent:
            blocks.append(_EMPTY_TEXT)
        ending = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_string}
        return orjson.dumps(self._fields(blocks, usage) | ending)

    @staticmethod
    def encode_error(error: ApiError) -> bytes:
        """Return the error in the dialect's shape."""
        kind = _ERROR_TYPES.get(error.status, "api_error")
        return orjson.dumps({"type": "error", "error": {"type": kind, "message": _explain(error)}})

    @classmethod
    def encode_error_event(cls, error: ApiError) -> bytes:
        """Return the error as a stream's last event."""
        return b"event: error\ndata: " + cls.encode_error(error) + b"\n\n"

    @property
    def _is_silent(self) -> bool:
        """Whether the answer has neither a text nor a call. Clients look for one: it gets an empty text."""
        return not self._message.content and not self._message.calls

    @property
    def _stop_reason(self) -> str:
        if self._message.calls and self._finish == FINISH_STOP:
            return "tool_use"
        if self._stop_string is not None:
            return "stop_sequence"
        return "max_tokens" if self._finish == FINISH_LENGTH else "end_turn"

    def _encode_part(self, part: Part) -> bytes:
        if isinstance(part, CallDelta):
            block = _encode_call(self._message.call_of(part)) | {"input": {}}
            opening = self._open_block(f"call {part.index}", block)
            if not part.arguments:
                return opening
            return opening + self._grow_block({"type": "input_json_delta", "partial_json": part.arguments})
        if part.kind == "reasoning":
            opening = self._open_block(_THINKING, {"type": _THINKING, "thinking": "", "signature": ""})
            return opening + self._grow_block({"type": "thinking_delta", "thinking": part.text})
        opening = self._open_block("text", _EMPTY_TEXT)
        return opening + self._grow_block({"type": "text_delta", "text": part.text})

    def _encode_block(self, part: Text | Call) -> dict[str, Any]:
        """Return a whole block."""
        if isinstance(part, Call):
            return _encode_call(part) | {"input": _parse(part.json)}
        if part.kind == "reasoning":
            return {"type": _THINKING, "thinking": part.text, "signature": self._signature}
        return {"type": "text", "text": part.text}

    @property
    def _signature(self) -> str:
        """A placeholder. Clients send back only thoughts with a signature. This server checks none."""
        return self._envelope.request_id

    def _open_block(self, kind: str, block: dict[str, Any]) -> bytes:
        if self._block == kind:
            return b""
        closing = self._close_block()
        self._block = kind
        self._num_blocks += 1
        return closing + _event("content_block_start", index=self._num_blocks - 1, content_block=block)

    def _grow_block(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._num_blocks - 1, delta=delta)

    def _close_block(self) -> bytes:
        if self._block is None:
            return b""
        signing = b""
        if self._block == _THINKING:
            signing = self._grow_block({"type": "signature_delta", "signature": self._signature})
        self._block = None
        return signing + _event("content_block_stop", index=self._num_blocks - 1)

    def _fields(self, blocks: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        return {
            "id": self._envelope.request_id,
            "type": "message",
            "role": "assistant",
            "model": self._envelope.model,
            "content": blocks,
            "usage": _encode_usage(usage),
        }


def _explain(error: ApiError) -> str:
    """Return the message. Agents know by its first words, which are Anthropic's, what they must shorten."""
    if error.code != _TOO_LONG:
        return error.message
    found = _TOO_MUCH.search(error.message)
    if found is None:
        return f"prompt is too long: {error.message}"
    too_much = "{} + {} > {}".format(*found.groups())
    return f"input length and `max_tokens` exceed context limit: {too_much}: {error.message}"


def _encode_usage(usage: Usage) -> dict[str, int]:
    """Return Anthropic's usage: its three counts of input tokens are apart, and their sum is the prompt."""
    return {
        "input_tokens": usage.num_prompt_tokens - usage.num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.num_cached_tokens,
        "output_tokens": usage.num_completion_tokens,
    }


def _encode_call(call: Call) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.call_id, "name": call.name}


def _parse(text: str) -> Any:
    """Return the arguments as an object. A call that the answer's end cut short may be no JSON.

    They are written as the model has them: orjson would round a number of more than 64 bits.
    """
    try:
        orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return {"invalid_json": text}
    return orjson.Fragment(text or "{}")


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind} | fields))
