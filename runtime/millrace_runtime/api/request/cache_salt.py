"""The salt of a request: only requests with the same salt share computed prefixes."""

import hashlib

from starlette.types import Scope

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.contract import HEADER_CACHE_SALT

SENDER = HEADER_CACHE_SALT.lower().encode()
"""The name of the header that says who sends a request, as ASGI has it."""
_LENGTH_BYTES = 8


def list_senders(scope: Scope) -> list[bytes]:
    """Return every value of the header."""
    return [value for name, value in scope["headers"] if name == SENDER]


def read_sender(scope: Scope) -> bytes | None:
    """Return the value of the header; None without the header. Raises BadRequestError for several values."""
    values = list_senders(scope)
    if len(values) > 1 or b"" in values:
        raise BadRequestError(
            f"the header `{HEADER_CACHE_SALT}` must have one value: send it once, or leave it out"
        )
    return values[0] if values else None


def hash_salt(sender: bytes | None, cache_salt: str | None) -> bytes:
    """Return 32 bytes that only the same header and the same field give; b"" with neither of them."""
    if sender is None and cache_salt is None:
        return b""
    salt = hashlib.sha256()
    for part in (sender or b"", (cache_salt or "").encode()):  # an empty one is refused: it stands for none
        salt.update(len(part).to_bytes(_LENGTH_BYTES, "big") + part)
    return salt.digest()
