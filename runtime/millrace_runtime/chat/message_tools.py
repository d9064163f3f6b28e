"""Tools as a field of the system's message, for a template that reads them there alone. Pure.

Phi 4 mini's joins them with text, so it wants JSON already written: the list of functions that its model card
has. That of GLM 4 of 2024 walks through them.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from millrace_runtime.chat.errors import BrokenTemplateError, TemplateError

Messages = Sequence[dict[str, Any]]
Tools = list[dict[str, Any]]
WriteTools = Callable[[Tools], Any]
"""Returns the field's value."""
Render = Callable[[Messages, Tools | None], str]
"""Returns a prompt of messages and tools. It raises TemplateError and BrokenTemplateError."""
_PROBE = "0d7f1c"
_ASKED = {"role": "user", "content": "?"}
_FUNCTION = {"name": _PROBE, "description": "", "parameters": {"type": "object", "properties": {}}}
_TOOLS = [{"type": "function", "function": _FUNCTION}]


def find_tools_field(render: Render, source: str) -> WriteTools | None:
    """Return how a template reads tools in a system's message; None where it does not, or need not."""
    if "tools" not in source or _shows(render, [_ASKED], _TOOLS):
        return None
    known: tuple[WriteTools, ...] = (list, _write_functions)
    return next((write for write in known if _shows(render, put_tools([_ASKED], _TOOLS, write), None)), None)


def put_tools(messages: Messages, tools: Tools, write: WriteTools) -> Messages:
    """Return the messages with the tools in the system's, which may be a new one without a text."""
    if messages and messages[0]["role"] == "system":
        return [messages[0] | {"tools": write(tools)}, *messages[1:]]
    return [{"role": "system", "content": "", "tools": write(tools)}, *messages]


def _write_functions(tools: Tools) -> str:
    return json.dumps([tool.get("function", tool) for tool in tools], ensure_ascii=False)


def _shows(render: Render, messages: Messages, tools: Tools | None) -> bool:
    """Whether a prompt has the tools. One that refuses the messages has its reasons: it may show them."""
    try:
        return _PROBE in render(messages, tools)
    except BrokenTemplateError:
        return False
    except TemplateError:
        return True
