"""How a chat template reads the calls of an assistant's message, found by trying it. Pure.

Most templates write arguments as JSON themselves, so they want an object. DeepSeek's join them with other
text, so they want JSON already written. Those of its distilled models write calls only where `content` is
null; others join `content` with other text, so it must not be null. SmolLM3's shows tools, and no calls.
GLM 4's has each call as a message, whose `metadata` is the name.
"""

import json
from collections.abc import Callable, Mapping
from itertools import chain, product
from typing import Any, NamedTuple

from millrace_runtime.chat.adaptation import read_text
from millrace_runtime.chat.errors import BrokenTemplateError, TemplateError

_PROBE = "0d7f1c"
_AS_PYTHON = f"'{_PROBE}'"
"""The trace of a template that prints an object as Python does: it should have got JSON."""
_NULL: dict[str, Any] = {"content": None}
_CONTENTS: tuple[dict[str, Any], ...] = ({}, _NULL, {"content": ""})
"""The contents of a message of calls alone, in the order in which they are tried."""


class Marks(NamedTuple):
    """The marks around calls, for a template that teaches a model to write calls and writes none itself."""

    signs: tuple[str, ...]
    """Texts by which such a template is recognised, beside its tools."""
    begin: str = ""
    end: str = ""
    between: str = ""
    name_field: str = ""
    """The field with the name, where each call is a message of its own, with the arguments as its text."""
    result_role: str = "tool"
    """The role of a result."""

    def write(self, message: dict[str, Any], calls: list[Any]) -> list[dict[str, Any]]:
        """Return a message with its calls, as one or as several."""
        text = read_text(message.get("content"))
        if self.name_field:
            said = [message | {"content": text}] if text.strip() else []
            return [*said, *(self._write_turn(message["role"], call) for call in calls)]
        written = f"{self.begin}{self.between.join(map(_write_taught, calls))}{self.end}"
        return [message | {"content": f"{text}\n{written}" if text else written}]

    def _write_turn(self, role: str, call: Any) -> dict[str, Any]:
        function = _read_function(call)
        return {"role": role, self.name_field: function.get("name"), "content": _write_arguments(function)}


_TAUGHT = (
    Marks(
        ("<tool_call>", "</tool_call>"), "<tool_call>\n", "\n</tool_call>", "\n</tool_call>\n<tool_call>\n"
    ),
    Marks(("start_of_role", "<|tool_call|>"), "<|tool_call|>[", "]", ", "),
    Marks(("<|tool|>", "<|/tool|>"), "<|tool_call|>[", "]<|/tool_call|>", ", ", result_role="tool_response"),
    Marks(("[gMASK]", "metadata"), name_field="metadata", result_role="observation"),
)
"""Those of Hermes, which most templates teach, of Granite 3, Phi 4 mini and GLM 4."""


class CallForm(NamedTuple):
    """The form of a call that a template can read."""

    content: dict[str, Any]
    """The content of a message of calls without a text."""
    reads_objects: bool
    """Whether arguments may be an object."""
    reads_texts: bool
    """Whether arguments may be a text."""
    taught: "Marks | None" = None
    """The marks around a call, for a template that shows tools and no calls. Calls of earlier turns get them,
    as the template teaches the model."""

    @property
    def needs_null(self) -> bool:
        """Whether a message of calls must have no text, not even an empty one."""
        return self.content == _NULL

    def prepare(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """Return a message as the template reads it: of a text and calls it may be several."""
        if self.taught is not None and message["role"] == "tool":
            return [message | {"role": self.taught.result_role}]
        calls = message.get("tool_calls")
        if not isinstance(calls, list) or not calls:
            return [message]
        prepared = message | {"tool_calls": [self._prepare_call(call) for call in calls]}
        text = read_text(message.get("content"))
        if self.taught is not None:
            written = prepared.pop("tool_calls")
            return self.taught.write(prepared, written)
        if not self.needs_null:
            return [prepared if "content" in message else prepared | self.content]
        if not text.strip():
            return [prepared | self.content]
        said = {name: value for name, value in message.items() if name != "tool_calls"}
        return [said, {"role": message["role"], "tool_calls": prepared["tool_calls"], **self.content}]

    def _prepare_call(self, call: Any) -> Any:
        """Return a call with arguments that the template reads. A model may have written no JSON."""
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or "arguments" not in function:
            return call
        arguments = function["arguments"]
        if isinstance(arguments, str):
            parsed = _parse_object(arguments) if self.reads_objects else None
            if parsed is None and self.reads_texts:
                return call
            arguments = {"arguments": arguments} if parsed is None else parsed
        elif not self.reads_objects:
            arguments = json.dumps(arguments, ensure_ascii=False)
        return call | {"function": function | {"arguments": arguments}}


def find_call_form(render: Callable[[list[dict[str, Any]]], str], source: str) -> CallForm:
    """Return the first form in which a template writes a call.

    `render` returns a prompt of messages. It raises TemplateError and BrokenTemplateError.
    """
    prompts = {
        (place, is_object): _try(render, content, {_PROBE: _PROBE} if is_object else _PROBE)
        for (place, content), is_object in product(enumerate(_CONTENTS), (True, False))
    }
    writing = [form for form, prompt in prompts.items() if _PROBE in prompt]
    writing.sort(key=lambda form: _AS_PYTHON in prompts[form])
    # One that writes no calls may write a null: that comes last.
    rendering = [form for form, prompt in prompts.items() if prompt]
    rendering.sort(key=lambda form: _CONTENTS[form[0]] == _NULL)
    place, reads_objects = next(chain(writing, rendering), (0, True))
    is_mute = not writing and bool(rendering) and "tools" in source
    known = (marks for marks in _TAUGHT if all(sign in source for sign in marks.signs))
    reads_texts = prompts[place, False] != ""
    return CallForm(_CONTENTS[place], reads_objects, reads_texts, next(known, None) if is_mute else None)


def _write_taught(call: Any) -> str:
    """Return a call's JSON."""
    known = _read_function(call)
    written = {"name": known.get("name"), "arguments": known.get("arguments")}
    return json.dumps(written, ensure_ascii=False)


def _write_arguments(function: Mapping[str, Any]) -> str:
    """Return a function's arguments as JSON, which they may be already."""
    arguments = function.get("arguments", {})
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _read_function(call: Any) -> Mapping[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    return function if isinstance(function, dict) else {}


def _try(
    render: Callable[[list[dict[str, Any]]], str], content: dict[str, Any], arguments: dict[str, Any] | str
) -> str:
    """Return the prompt of a call; the probe where the template refuses it, and nothing where it fails."""
    function = {"name": "find", "arguments": arguments}
    call = {"id": _PROBE[:1] * 9, "type": "function", "function": function}
    asked, called = {"role": "user", "content": "?"}, {"role": "assistant", **content, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": call["id"], "name": "find", "content": "!"}
    try:
        return render([asked, called, result])
    except BrokenTemplateError:
        return ""
    except TemplateError:  # it may want other messages around it
        return _PROBE


def _parse_object(text: str) -> dict[str, Any] | None:
    """Return the object that a text is; None if it is none. Python's own reader keeps every digit."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
