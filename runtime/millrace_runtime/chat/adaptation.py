"""Other forms of a conversation, for a chat template that refuses the first one or loses some of it. Pure.

A template refuses what its model never saw: Mistral's wants ids of nine letters, one system message, and the
user's and the assistant's messages in turns; Llama 3's wants one call in a message. Clients can't know, and a
conversation would end for ever by what the model itself has written, or another model before it.

A conversation that the assistant begins stays as it is: a user's message before it would be an invention.
"""

import base64
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import chain, product, takewhile
from typing import Any

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
"""What may be changed in who says what. Each goes further than the one before."""
_CALLS: Sequence[tuple[Rewrite, ...]] = ((), (shorten_ids,), (split_calls,), (shorten_ids, split_calls))
"""What may be changed in calls."""
_RESULTS: Sequence[tuple[Rewrite, ...]] = ((), (join_results,))
"""What may be changed behind results. It comes last: `split_calls` moves results."""
