"""Turns the conversation of Anthropic's dialect into the messages that chat templates know. Pure.

Neighbouring messages of one side are one turn, as at Anthropic's servers: many templates refuse two in a row.
System messages that lead the conversation belong to the system prompt. A later one joins the user's turn
beside it. Many templates know no other place for it, and agents send one more after each result: a system
prompt that grows with each request would share no prefix with the one before.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NoReturn

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.anthropic.tools import Described
from millrace_runtime.api.request.messages import (
    MAX_SCHEMA_DEPTH,
    check_depth,
    read_messages,
    write_left_out,
)

_Side = Literal["user", "assistant"]
_SIDES: Mapping[str, _Side] = {"user": "user", "ctx": "user", "msg": "user", "assistant": "assistant"}
"""The side of each role. By reports, agents send `ctx` and `msg`, and other servers take them so."""
_BILLING = re.compile(r"x-anthropic-billing-header:(?: ?\w{1,64}=[^;\s]{0,256};){1,16}\s*")
"""Claude Code writes this before a system prompt. It has a hash that differs in each request."""
_OF_SERVERS = re.compile(r"(server|mcp)_tool_use|\w+_tool_result")
"""Blocks about the work of Anthropic's own servers. The text after such a block has the result."""
_TEXT_ALONE = "this server reads text alone: send what it says as `text`"
_FIELDS: Mapping[str, str] = {
    "text": "a text `text`",
    "thinking": "a text `thinking`",
    "tool_use": "`id`, `name` and an object `input`",
    "tool_result": "`tool_use_id`",
    "tool_reference": "`tool_name`",
    "search_result": "a list `content` of texts",
}
"""The fields of each supported block."""


class Conversation(NamedTuple):
    """The messages for a chat template."""

    messages: list[dict[str, Any]]
    is_continued: bool
    """Whether the model goes on with the last message, which is its own."""


@dataclass
class _Turn:
    """All that one side says before the other side's turn."""

    side: _Side
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    has_own_text: bool = False
    """Whether the side has said a text itself; other texts are the system's."""

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing."""
        return not (self.texts or self.thoughts or self.calls or self.results)

    @property
    def can_go_on(self) -> bool:
        """Whether the answer may continue it. With calls it can't: templates write them behind the text."""
        return self.side == "assistant" and bool(self.texts) and not self.calls

    def add(self, block: Any, deferred: dict[str, Described], where: str) -> None:
        """Add a block of a message. Raises BadRequestError for one that is not supported.

        A tool that the block refers to is no longer deferred.
        """
        match block:
            case {"type": "text", "text": str(text)}:
                if text:
                    self.texts.append(text)
                    self.has_own_text = True
            case {"type": "document" | "search_result"} if (read := read_document(block)) is not None:
                self.texts += [read] if read else []
                self.has_own_text = True
            case {"type": "thinking", "thinking": str(text)}:
                self.thoughts += [text] if text else []
            case {"type": "redacted_thinking"}:
                pass
            case {"type": str(kind)} if _OF_SERVERS.fullmatch(kind):
                pass
            case {"type": "tool_use", "id": str(call_id), "name": str(name), "input": dict(arguments)}:
                check_depth(arguments, where, MAX_SCHEMA_DEPTH)
                function = {"name": name, "arguments": arguments}
                self.calls.append({"id": call_id, "type": "function", "function": function})
            case {"type": "tool_result", "tool_use_id": str(call_id)}:
                text = "\n".join(_read_result(block.get("content") or "", deferred, where))
                if not text and block.get("is_error") is True:
                    text = "error"  # else the model would see a success
                self.results.append({"role": "tool", "tool_call_id": call_id, "content": text})
            case _:
                _refuse_block(block, ("text", "thinking", "tool_use", "tool_result", "search_result"), where)

    def list_messages(self) -> list[dict[str, Any]]:
        """Return the turn's messages: a tool's result is one of its own.

        Behind results the system's text is no message of the user's: many templates would take it for a new
        question, and drop the reasoning before it.
        """
        text = "\n".join(self.texts)
        if self.results and not (self.has_own_text or self.calls or self.thoughts):
            *others, last = self.results
            return [*others, last | {"content": "\n".join(filter(None, (last["content"], text)))}]
        own: dict[str, Any] = {"role": self.side, "content": text}
        own |= {"tool_calls": self.calls} if self.calls else {}
        own |= {"reasoning_content": "\n".join(self.thoughts)} if self.thoughts else {}
        return [*self.results, own]


