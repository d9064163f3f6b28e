"""The items of a body of POST /v1/responses: they become the messages that chat templates know. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, takewhile
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn, TypeAlias

import msgspec

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.messages import MAX_SCHEMA_DEPTH, check_depth, read_content, write_left_out
from millrace_runtime.api.request.responses.tools import TEXT, join_name

Items: TypeAlias = Sequence[dict[str, Any]]
_TOOL_ITEMS = ("additional_tools", "tool_search_output")
"""Items that bring tools."""
_IGNORED = (
    *_TOOL_ITEMS,
    "code_interpreter_call",
    "file_search_call",
    "image_generation_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "tool_search_call",
    "web_search_call",
)
"""Items about the work of OpenAI's own servers. The message after such an item has the result."""
_OPENAIS_CALLS = {
    "apply_patch_call": ("apply_patch", "operation"),
    "local_shell_call": ("local_shell", "action"),
    "shell_call": ("shell", "action"),
}
"""Calls of tools that only OpenAI's models know: the tool's name, and the field with its arguments."""
_OF_CHATS = {
    "tool_calls": "send each call as an item of type `function_call`",
    "tool_call_id": "send a result as an item of type `function_call_output`",
}
"""Fields of a chat's messages, and what says the same here."""


class Output(NamedTuple):
    """The result of a call."""

    call_id: str
    output: Any


def list_messages(instructions: str | None, items: str | Items) -> list[dict[str, Any]]:
    """Return the conversation. An answer's reasoning, text and calls are items; they become one message.

    So do the system's leading messages, and neighbouring ones of one side: templates refuse two in a row.
    """
    messages: list[dict[str, Any]] = []
    for place, item in enumerate(_list_items(items)):
        check_depth(item, f"input[{place}]", MAX_SCHEMA_DEPTH)
        _add_item(messages, item, f"input[{place}]")
    for message in messages:
        if "reasoning_content" in message:
            message["reasoning_content"] = "\n".join(message["reasoning_content"])
    leading = list(takewhile(_is_systems, messages))
    first = [{"role": "system", "content": instructions}] if instructions else []
    messages = [*_join(first + leading, "system"), *_join_turns(messages[len(leading) :])]
    if not messages:
        raise BadRequestError("`input` has no message: send one", param="input")
    return messages


def list_tools(items: str | Items) -> list[Any]:
    """Return the tools that items bring."""
    tools: list[Any] = []
    for item in _list_items(items):
        if item.get("type") in _TOOL_ITEMS and isinstance(brought := item.get("tools"), list):
            tools += brought
    return tools


def _list_items(items: str | Items) -> Items:
    return [{"role": "user", "content": items}] if isinstance(items, str) else items


def _is_systems(message: Mapping[str, Any]) -> bool:
    return message["role"] in ("system", "developer")


def _join_turns(messages: Items) -> Iterator[dict[str, Any]]:
    """Yield the messages behind the leading system messages. A later system message becomes the user's.

    An agent sends one when its user changes what the agent may do. The message keeps its place, so that the
    prompts keep their common prefix.
    """
    own = [message | {"role": "user"} if _is_systems(message) else message for message in messages]
    for role, group in groupby(own, key=itemgetter("role")):
        turn = list(group)
        yield from _join(turn, role) if role == "user" else turn


def _join(messages: list[dict[str, Any]], role: str) -> list[dict[str, Any]]:
    """Return several messages as one; a single one as the client sent it."""
    if len(messages) < 2:
        return messages
    texts = (_read_text(message["content"], "input") for message in messages)
    return [{"role": role, "content": "\n\n".join(filter(None, texts))}]


