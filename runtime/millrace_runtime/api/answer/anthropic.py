"""POST /v1/messages: Anthropic's messages of content blocks, whole or as its events."""

from typing import Any

import orjson

from millrace_runtime.api.answer.choice import Delta
from millrace_runtime.api.answer.envelope import Envelope
from millrace_runtime.api.answer.message import Call, Message, OpenMessage, order_parts
from millrace_runtime.api.answer.writer import Writer
from millrace_runtime.api.errors import ApiError
from millrace_runtime.api.generation import Usage
from millrace_runtime.chat.parsers.answer import AnswerDelta, CallDelta
from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.protocol.messages import FINISH_LENGTH, FINISH_STOP

_ERROR_TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class MessagesWriter(Writer):
    """Writes one message. The dialect knows one choice, and no log-probabilities."""

    id_prefix = "msg_"

    def __init__(
        self,
        envelope: Envelope,
        tokenizer: Tokenizer,
        *,
        has_logprobs: bool,
        open_message: OpenMessage | None,
    ) -> None:
        del tokenizer, has_logprobs
        self._envelope = envelope
        self._message = open_message() if open_message is not None else Message(None)
        self._finish: str | None = None
        self._stop_string: str | None = None
        self._block: str | None = None
        """The kind of the block that is open."""
        self._open_call: int | None = None
        """The latest call, which may go on."""
        self._num_blocks = 0

    def encode_opening(self, num_choices: int, usage: Usage) -> bytes:
        """Return the event that begins the message."""
        del num_choices
        message = self._fields([], usage) | {"stop_reason": None, "stop_sequence": None}
        return _event("message_start", message=message)

    def encode_delta(self, delta: Delta) -> bytes | None:
        """Return the events of a delta; None while it may be content or something else."""
        split = self._accept(delta)
        events = b"".join(self._encode_blocks(split))
        return events or None

    def encode_end(self, usage: Usage) -> bytes:
        """Return the events that end the block and the message."""
        reason = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_string}
        counts = {"input_tokens": usage.num_prompt_tokens, "output_tokens": usage.num_completion_tokens}
        return (
            self._close_block() + _event("message_delta", delta=reason, usage=counts) + _event("message_stop")
        )

    def add_delta(self, delta: Delta) -> int:
        """Collect a delta for a whole answer. Return how many bytes it takes."""
        self._accept(delta)
        return len(delta.text)

    def encode_answer(self, usage: Usage) -> bytes:
        """Return the whole message."""
        message = self._message
        blocks: list[dict[str, Any]] = []
        if message.reasoning:
            blocks.append({"type": "thinking", "thinking": message.reasoning, "signature": ""})
        if message.content or not message.calls:
            blocks.append({"type": "text", "text": message.content})
        blocks += [_encode_call(call) | {"input": _parse(call.json)} for call in message.calls]
        ending = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_string}
        return orjson.dumps(self._fields(blocks, usage) | ending)

    @staticmethod
    def encode_error(error: ApiError) -> bytes:
        """Return the error in the dialect's shape."""
        kind = _ERROR_TYPES.get(error.status, "api_error")
        return orjson.dumps({"type": "error", "error": {"type": kind, "message": error.message}})

    @classmethod
    def encode_error_event(cls, error: ApiError) -> bytes:
        """Return the error as a stream's last event."""
        return b"event: error\ndata: " + cls.encode_error(error) + b"\n\n"

    @property
    def _stop_reason(self) -> str:
        if self._message.calls and self._finish == FINISH_STOP:
            return "tool_use"
        if self._stop_string is not None:
            return "stop_sequence"
        return "max_tokens" if self._finish == FINISH_LENGTH else "end_turn"

    def _accept(self, delta: Delta) -> AnswerDelta:
        self._finish = delta.finish_reason
        self._stop_string = delta.stop_string
        return self._message.accept(delta)

    def _encode_blocks(self, split: AnswerDelta) -> list[bytes]:
        events: list[bytes] = []
        for part in order_parts(split, self._open_call):
            match part:
                case ("reasoning", str(text)):
                    block = {"type": "thinking", "thinking": "", "signature": ""}
                    events.append(self._open_block("thinking", block))
                    events.append(self._grow_block({"type": "thinking_delta", "thinking": text}))
                case ("content", str(text)):
                    events.append(self._open_block("text", {"type": "text", "text": ""}))
                    events.append(self._grow_block({"type": "text_delta", "text": text}))
                case CallDelta() as call:
                    block = _encode_call(self._message.call_of(call)) | {"input": {}}
                    events.append(self._open_block(f"call {call.index}", block))
                    self._open_call = call.index
                    if call.arguments:
                        delta = {"type": "input_json_delta", "partial_json": call.arguments}
                        events.append(self._grow_block(delta))
        return events

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
        self._block = None
        return _event("content_block_stop", index=self._num_blocks - 1)

    def _fields(self, blocks: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        return {
            "id": self._envelope.request_id,
            "type": "message",
            "role": "assistant",
            "model": self._envelope.model,
            "content": blocks,
            "usage": {"input_tokens": usage.num_prompt_tokens, "output_tokens": usage.num_completion_tokens},
        }


def _encode_call(call: Call) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.call_id, "name": call.name}


def _parse(text: str) -> Any:
    """Return the arguments as an object. A call that the answer's end cut short may be no JSON."""
    try:
        return orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return {"invalid_json": text}


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind} | fields))