def read_conversation(
    system: str | Sequence[Any] | None,
    messages: Sequence[Mapping[str, Any]],
    deferred: Mapping[str, Described],
) -> Conversation:
    """Return the conversation; `deferred` has tools by their names. Raises BadRequestError."""
    leading = list(_read_system("" if system is None else system, "system"))
    turns: list[_Turn] = []
    waiting = dict(deferred)
    for place, message in enumerate(messages):
        role, content, where = message.get("role"), message.get("content"), f"messages[{place}].content"
        if role == "system":
            texts = list(_read_system(content, where))
            if not turns:
                leading += texts
            elif texts:
                _open_turn(turns, "user").texts += texts
            continue
        if not isinstance(role, str) or (side := _SIDES.get(role)) is None:
            param = f"messages[{place}].role"
            raise BadRequestError(f"`{param}` must be `user`, `assistant` or `system`", param=param)
        turn = _open_turn(turns, side)
        for block in _list_blocks(content, where):
            turn.add(block, waiting, where)
    return _join_turns(leading, turns)


def _open_turn(turns: list[_Turn], side: _Side) -> _Turn:
    """Return the side's turn: the last one, or a new one after the other side's."""
    if not turns or turns[-1].side != side:
        turns.append(_Turn(side))
    return turns[-1]


def _join_turns(leading: Sequence[str], turns: list[_Turn]) -> Conversation:
    if not turns:
        raise BadRequestError("`messages` needs a message of role `user`", param="messages")
    *before, last = turns
    if before and last.side == "assistant" and last.is_empty:  # the client begins the answer with nothing
        turns = before
    system = [{"role": "system", "content": "\n".join(leading)}] if leading else []
    own = [message for turn in turns for message in turn.list_messages()]
    return Conversation(read_messages([*system, *own]), is_continued=turns[-1].can_go_on)


def _read_system(content: Any, where: str) -> Iterator[str]:
    """Yield the texts of a system prompt or message."""
    for block in _list_blocks(content, where):
        match block:
            case {"type": "text", "text": str(text)}:
                begin = found.end() if (found := _BILLING.match(text)) else 0
                if text[begin:]:
                    yield text[begin:]
            case _:
                _refuse_block(block, ("text",), where)


def _read_result(content: Any, deferred: dict[str, Described], where: str) -> Iterator[str]:
    """Yield the texts of a tool's result. The first reference to a deferred tool becomes its description."""
    for block in _list_blocks(content, where):
        match block:
            case {"type": "text", "text": str(text)}:
                yield text
            case {"type": "document" | "search_result"} if (read := read_document(block)) is not None:
                yield read
            case {"type": "image" | "document" as kind}:
                yield write_left_out(kind)
            case {"type": "tool_reference", "tool_name": str(name)}:
                yield json.dumps(deferred.pop(name), ensure_ascii=False) if name in deferred else name
            case _:
                _refuse_block(block, ("text", "tool_reference", "search_result"), where)


def _list_blocks(content: Any, where: str) -> list[Any]:
    """Return the blocks of a content. A text is one."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise BadRequestError(f"`{where}` must be a text or a list of blocks", param=where)
    return content


def _refuse_block(block: Any, supported: Sequence[str], where: str) -> NoReturn:
    kind = block.get("type") if isinstance(block, dict) else type(block).__name__
    if isinstance(kind, str) and kind in supported:
        raise BadRequestError(f"`{where}`: a block of type `{kind}` needs {_FIELDS[kind]}", param=where)
    known = ", ".join(supported)
    hint = f": {_TEXT_ALONE}" if kind in ("image", "document") else f", only {known}"
    raise BadRequestError(f"`{where}`: a block of type {kind!r} is not supported here{hint}", param=where)


def read_document(block: Any) -> str | None:
    """Return the text of a document or a search result, below its title and source; None without text."""
    match block:
        case {"type": "document", "source": {"type": "text", "data": str(text)}}:
            texts = [text]
        case {"type": "document", "source": {"type": "content", "content": str() | list() as content}}:
            texts = list(_list_texts(content))
        case {"type": "search_result", "content": list(content)}:
            texts = list(_list_texts(content))
        case _:
            return None
    return "\n".join([*_list_names(block), *filter(None, texts)])


def _list_names(block: Mapping[str, Any]) -> Iterator[str]:
    """Yield a block's title, a document's context, and a result's source."""
    for name in ("title", "context", "source"):
        if isinstance(value := block.get(name), str) and value:
            yield value


def _list_texts(content: str | list[Any]) -> Iterator[str]:
    if isinstance(content, str):
        yield content
        return
    for block in content:
        match block:
            case {"type": "text", "text": str(text)}:
                yield text
            case {"type": str(kind)}:
                yield write_left_out(kind[:64])
