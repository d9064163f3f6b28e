"""Reads and replaces `model` in the JSON body of a request. Pure.

The parser is the replicas' own: what it refuses they refuse, and of a key that comes twice the last value
counts. Values are neither decoded nor written again, so each arrives as it was sent.
"""

import msgspec

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class MalformedBodyError(ValueError):
    """The body is no JSON object, or its `model` is no text."""


def read_model(body: bytes) -> str:
    """Return the model that a body names. Raises MalformedBodyError."""
    try:
        return msgspec.json.decode(_FIELDS.decode(body)["model"], type=str)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError) as error:
        is_json = isinstance(error, (msgspec.ValidationError, KeyError))
        raise MalformedBodyError("" if is_json else str(error)) from error


def replace_model(body: bytes, model: str) -> bytes:
    """Return a body that `read_model` could read with another model."""
    return msgspec.json.encode({**_FIELDS.decode(body), "model": model})
