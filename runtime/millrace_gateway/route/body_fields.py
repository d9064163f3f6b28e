"""Reads the few fields of a request's body that the gateway needs. Pure.

The JSON parser is the replicas' own: both refuse the same bodies, and of a repeated key the last value
counts. Values are not decoded and encoded again, so each is forwarded unchanged.

A long body is not parsed whole, nor written anew with another model: 8 MiB of token ids would hold the event
loop for 12 ms. Clients write `model` first, or behind the messages. So the gateway parses what is before or
behind it, and the replica refuses what is no JSON, or names another model elsewhere.
"""

import re
from typing import Any

import msgspec

LONG_BYTES = 256 * 1024
"""A shorter body is parsed whole: at most 0.4 ms."""
_HEAD_BYTES = 4096
_KEY = b'"model"'
_VALUE = re.compile(rb'"model"\s*:\s*"(?:[^"\\]|\\.)*"')
_RAW = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_SEPARATORS = (b'","', b"],[")
_MOST_PARTS, _MOST_PROMPTS = 1024, 128
"""Of a list that is parsed; and that a replica takes."""
_LARGEST_COUNT = 2**31


class MalformedBodyError(ValueError):
    """The body is no JSON object, or its `model` is no text."""


class _Fields(msgspec.Struct, frozen=True):
    """Fields of all dialects, as they are written: a value of another type is the replica's to refuse."""

    model: str
    stream: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    n: Any = None


class _Body(_Fields, frozen=True):
    """A body with its prompts, unread."""

    prompt: msgspec.Raw = msgspec.Raw()


class BodyFields(_Fields, frozen=True):
    """What the gateway keeps. None refers to the body, which is forgotten before the answer ends."""

    num_prompts: int = 1
    """Of /v1/completions: a list may have many."""

    @property
    def is_stream(self) -> bool:
        """Whether the client asks for server-sent events."""
        return self.stream is True

    @property
    def most_tokens(self) -> int | None:
        """The most tokens that the client wants; None if it names no number."""
        for value in (self.max_completion_tokens, self.max_tokens, self.max_output_tokens):
            if _is_count(value):
                return min(int(value), _LARGEST_COUNT)
        return None

    @property
    def num_choices(self) -> int:
        """The number of answers that the client wants: to each prompt of a list as many."""
        each = int(self.n) if _is_count(self.n) and self.n else 1
        return min(each * self.num_prompts, _LARGEST_COUNT)

    @property
    def num_sequences(self) -> int:
        """The same, as far as a replica would compute it."""
        return min(self.num_choices, _MOST_PROMPTS)


_BODY = msgspec.json.Decoder(_Body)


def read_fields(body: bytes) -> BodyFields:
    """Return the fields of a body. Raises MalformedBodyError."""
    found = _read_end(body) or _read_start(body) if len(body) > LONG_BYTES else None
    return found or _decode(body)


def replace_model(body: bytes, model: str) -> bytes:
    """Return a body with another model. `read_fields` must have accepted the body."""
    found = _find_model(body) if len(body) > LONG_BYTES else None
    if found is None:
        return msgspec.json.encode({**_RAW.decode(body), "model": model})
    parts = memoryview(body)
    return b"".join((parts[: found.start()], _KEY, b":", msgspec.json.encode(model), parts[found.end() :]))


def _find_model(body: bytes) -> re.Match[bytes] | None:
    """Return the key and the value that `read_fields` has read in a long body; None if it read all of it."""
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
        stream=found.stream,
        max_tokens=found.max_tokens,
        max_completion_tokens=found.max_completion_tokens,
        max_output_tokens=found.max_output_tokens,
        n=found.n,
        num_prompts=_count_prompts(found.prompt),
    )


def _read_end(body: bytes) -> BodyFields | None:
    """Read the fields from the last `model` on.

    The text from there is an object's end only if the key is one of the outermost object: else a bracket
    would be left over.
    """
    at = body.rfind(_KEY)
    if at < 0 or len(body) - at > LONG_BYTES:
        return None
    try:
        return _decode(b"{" + body[at:])
    except MalformedBodyError:
        return None


def _read_start(body: bytes) -> BodyFields | None:
    """Read the fields up to the first `model`."""
    found = _find_start(body)
    if found is None:
        return None
    try:
        return _decode(body[: found.end()] + b"}")
    except MalformedBodyError:
        return None


def _find_start(body: bytes) -> re.Match[bytes] | None:
    return _VALUE.search(body, 0, _HEAD_BYTES)


def _count_prompts(prompt: msgspec.Raw) -> int:
    """Return the number of prompts: a list has texts or lists of token ids, or is one of token ids itself.

    A list of many parts is not parsed: 256 KiB of empty lists would hold the event loop for 14 ms. There the
    separators are counted, however they are spaced.
    """
    text = bytes(prompt).lstrip()
    if text[:1] != b"[" or text[1:].lstrip()[:1] not in (b'"', b"["):
        return 1
    if text.count(b",") <= _MOST_PARTS:
        return max(1, len(_LIST.decode(text)))
    dense = text.translate(None, b" \t\r\n")
    return min(1 + sum(map(dense.count, _SEPARATORS)), _MOST_PROMPTS)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
