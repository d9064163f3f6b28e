"""Adapts a conversation's messages to the chat template of the model. Pure.

A template refuses what its model never saw: Mistral's wants ids of nine letters, one system message, and the
user's and the assistant's messages in turns; Llama 3's wants one call in a message. Clients can't know that.
So a template that refuses a conversation, or loses a part of it, gets other forms of it. Otherwise one
message of the model itself, or of another model before it, could end a conversation for ever.

A conversation that the assistant begins stays as it is: a user's message before it would be an invention.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import chain, product, takewhile
from typing import Any

from millrace_runtime.chat.errors import BrokenTemplateError, TemplateError

Messages = Sequence[dict[str, Any]]
Rewrite = Callable[[Messages], Messages]
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""A message's reasoning, by the names that clients and templates use. The first is the usual one."""
_ID_LETTERS = 9
_ID_BYTES = 8


def list_forms(messages: Messages, *, may_join: bool) -> Iterator[Messages]:
    """Yield other forms of the messages, those with the fewest changes first: at most 11, or 15.

    With `may_join` a user's text may become a part of the result before it. That changes who says it, so it
    is only for messages of another dialect, where both are one message.
    """
    choices = product((_TURNS[0], _TURNS[-1]), _CALLS, _RESULTS) if may_join else product(_TURNS, _CALLS)
    known = [messages]
    for chosen in sorted((list(chain.from_iterable(choice)) for choice in choices), key=len):
        form = reduce(lambda before, rewrite: rewrite(before), chosen, messages)
        if form not in known:
            known.append(form)
            yield form


def lead_with_system(messages: Messages) -> Messages:
    """Return the messages with one of the system, the first. A later one is the user's, at its place.

    Those that lead the conversation are joined. `/v1/messages` and `/v1/responses` do the same to all.
    """
    leading = list(takewhile(_is_systems, messages))
    later = (
        message | {"role": "user"} if _is_systems(message) else message
        for message in messages[len(leading) :]
    )
    return [*([reduce(_join, leading)] if leading else []), *later]


def join_turns(messages: Messages) -> Messages:
    """Return the messages with neighbours of one role as one. Results of tools stay apart: each has an id."""
    joined: list[dict[str, Any]] = []
    for message in messages:
        if joined and message["role"] == joined[-1]["role"] != "tool":
            joined[-1] = _join(joined[-1], message)
        else:
            joined.append(message)
    return joined


def shorten_ids(messages: Messages) -> Messages:
    """Return the messages with an id of nine letters for each call and its result."""
    return [_shorten(message) for message in messages]


def split_calls(messages: Messages) -> Messages:
    """Return the messages with one call in each, and its results behind it."""
    split: list[dict[str, Any]] = []
    place = 0
    while place < len(messages):
        message, place = messages[place], place + 1
        calls = _read_calls(message)
        if len(calls) < 2:
            split.append(message)
            continue
        end = place
        while end < len(messages) and messages[end]["role"] == "tool":
            end += 1
        split += _give_results(message, calls, messages[place:end])
        place = end
    return split


def join_results(messages: Messages) -> Messages:
    """Return the messages with a user's text behind a tool's result as the end of this result."""
    joined: list[dict[str, Any]] = []
    for message in messages:
        if joined and joined[-1]["role"] == "tool" and message["role"] == "user":
            texts = (read_text(joined[-1].get("content")), read_text(message.get("content")))
            joined[-1] = {**joined[-1], "content": "\n".join(filter(None, texts))}
        else:
            joined.append(message)
    return joined


def move_system(messages: Messages) -> Messages:
    """Return the messages with the text of a leading system in the user's last one, before what that says."""
    users = [place for place, message in enumerate(messages) if message["role"] == "user"]
    if not users or messages[0]["role"] != "system":
        return messages
    last = users[-1]
    content = _join_contents(messages[0].get("content"), messages[last].get("content"))
    return [*messages[1:last], messages[last] | {"content": content}, *messages[last + 1 :]]


def read_text(content: str | Sequence[Mapping[str, Any]] | None) -> str:
    """Return a content's text, or that of its parts."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(str(part.get("text", part.get("thinking", ""))) for part in content)


def _is_systems(message: Mapping[str, Any]) -> bool:
    return message["role"] in ("system", "developer")


def _join(former: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    """Return two messages of one role as one. It keeps of other fields those in which both agree."""
    own = {name: value for name, value in former.items() if name in later and later[name] == value}
    own["role"] = former["role"]
    for name in REASONING_FIELDS:
        if texts := [message[name] for message in (former, later) if message.get(name)]:
            own[name] = "\n".join(map(str, texts))
    calls = [*_read_calls(former), *_read_calls(later)]
    own |= {"tool_calls": calls} if calls else {}
    return own | {"content": _join_contents(former.get("content"), later.get("content"))}


def _join_contents(former: Any, later: Any) -> Any:
    """Return both texts, an empty line between them as in Mistral's own library, or all their parts."""
    if isinstance(former, list) or isinstance(later, list):
        return [part for content in (former, later) for part in _list_parts(content)]
    return "\n\n".join(filter(None, (former, later)))


