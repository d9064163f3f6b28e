"""Reads the few fields of a request's body that the gateway needs. Pure.

The JSON parser is the replicas' own: both refuse the same bodies, and of a repeated key the last value
counts. So the gateway writes another model once more, at the end, and leaves the client's bytes before it as
they are. When it decoded and encoded bodies, 7 MiB of keys held the event loop for a second, and took 141
MiB.

The gateway parses a body of up to 2 MiB whole. Messages take 1 ms of the event loop then, and repeated keys,
which take the longest, 15 to 20 ms (by hand). It parses no longer body whole, only what is around a `model`
near its beginning or its end: OpenAI's library writes it first, other clients behind the messages, and tools
may have properties of that name. An `n` elsewhere would take 128 places at the replicas for one, so it counts
as 128.
"""

import math
import re
from collections.abc import Iterator
from itertools import islice

import msgspec

from millrace_runtime.mended_json import BYTE_ORDER_MARK, MOST_HALVES, count_halves, mend_json

WHOLE_BYTES = 2 << 20
"""A longer body has more than half a million tokens of text. Few models take it."""
LONG_BYTES = 256 * 1024
"""The gateway mends a shorter body if replicas would mend it; of a longer one it looks for `model` in so many
bytes at the beginning, and at the end."""
_KEY, _SPACES = b'"model"', b" \t\r\n"
_VALUE = re.compile(rb'"model"(?<!\\"model")\s*+:\s*+"[^"\\]*+(?:\\.[^"\\]*+)*+"')
"""Behind a backslash it is the end of another key. Nothing is tried twice: a name may have 256 KiB."""
_MOST_KEYS, _MOST_TRIES = 64, 4
"""The most keys `model` that are looked at from the end, and the most places on each side that are parsed."""
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_MOST_PARTS, _MOST_PROMPTS = 1024, 128
"""The most parts of a list that the gateway parses, and the most prompts that a replica takes."""
_LARGEST_COUNT = 2**31
_LONGEST_COUNT = 32
"""Digits: of a longer number these are read."""


class MalformedBodyError(ValueError):
    """The body is no JSON object, or its `model` is no text."""


_UNREAD = msgspec.Raw()


class _Body(msgspec.Struct, frozen=True):
    """Fields of all dialects, unread: a value of another type is the replica's to refuse.

    8 MiB of numbers in one of them would hold the event loop for 0.6 s, and 200 MiB until the answer ends.
    """

    model: str | None = None
    stream: msgspec.Raw = _UNREAD
    max_tokens: msgspec.Raw = _UNREAD
    max_completion_tokens: msgspec.Raw = _UNREAD
    max_output_tokens: msgspec.Raw = _UNREAD
    n: msgspec.Raw = _UNREAD
    best_of: msgspec.Raw = _UNREAD
    prompt: msgspec.Raw = _UNREAD


class BodyFields(msgspec.Struct, frozen=True):
    """The fields that the gateway keeps. None refers to the body, which it forgets before the answer ends."""

    model: str | None
    is_stream: bool
    """Whether the client asks for server-sent events."""
    most_tokens: int | None
    """The most tokens that the client wants; None if it names no number."""
    num_choices: int
    """The number of answers that are drawn for the client: to each prompt of a list as many."""

    @property
    def num_sequences(self) -> int:
        """The number of answers, up to the most that a replica computes for one request."""
        return min(self.num_choices, _MOST_PROMPTS)


UNREADABLE = BodyFields(model=None, is_stream=False, most_tokens=None, num_choices=_MOST_PROMPTS)
"""The fields of a body that a replica may read and the gateway can't: it counts as the most sequences of a
request.

Its client gains nothing by that: the places of sequences that the replica does not compute are free after a
few reports. The gateway sends no comments while the request waits: if its answer is no stream, they would be
an error.
"""
_BODY = msgspec.json.Decoder(_Body)


def read_fields(body: bytes) -> BodyFields:
    """Return the fields of a body. Raises MalformedBodyError. A long body may be UNREADABLE."""
    body = body.removeprefix(BYTE_ORDER_MARK)
    if len(body) > WHOLE_BYTES:
        return _read_around(body) or UNREADABLE
    try:
        return _decode(body)
    except MalformedBodyError:
        if _can_mend(body):
            return _decode(mend_json(body))
        fields = _read_around(body) if len(body) > LONG_BYTES else None  # a replica may mend it
        if fields is None:
            raise
        return fields


