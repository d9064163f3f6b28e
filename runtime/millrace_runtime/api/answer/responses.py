"""POST /v1/responses: OpenAI's newer dialect of items, whole or as its events. Nothing is stored."""

from typing import Any

import orjson

from millrace_runtime.api.answer.message import Call
from millrace_runtime.api.answer.parts import PartsWriter
from millrace_runtime.api.answer.writer import AnswerSpec
from millrace_runtime.api.errors import ApiError
from millrace_runtime.api.usage import Usage
from millrace_runtime.chat.parsers.answer import CallDelta, Part
from millrace_runtime.protocol.messages import FINISH_LENGTH

_PARTS = {"reasoning": "reasoning_text", "message": "output_text"}
"""The kind of an item's part, which names its events too."""


class ResponsesWriter(PartsWriter):
    """Writes one response of several items: reasoning, a message, calls."""

    id_prefix = "resp_"

    def __init__(self, spec: AnswerSpec) -> None:
        super().__init__(spec)
        self._num_events = 0
        self._items: list[dict[str, Any]] = []
        """Those that are complete, and the one that is open."""
        self._open: tuple[str, int] | None = None
        """The kind and the number, among its kind, of the open item."""
        self._pieces: list[str] = []

    def encode_opening(self, num_choices: int, usage: Usage) -> bytes:
        """Return the events that begin the response."""
        del num_choices, usage
        response = self._fields("in_progress", None)
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def encode_end(self, usage: Usage) -> bytes:
        """Return the events that end the item and the response."""
        closing = self._close_item()
        status = self._status
        return closing + self._event(f"response.{status}", response=self._fields(status, usage))

    def encode_answer(self, usage: Usage) -> bytes:
        """Return the whole response."""
        self._close_item()
        return orjson.dumps(self._fields(self._status, usage))

    @classmethod
    def encode_error_event(cls, error: ApiError) -> bytes:
        """Return the error as a stream's last event."""
        fields = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        return b"event: error\ndata: " + orjson.dumps(fields | {"sequence_number": 0}) + b"\n\n"

    @property
    def _status(self) -> str:
        return "incomplete" if self._finish == FINISH_LENGTH else "completed"

    def _encode_part(self, part: Part) -> bytes:
        if isinstance(part, CallDelta):
            opening = self._open_item("function_call", part.index, self._message.call_of(part))
            if not part.arguments:
                return opening
            return opening + self._grow_item("response.function_call_arguments.delta", part.arguments)
        kind = "reasoning" if part.kind == "reasoning" else "message"
        return self._open_item(kind, 0) + self._grow_item(f"response.{_PARTS[kind]}.delta", part.text)

    def _open_item(self, kind: str, number: int, call: Call | None = None) -> bytes:
        if self._open == (kind, number):
            return b""
        closing = self._close_item()
        self._open, self._pieces = (kind, number), []
        self._items.append(_begin_item(kind, f"{self._envelope.request_id}_{len(self._items)}", call))
        added = self._event("response.output_item.added", item=self._items[-1])
        if kind in _PARTS:
            added += self._event("response.content_part.added", content_index=0, part=_part(kind, ""))
        return closing + added

    def _grow_item(self, event: str, text: str) -> bytes:
        self._pieces.append(text)
        place = {} if event.endswith("arguments.delta") else {"content_index": 0}
        logprobs: dict[str, Any] = {"logprobs": []} if "output_text" in event else {}
        return self._event(event, delta=text, **place, **logprobs)

    def _close_item(self) -> bytes:
        if self._open is None:
            return b""
        (kind, _), item, text = self._open, self._items[-1], "".join(self._pieces)
        self._open = None
        item["status"] = "completed"
        if kind not in _PARTS:
            item["arguments"] = text
            done = self._event("response.function_call_arguments.done", name=item["name"], arguments=text)
            return done + self._event("response.output_item.done", item=item)
        part = _part(kind, text)
        item["content"] = [part]
        logprobs: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        return (
            self._event(f"response.{_PARTS[kind]}.done", content_index=0, text=text, **logprobs)
            + self._event("response.content_part.done", content_index=0, part=part)
            + self._event("response.output_item.done", item=item)
        )

    def _event(self, kind: str, **fields: Any) -> bytes:
        if "response" not in fields:
            fields["output_index"] = len(self._items) - 1
            if "item" not in fields:
                fields["item_id"] = self._items[-1]["id"]
        body = {"type": kind, "sequence_number": self._num_events} | fields
        self._num_events += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(body))

    def _fields(self, status: str, usage: Usage | None) -> dict[str, Any]:
        tools = [
            {"type": "function", "strict": False} | tool["function"] for tool in self._envelope.tools or ()
        ]
        return {
            "id": self._envelope.request_id,
            "object": "response",
            "created_at": self._envelope.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self._envelope.model,
            "output": self._items if status != "in_progress" else [],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": tools,
            "store": False,
            "usage": None if usage is None else _encode_usage(usage, self._message.num_reasoning_tokens),
        }


def _begin_item(kind: str, item_id: str, call: Call | None) -> dict[str, Any]:
    item: dict[str, Any] = {"id": item_id, "type": kind, "status": "in_progress"}
    if call is not None:
        return item | {"call_id": call.call_id, "name": call.name, "arguments": ""}
    if kind == "reasoning":
        return item | {"summary": [], "content": []}
    return item | {"role": "assistant", "content": []}


def _part(kind: str, text: str) -> dict[str, Any]:
    part = {"type": _PARTS[kind], "text": text}
    return part | {"annotations": [], "logprobs": []} if kind == "message" else part


def _encode_usage(usage: Usage, num_reasoning_tokens: int) -> dict[str, Any]:
    prompt, completion = usage.num_prompt_tokens, usage.num_completion_tokens
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": usage.num_cached_tokens, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": num_reasoning_tokens},
        "total_tokens": prompt + completion,
    }