def _list_parts(content: Any) -> list[Any]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


def _give_results(message: dict[str, Any], calls: Sequence[Any], results: Messages) -> Messages:
    """Return a message for each call, the first one with all else, and behind it the results of its id.

    Where calls have no ids, or share one, results are in the order of the calls.
    """
    given: list[dict[str, Any]] = []
    left, has_ids = list(results), len({call.get("id") for call in calls} - {None}) == len(calls)
    for number, call in enumerate(calls):
        own = message if number == 0 else {"role": message["role"], "content": ""}
        given.append({**own, "tool_calls": [call]})
        is_last = number == len(calls) - 1
        own_id = call.get("id")
        mine = [each for each in left if each.get("tool_call_id") == own_id] if has_ids else left[:1]
        mine = left if is_last else mine
        given += mine
        left = [each for each in left if each not in mine]
    return given


def _shorten(message: dict[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    if calls := _read_calls(message):
        changed["tool_calls"] = [_shorten_field(call, "id") for call in calls]
    return _shorten_field(message | changed, "tool_call_id")


def _shorten_field(known: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a call or a message with nine letters and digits as its id; one that has nine keeps it."""
    call_id = known.get(name)
    if not isinstance(call_id, str) or len(call_id) == _ID_LETTERS:
        return known
    letters = base64.b32encode(hashlib.blake2b(call_id.encode(), digest_size=_ID_BYTES).digest()).decode()
    return known | {name: letters[:_ID_LETTERS]}


def _read_calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) and all(isinstance(call, dict) for call in calls) else []


_TURNS: Sequence[tuple[Rewrite, ...]] = ((), (lead_with_system,), (lead_with_system, join_turns))
"""Rewrites of who says what. Each goes further than the one before."""
_CALLS: Sequence[tuple[Rewrite, ...]] = ((), (shorten_ids,), (split_calls,), (shorten_ids, split_calls))
"""Rewrites of calls."""
_RESULTS: Sequence[tuple[Rewrite, ...]] = ((), (join_results,))
"""Rewrites behind results. They come last: `split_calls` moves results."""


_THOUGHT = "thinking"
"""The type of a message's part that is reasoning: clients of Mistral's models send such parts, and Mistral's
chat templates read them. Other templates know a message's reasoning by a field, or not at all."""


def has_thoughts(message: dict[str, Any]) -> bool:
    """Whether a message has parts that are reasoning."""
    content = message.get("content")
    return isinstance(content, list) and any(map(_is_thought, content))


def write_thoughts(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without such parts: the assistant's become its reasoning, and others' become text."""
    content: list[dict[str, Any]] = message["content"]
    if message["role"] != "assistant":
        return message | {"content": [_write_text(part) for part in content]}
    known = [message[name] for name in REASONING_FIELDS if name in message][:1]
    thoughts = [*map(str, known), *(part[_THOUGHT] for part in content if _is_thought(part))]
    others = [part for part in content if not _is_thought(part)]
    return message | {"content": others or "", REASONING_FIELDS[0]: "\n".join(thoughts)}


def _is_thought(part: dict[str, Any]) -> bool:
    return part.get("type") == _THOUGHT


def _write_text(part: dict[str, Any]) -> dict[str, Any]:
    return {"type": "text", "text": part[_THOUGHT]} if _is_thought(part) else part


Tools = list[dict[str, Any]]
WriteTools = Callable[[Tools], Any]
"""Takes a request's tools. Returns the value of the system message's field `tools`."""
Render = Callable[[Messages, Tools | None], str]
"""Returns a prompt of messages and tools. It raises TemplateError and BrokenTemplateError."""
_PROBE = "0d7f1c"
_ASKED = {"role": "user", "content": "?"}
_FUNCTION = {"name": _PROBE, "description": "", "parameters": {"type": "object", "properties": {}}}
_TOOLS = [{"type": "function", "function": _FUNCTION}]


def find_tools_field(render: Render, source: str) -> WriteTools | None:
    """Return how a template reads tools in the system's message; None where it does not, or need not.

    Some templates read tools only there. Phi 4 mini's joins them with text, so it wants JSON already written:
    the list of functions that its model card has. That of GLM 4 of 2024 walks through them.
    """
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
