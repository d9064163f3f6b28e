"""Decodes a body by its dialect's fields. What msgspec refuses becomes a refusal that names the field."""

import re
from typing import TypeVar

import msgspec

from millrace_runtime.api.errors import BadRequestError

Body = TypeVar("Body", bound=msgspec.Struct)
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
"""msgspec's message."""
_MAX_NAME = 64
_TOO_MANY = {
    "n": "send the request several times, without a `seed` or with one for each",
    "best_of": "send the request several times",
    "stop": "send fewer, or close the stream at the others",
}
"""What a client does that meets a limit of a number or of a list."""


def decode_body(data: bytes | bytearray, body_type: type[Body]) -> Body:
    """Return the request body as `body_type`. Raises BadRequestError naming the field."""
    try:
        return msgspec.json.decode(data, type=body_type)
    except msgspec.ValidationError as error:
        raise refuse_invalid(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(f"the body is not JSON that can be read: {error}") from error


def refuse_invalid(text: str) -> BadRequestError:
    """Return the refusal for msgspec's message, with the field as `param`."""
    message, _, path = text.partition(" - at `$")
    path = path.rstrip("`").removeprefix(".")
    if unknown := _UNKNOWN_FIELD.fullmatch(message):
        name = unknown[1][:_MAX_NAME]
        return BadRequestError(
            f"`{name}` is not known to this server: leave it out",
            param=f"{path}.{name}" if path else name,
            code="unknown_parameter",
        )
    hint = f": {_TOO_MANY[path]}" if path in _TOO_MANY and "<= " in message else ""
    return BadRequestError(f"{message} - in `{path}`{hint}" if path else message, param=path or None)
