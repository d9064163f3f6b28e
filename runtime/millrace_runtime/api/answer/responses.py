"""POST /v1/responses: OpenAI's newer dialect of items, whole or as its events. Nothing is stored."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from millrace_runtime.api.answer.custom_tool_input import FreeTextReader
from millrace_runtime.api.answer.message import Call
from millrace_runtime.api.answer.writer import AnswerSpec, PartsWriter
from millrace_runtime.api.errors import ApiError
from millrace_runtime.api.request.responses.tools import find_tool
from millrace_runtime.api.usage import Usage
from millrace_runtime.chat.parsers.answer import CallDelta, Part
from millrace_runtime.protocol.messages import FINISH_LENGTH

_PARTS = {"reasoning": "reasoning_text", "message": "output_text"}
"""The kind of an item's part, which names its events too."""
_OPENING = ("response.created", "response.in_progress")
"""A stream's first events."""


class ResponsesWriter(PartsWriter):
    """Writes one response of several items: reasoning, a message, calls."""

    id_prefix = "resp_"

    def __init__(self, spec: AnswerSpec) -> None:
        super().__init__(spec)
        self._num_events = len(_OPENING)
        """The opening's events count first, although the opening may be written after the first text."""
        self._is_opened = False
        self._items: list[dict[str, Any]] = []
        """The complete items, and the open one."""
        self._open: tuple[str, int] | None = None
        """The kind and the number, among its kind, of the open item."""
        self._pieces: list[str] = []
        self._free_text: FreeTextReader | None = None
        """Reads the open call's text, if its tool is a custom one."""

    def encode_opening(self, num_choices: int, usage: Usage) -> bytes:
        """Return the events that begin the response."""
        del num_choices, usage
        self._is_opened = True
        fields = {"response": self._fields("in_progress", None)}
        return b"".join(_write_event(kind, number, fields) for number, kind in enumerate(_OPENING))

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
        """Return the error as a stream's only event."""
        return _write_error(0, error)

    def encode_failure(self, error: ApiError) -> bytes:
        """Return the error as this stream's last event."""
        return _write_error(self._num_events if self._is_opened else 0, error)

    @property
    def _status(self) -> str:
        return "incomplete" if self._finish == FINISH_LENGTH else "completed"

    def _encode_part(self, part: Part) -> bytes:
        if not isinstance(part, CallDelta):
            kind = "reasoning" if part.kind == "reasoning" else "message"
            return self._open_item(kind, 0) + self._grow_text(kind, part.text)
        opening = self._open_item("call", part.index, self._message.call_of(part))
        return opening + self._grow_call(part.arguments) if part.arguments else opening

    def _open_item(self, kind: str, number: int, call: Call | None = None) -> bytes:
        if self._open == (kind, number):
            return b""
        closing = self._close_item()
        self._open, self._pieces = (kind, number), []
        item_id = f"{self._envelope.request_id}_{len(self._items)}"
        fields = _begin_text(kind) if call is None else _begin_call(call, self._envelope.tools or ())
        self._free_text = FreeTextReader() if fields["type"] == "custom_tool_call" else None
        self._items.append({"id": item_id} | fields)
        added = self._event("response.output_item.added", item=self._items[-1])
        if call is None:
            added += self._event("response.content_part.added", content_index=0, part=_part(kind, ""))
        return closing + added

    def _grow_text(self, kind: str, text: str) -> bytes:
        self._pieces.append(text)
        logprobs: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        return self._event(f"response.{_PARTS[kind]}.delta", delta=text, content_index=0, **logprobs)

    def _grow_call(self, arguments: str) -> bytes:
        if self._free_text is None:
            self._pieces.append(arguments)
            return self._event("response.function_call_arguments.delta", delta=arguments)
        return self._grow_free_text(self._free_text.feed(arguments))

    def _grow_free_text(self, text: str) -> bytes:
        return self._event("response.custom_tool_call_input.delta", delta=text) if text else b""

    def _close_item(self) -> bytes:
        if self._open is None:
            return b""
        (kind, _), item = self._open, self._items[-1]
        self._open = None
        if self._free_text is not None:
            done = self._close_free_text(item, self._free_text)
        elif kind in _PARTS:
            done = self._close_text(kind, item, "".join(self._pieces))
        else:
            item["status"], item["arguments"] = self._status, "".join(self._pieces)
            fields = {name: item[name] for name in ("name", "arguments")}
            done = self._event("response.function_call_arguments.done", **fields)
        return done + self._event("response.output_item.done", item=item)

    def _close_text(self, kind: str, item: dict[str, Any], text: str) -> bytes:
        part = _part(kind, text)
        item["status"], item["content"] = self._status, [part]
        logprobs: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        done = self._event(f"response.{_PARTS[kind]}.done", content_index=0, text=text, **logprobs)
        return done + self._event("response.content_part.done", content_index=0, part=part)

    def _close_free_text(self, item: dict[str, Any], reader: FreeTextReader) -> bytes:
        rest = self._grow_free_text(reader.finish())
        item["input"] = reader.text
        return rest + self._event("response.custom_tool_call_input.done", input=reader.text)

    def _event(self, kind: str, **fields: Any) -> bytes:
        if "response" not in fields:
            fields["output_index"] = len(self._items) - 1
            if "item" not in fields:
                fields["item_id"] = self._items[-1]["id"]
        self._num_events += 1
        return _write_event(kind, self._num_events - 1, fields)

    def _fields(self, status: str, usage: Usage | None) -> dict[str, Any]:
        return {
            "id": self._envelope.request_id,
            "object": "response",
            "created_at": self._envelope.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self._envelope.model,
            "output": self._items if status != "in_progress" else [],
            "temperature": self._envelope.temperature,
            "top_p": self._envelope.top_p,
            "store": False,
            **orjson.loads(self._envelope.echo),
            "usage": None if usage is None else _encode_usage(usage, self._message.num_reasoning_tokens),
        }


def _write_event(kind: str, number: int, fields: dict[str, Any]) -> bytes:
    body = {"type": kind, "sequence_number": number} | fields
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(body))


def _write_error(number: int, error: ApiError) -> bytes:
    return _write_event("error", number, {"code": error.code, "message": error.message, "param": error.param})


def _begin_text(kind: str) -> dict[str, Any]:
    item: dict[str, Any] = {"type": kind, "status": "in_progress", "content": []}
    more: dict[str, Any] = {"summary": []} if kind == "reasoning" else {"role": "assistant"}
    return item | more


def _begin_call(call: Call, tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a call as the client knows its tool."""
    tool = find_tool(tools, call.name) or {}
    declared = tool.get("declared", {"name": call.name})
    named = {"call_id": call.call_id, "name": declared["name"]}
    named |= {"namespace": tool["namespace"]} if "namespace" in tool else {}
    if declared.get("type") == "custom":
        return {"type": "custom_tool_call", **named, "input": ""}
    return {"type": "function_call", "status": "in_progress", **named, "arguments": ""}


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
