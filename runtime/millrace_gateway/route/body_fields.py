"""Reads the few fields of a request's body that the gateway needs. Pure.

The JSON parser is the replicas' own: both refuse the same bodies, and of a repeated key the last value
counts. Values are not decoded and encoded again, so each is forwarded unchanged.

A body of up to 2 MiB is parsed whole. 8 MiB of messages would hold the event loop for 4 ms, of token ids for
9, of empty prompts for 26 (by hand). Of a longer one the gateway parses what is around `model`: clients write
it first, or behind the messages. An `n` elsewhere would take 128 places at the replicas for one, so it counts
as 128. A body above 256 KiB is not written again whole with another model: it is replaced there.
"""

import math
import re

import msgspec

from millrace_runtime.mended_json import BYTE_ORDER_MARK, MOST_HALVES, count_halves, mend_json

WHOLE_BYTES = 2 << 20
"""A longer body has more than half a million tokens of text. Few models take it."""
LONG_BYTES = 256 * 1024
"""A shorter body is written again whole, and mended: at most 0.4 ms."""
_HEAD_BYTES = 4096
_KEY = b'"model"'
_VALUE = re.compile(rb'"model"\s*:\s*"(?:[^"\\]|\\.)*"')
_RAW = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_MOST_PARTS, _MOST_PROMPTS = 1024, 128
"""Of a list that is parsed; and that a replica takes."""
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
    """What the gateway keeps. None refers to the body, which is forgotten before the answer ends."""

    model: str | None
    is_stream: bool
    """Whether the client asks for server-sent events."""
    most_tokens: int | None
    """The most tokens that the client wants; None if it names no number."""
    num_choices: int
    """The number of answers that are drawn for the client: to each prompt of a list as many."""

    @property
    def num_sequences(self) -> int:
        """The same, as far as a replica would compute it."""
        return min(self.num_choices, _MOST_PROMPTS)


UNREADABLE = BodyFields(model=None, is_stream=False, most_tokens=None, num_choices=_MOST_PROMPTS)
"""Of a body that the gateway can't read, and a replica may: it has as many sequences as a request can have.

Its client gains nothing that `n` would not give it: what is not computed is free again after a few reports
of the replica. It gets no comments while it waits: in an answer that is no stream, they would be an error.
"""
_BODY = msgspec.json.Decoder(_Body)


def read_fields(body: bytes) -> BodyFields:
    """Return the fields of a body. Raises MalformedBodyError."""
    body = body.removeprefix(BYTE_ORDER_MARK)
    if len(body) > WHOLE_BYTES and (fields := _read_around(body)) is not None:
        return fields
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
    """Return the fields around `model`, with the most sequences; None if only a parser finds the model."""
    if _find_model(body) is None:
        return None
    fields = _read_end(body) or _read_start(body)
    return fields and msgspec.structs.replace(fields, num_choices=_MOST_PROMPTS)


def replace_model(body: bytes, model: str) -> bytes:
    """Return a body with another model. `read_fields` must have accepted the body."""
    body = body.removeprefix(BYTE_ORDER_MARK)
    found = _find_model(body) if len(body) > LONG_BYTES else None
    if found is None:
        return msgspec.json.encode({**_decode_raw(body), "model": model})
    parts = memoryview(body)
    return b"".join((parts[: found.start()], _KEY, b":", msgspec.json.encode(model), parts[found.end() :]))


def _can_mend(body: bytes) -> bool:
    """Whether half a surrogate may be all that is wrong, and the loop has time to look for it."""
    return len(body) <= LONG_BYTES and 0 < count_halves(body) <= MOST_HALVES


def _decode_raw(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _RAW.decode(body)
    except msgspec.DecodeError:
        if not _can_mend(body):
            raise
        return _RAW.decode(mend_json(body))


def _find_model(body: bytes) -> re.Match[bytes] | None:
    """Return the key and the value of the outermost object of a long body; None if only a parser finds it."""
    fields = _read_end(body)
    if fields is None:
        found = _find_start(body) if _read_start(body) else None
        return found if found and body.find(_KEY, found.end()) < 0 else None  # the last of several counts
    found = _VALUE.match(body, body.rfind(_KEY))
    is_read = found is not None and _decode(b"{%b}" % found.group()).model == fields.model
    return found if is_read else None  # else the key is written once more, with an escape


def _decode(body: bytes) -> BodyFields:
    try:
        found = _BODY.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        is_json = isinstance(error, msgspec.ValidationError)
        raise MalformedBodyError("" if is_json else str(error)) from error
    return BodyFields(
        model=found.model,
        is_stream=found.stream is not _UNREAD and bytes(found.stream) == b"true",
        most_tokens=_read_bound(found),
        num_choices=_count_choices(found),
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
    """Read the fields from the last key `model` on.

    The text from there is an object's end only if the key is one of the outermost object: else a bracket
    would be left over.
    """
    at = body.rfind(_KEY)
    return None if at < 0 or len(body) - at > LONG_BYTES else _decode_part(b"{" + body[at:])


def _read_start(body: bytes) -> BodyFields | None:
    """Read the fields up to the first `model`."""
    found = _find_start(body)
    return None if found is None else _decode_part(body[: found.end()] + b"}")


def _find_start(body: bytes) -> re.Match[bytes] | None:
    return _VALUE.search(body, 0, _HEAD_BYTES)


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
    num = text.count(b"[") - 1 if first == b"[" else 1 + text.translate(None, b" \t\r\n").count(b'","')
    return min(num, _MOST_PROMPTS)


def _read_count(value: msgspec.Raw) -> int | None:
    """Return a number of things; None for a value that is none. Replicas read 512.0, too."""
    text = bytes(memoryview(value)[:_LONGEST_COUNT])
    if text.isdigit():
        return min(int(text), _LARGEST_COUNT)
    number = float(text) if text[:1].isdigit() and len(value) <= _LONGEST_COUNT else math.nan
    return min(int(number), _LARGEST_COUNT) if number.is_integer() else None
