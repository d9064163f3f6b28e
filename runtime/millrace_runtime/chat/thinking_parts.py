"""Parts of a message that are reasoning, as the clients of Mistral's models send them. Pure.

Their chat templates read such parts. Others know a message's reasoning by a field, or none at all.
"""

from typing import Any

from millrace_runtime.chat.adaptation import REASONING_FIELDS

_KIND = "thinking"


def has_thoughts(message: dict[str, Any]) -> bool:
    """Whether a message has such a part."""
    content = message.get("content")
    return isinstance(content, list) and any(map(_is_thought, content))


def write_thoughts(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without such parts: the assistant's are its reasoning, and others' are text."""
    content: list[dict[str, Any]] = message["content"]
    if message["role"] != "assistant":
        return message | {"content": [_write_text(part) for part in content]}
    known = [message[name] for name in REASONING_FIELDS if name in message][:1]
    thoughts = [*map(str, known), *(part[_KIND] for part in content if _is_thought(part))]
    others = [part for part in content if not _is_thought(part)]
    return message | {"content": others or "", REASONING_FIELDS[0]: "\n".join(thoughts)}


def _is_thought(part: dict[str, Any]) -> bool:
    return part.get("type") == _KIND


def _write_text(part: dict[str, Any]) -> dict[str, Any]:
    return {"type": "text", "text": part[_KIND]} if _is_thought(part) else part
