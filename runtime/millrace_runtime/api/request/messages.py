"""Reads a conversation's messages. The chat template gets each as the client sent it.

The reader checks only what a template can't be trusted with: the role, the kinds of parts, and the depth. The
arguments of a call are the model's own, so they may be as deep as a schema.
"""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from millrace_runtime.api.errors import BadRequestError

MAX_DEPTH = 16
"""Of objects and lists inside one another: a template that calls itself for each must end."""
MAX_SCHEMA_DEPTH = 64
"""Of a tool's JSON schema and of a call's arguments, which the template writes as they are."""
_MAX_CALLS_DEPTH = MAX_SCHEMA_DEPTH + 3
"""Arguments lie in a function, a call and the list of calls."""
_MAX_ROLE = 64
_TEXT_PARTS = ("text", "input_text", "output_text")
_OTHER_PARTS = (
    "image",
    "image_url",
    "input_image",
    "input_audio",
    "audio_url",
    "video_url",
    "file",
    "input_file",
)
"""Parts of messages that are no text, as clients of OpenAI and vLLM send them."""


def read_messages(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the messages as the chat template gets them. Raises BadRequestError naming the field."""
    return [_read_message(message, f"messages[{place}]") for place, message in enumerate(messages)]


def write_left_out(kind: str) -> str:
    """Return the text that replaces a part of a tool's result that is no text.

    A refusal would end the agent's conversation: the part is in every later request.
    """
    return f"[{kind} left out: this model reads text alone]"


def check_depth(value: Any, where: str, most: int = MAX_DEPTH) -> None:
    """Raise BadRequestError where objects and lists lie more than `most` levels deep."""
    level = [value]
    for _ in range(most + 1):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise BadRequestError(f"`{where}` goes more than {most} levels deep: make it flatter", param=where)


def _inside(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        return [item for item in value.values() if isinstance(item, (dict, list))]
    return [item for item in value if isinstance(item, (dict, list))] if isinstance(value, list) else ()


def _read_message(message: dict[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str) or not 0 < len(role) <= _MAX_ROLE:
        raise BadRequestError(
            f"`{where}.role` must be a text of 1 to {_MAX_ROLE} letters, such as `user`",
            param=f"{where}.role",
        )
    check_depth({name: value for name, value in message.items() if name != "tool_calls"}, where)
    check_depth(message.get("tool_calls"), f"{where}.tool_calls", _MAX_CALLS_DEPTH)
    read = dict(message)
    if "content" in message:
        content = _leave_out(message["content"]) if role == "tool" else message["content"]
        read["content"] = read_content(content, f"{where}.content")
    if calls := message.get("tool_calls"):
        read["tool_calls"] = _read_calls(calls, f"{where}.tool_calls")
    else:
        read.pop("tool_calls", None)  # templates take an empty list for calls
    if "tool_calls" not in read and read.get("content") is None:
        read["content"] = ""  # templates add it to other text
    return read


def read_content(content: Any, where: str) -> str | list[dict[str, Any]] | None:
    """Return a message's content. Raises BadRequestError for parts that are no text."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRequestError(f"`{where}` must be a text or a list of parts", param=where)
    return [_read_part(part, where) for part in content]


def _leave_out(content: Any) -> Any:
    """Return the content of a tool's result, with a text in place of each part that is none."""
    return [_write_part(part) for part in content] if isinstance(content, list) else content


def _write_part(part: Any) -> Any:
    match part:
        case {"type": str(kind)} if kind in _OTHER_PARTS:
            return {"type": "text", "text": write_left_out(kind.removeprefix("input_").removesuffix("_url"))}
    return part


def _read_part(part: Any, where: str) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return {"type": "text", "text": part["refusal"]}
    if kind == "thinking" and (thought := _read_thought(part.get("thinking"))) is not None:
        return {**part, "thinking": thought}
    if kind not in _TEXT_PARTS or not isinstance(part.get("text"), str):
        raise BadRequestError(
            f"only parts of type `text` and `thinking`, with a text in a field of this name, are supported: "
            f"this one is {kind!r}",
            param=where,
        )
    return {**part, "type": "text"}


def _read_thought(thought: Any) -> str | None:
    """Return the text of a part of reasoning, which may itself have parts; None if it has no text."""
    parts = thought if isinstance(thought, list) else [{"text": thought}]
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    return None if any(not isinstance(text, str) for text in texts) else "".join(map(str, texts))


def _read_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise BadRequestError(f"`{where}` must be a list of calls", param=where)
    return [_read_call(call, f"{where}[{place}]") for place, call in enumerate(calls)]


def _read_call(call: Any, where: str) -> dict[str, Any]:
    """Return a call with its arguments as an object, if they are one whose numbers have 64 bits.

    Broken arguments stay a text: the model may read what it wrote. A longer number can reach the text worker
    only as a text. Models often call a function without parameters without arguments. Raises BadRequestError.
    """
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRequestError(
            f"`{where}` must be a call such as "
            '{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}',
            param=where,
        )
    arguments = _read_arguments(function.get("arguments"))
    return {"type": "function", **call, "function": function | {"arguments": arguments}}


def _read_arguments(arguments: Any) -> Any:
    if arguments in (None, "", "null"):
        return {}
    if isinstance(arguments, str):
        try:
            found = msgspec.json.decode(arguments, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            return arguments
        check_depth(found, "tool_calls", MAX_SCHEMA_DEPTH)
        return arguments if _has_long_number(found) else found
    if isinstance(arguments, dict) and _has_long_number(arguments):
        return json.dumps(arguments, ensure_ascii=False)
    return arguments


def _has_long_number(arguments: dict[str, Any]) -> bool:
    """Whether a whole number has more than 64 bits."""
    try:
        msgspec.msgpack.encode(arguments)
    except OverflowError:
        return True
    return False


def rename_former_calls(messages: Sequence[Any]) -> list[Any]:
    """Return the messages with former calls and their results as `tool_calls` and results of role `tool`.

    A former call is a message's `function_call`, and its result has the role `function`. Clients have kept
    such conversations, but no chat template reads them. They have no ids: a result belongs to the call before
    it. Raises BadRequestError.
    """
    renamed: list[Any] = []
    call_id = ""
    for place, message in enumerate(messages):
        if _has_former_call(message):
            call_id = f"call{place:05d}"  # nine letters: Mistral's templates refuse others
            renamed.append(_rename_call(message, call_id, f"messages[{place}].function_call"))
        elif isinstance(message, dict) and message.get("role") == "function":
            renamed.append({**message, "role": "tool", "tool_call_id": call_id})
        else:
            renamed.append(message)
    return renamed


def _has_former_call(message: Any) -> bool:
    if not isinstance(message, dict) or message.get("tool_calls"):
        return False
    return message.get("function_call") is not None


def _rename_call(message: dict[str, Any], call_id: str, where: str) -> dict[str, Any]:
    function = message["function_call"]
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRequestError(f'`{where}` must look like {{"name": "f", "arguments": "{{}}"}}', param=where)
    others = {name: value for name, value in message.items() if name != "function_call"}
    return others | {"tool_calls": [{"id": call_id, "type": "function", "function": function}]}