def _add_item(messages: list[dict[str, Any]], item: dict[str, Any], where: str) -> None:
    """Add an item to the messages. Raises BadRequestError for one that is not supported."""
    _refuse_fields_of_chats(item, where)
    if (call := _read_call(item)) is not None:
        _open_answer(messages).setdefault("tool_calls", []).append(call)
        return
    if (found := _find_output(item)) is not None:
        text = _read_text(_leave_out(found.output), where)
        messages.append({"role": "tool", "tool_call_id": found.call_id, "content": text})
        return
    match item:
        case {"type": "reasoning"}:
            # an encrypted reasoning, which only OpenAI's servers can read, has no text
            if text := _read_text(item.get("content") or item.get("summary"), where):
                _open_answer(messages).setdefault("reasoning_content", []).append(text)
        case {"type": "agent_message", "content": list(parts)}:
            readable = [part for part in parts if isinstance(part, dict) and "text" in part]
            if text := _read_text(readable, where):
                messages.append({"role": "user", "content": text})
        case {"type": kind} if kind in _IGNORED:
            pass
        case {"role": "assistant", "content": content}:
            _add_answer(messages, _read_text(content, where))
        case {"role": str(role), "content": content} if item.get("type", "message") == "message":
            messages.append({"role": role, "content": read_content(content, f"{where}.content")})
        case _:
            _refuse_item(item.get("type"), where)


def _add_answer(messages: list[dict[str, Any]], text: str) -> None:
    answer = _open_answer(messages)
    answer["content"] = "\n".join(filter(None, (answer["content"], text)))


def _read_call(item: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a call as chat templates know it; None if the item is none."""
    match item:
        case {
            "type": "function_call",
            "call_id": str(call_id),
            "name": str(name),
            "arguments": str(arguments),
        }:
            name = join_name(item.get("namespace"), name)
        case {"type": "custom_tool_call", "call_id": str(call_id), "name": str(name), "input": str(text)}:
            name, arguments = join_name(item.get("namespace"), name), _encode({TEXT: text})
        case {"type": str(kind), "call_id": str(call_id)} if kind in _OPENAIS_CALLS:
            name, field = _OPENAIS_CALLS[kind]
            if not isinstance(item.get(field), dict):
                return None
            arguments = _encode(item[field])
        case _:
            return None
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _open_answer(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the assistant's message: the last one, or a new one after another role's."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _read_text(content: Any, where: str) -> str:
    """Return a text, or that of its parts."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise BadRequestError(f"`{where}` must be a text or a list of parts", param=where)
    texts = [part.get("text", part.get("refusal")) if isinstance(part, dict) else None for part in content]
    if not all(isinstance(text, str) for text in texts):
        raise BadRequestError(f"`{where}`: only parts with a `text` are supported", param=where)
    return "\n".join(text for text in texts if text)


def _find_output(item: Mapping[str, Any]) -> Output | None:
    """Return the result of a call; None if the item has none."""
    match item:
        case {
            "type": "function_call_output" | "custom_tool_call_output" | "shell_call_output",
            "call_id": str(call_id),
            "output": output,
        }:
            return Output(call_id, output)
        case {"type": "local_shell_call_output", "id": str(call_id), "output": output}:
            return Output(call_id, output)
        case {"type": "apply_patch_call_output", "call_id": str(call_id)}:
            return Output(call_id, item.get("output") or item.get("status"))
    return None


def _leave_out(output: Any) -> Any:
    """Return a tool's output, with a text in place of each part that is none."""
    return [_write_part(part) for part in output] if isinstance(output, list) else output


def _write_part(part: Any) -> Any:
    match part:
        case {"type": "input_image" | "input_file" as kind}:
            return {"text": write_left_out(kind.removeprefix("input_"))}
        case {"stdout": str(), "stderr": str()}:  # a command's
            return {"text": _encode(part)}
    return part


def _encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _refuse_item(kind: Any, where: str) -> NoReturn:
    if kind == "item_reference":
        raise BadRequestError(
            f"`{where}` refers to an item that is stored, and this server stores none: send the item itself. "
            "Clients do so with `store: false` (the AI SDK with `providerOptions.openai.store: false`)",
            param=where,
        )
    raise BadRequestError(
        f"`{where}` of type {str(kind)[:64]!r} is not supported: only messages, reasoning, calls of "
        "functions and custom tools, and their outputs",
        param=where,
    )


def _refuse_fields_of_chats(item: Mapping[str, Any], where: str) -> None:
    """Raise BadRequestError for a message in the shape of chats: its call or result would be lost."""
    for name, instead in _OF_CHATS.items():
        if "role" in item and item.get(name):
            raise BadRequestError(
                f"`{name}` is no field of a message in `input`: {instead}",
                param=f"{where}.{name}",
                code="unsupported_parameter",
            )