def _read_around(body: bytes) -> BodyFields | None:
    """Return the fields around `model`, with the most sequences; None if it is not near begin or end."""
    fields = _read_end(body) or _read_start(body)
    return fields and msgspec.structs.replace(fields, num_choices=_MOST_PROMPTS)


def replace_model(body: bytes, model: str) -> bytes:
    """Return a body with another model. `read_fields` must have found one in it.

    Raises MalformedBodyError for a body that does not end as an object: `read_fields` reads a long one in
    parts.
    """
    end = body.rfind(b"}")
    if end < 0 or body[end + 1 :].strip(_SPACES):
        raise MalformedBodyError("it does not end with a brace")
    return b"".join((memoryview(body)[:end], b",", _KEY, b":", msgspec.json.encode(model), b"}"))


def _can_mend(body: bytes) -> bool:
    """Whether half a surrogate may be all that is wrong, and the loop has time to look for it."""
    return len(body) <= LONG_BYTES and 0 < count_halves(body) <= MOST_HALVES


def _decode(body: bytes) -> BodyFields:
    try:
        found = _BODY.decode(body)
        num_choices = _count_choices(found)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        is_json = isinstance(error, msgspec.ValidationError)
        raise MalformedBodyError("" if is_json else str(error)) from error
    return BodyFields(
        model=found.model,
        is_stream=found.stream is not _UNREAD and bytes(found.stream) == b"true",
        most_tokens=_read_bound(found),
        num_choices=num_choices,
    )


def _read_bound(found: _Body) -> int | None:
    for value in (found.max_completion_tokens, found.max_tokens, found.max_output_tokens):
        if value is not _UNREAD and (bound := _read_count(value)) is not None:
            return bound
    return None


def _count_choices(found: _Body) -> int:
    if found.n is found.best_of is found.prompt is _UNREAD:  # as in most requests
        return 1
    num_drawn = max(_read_count(value) or 1 for value in (found.n, found.best_of))
    return min(num_drawn * _count_prompts(found.prompt), _LARGEST_COUNT)


def _read_end(body: bytes) -> BodyFields | None:
    """Read the fields from the last key `model` on that is one of the outermost object and has a text.

    The text from there is an object's end only if the key is one of the outermost object: else a bracket
    would be left over.
    """
    for at in islice(_find_last(body), _MOST_TRIES):
        if (fields := _decode_part(b"{" + body[at:])) is not None:
            return fields
    return None


def _find_last(body: bytes) -> Iterator[int]:
    """Yield where a key `model` with a text begins, near the end, the last one first."""
    at, least = len(body), max(0, len(body) - LONG_BYTES)
    for _ in range(_MOST_KEYS):
        at = body.rfind(_KEY, least, at)
        if at < 0:
            return
        if _VALUE.match(body, at):
            yield at


def _read_start(body: bytes) -> BodyFields | None:
    """Read the fields up to a `model` of the outermost object near the beginning.

    If another one follows, a replica takes that one: it refuses the name, unless it is its own.
    """
    for found in islice(_VALUE.finditer(body, 0, LONG_BYTES), _MOST_TRIES):
        if (fields := _decode_part(body[: found.end()] + b"}")) is not None:
            return fields
    return None


def _decode_part(body: bytes) -> BodyFields | None:
    try:
        fields = _decode(body)
    except MalformedBodyError:
        return None
    return fields if fields.model is not None else None


def _count_prompts(prompt: msgspec.Raw) -> int:
    """Return the number of prompts: a list has texts or lists of token ids, or is one of token ids itself.

    A list of many parts is not parsed: 256 KiB of empty lists would hold the event loop for 14 ms. There the
    brackets of lists are counted, or the separators of texts, however they are spaced.
    """
    text = bytes(prompt).lstrip()
    first = text[1:].lstrip()[:1] if text[:1] == b"[" else b""
    if first not in (b'"', b"["):
        return 1
    if text.count(b",") <= _MOST_PARTS:
        return max(1, len(_LIST.decode(text)))
    num = text.count(b"[") - 1 if first == b"[" else 1 + text.translate(None, _SPACES).count(b'","')
    return min(num, _MOST_PROMPTS)


def _read_count(value: msgspec.Raw) -> int | None:
    """Return a number of things; None for a value that is none. Replicas read 512.0, too."""
    text = bytes(memoryview(value)[:_LONGEST_COUNT])
    if text.isdigit():
        return min(int(text), _LARGEST_COUNT)
    number = float(text) if text[:1].isdigit() and len(value) <= _LONGEST_COUNT else math.nan
    return min(int(number), _LARGEST_COUNT) if number.is_integer() else None
