"""Heads of HTTP/1.1 messages: their headers, and their bytes. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus

Header = tuple[bytes, bytes]
"""A header's name in lower case, and its value."""
Headers = list[Header]

FRAMING = frozenset({b"content-length", b"transfer-encoding"})
"""Headers that announce a body."""
EVENT_STREAM = b"text/event-stream"


@dataclass(slots=True)
class AnswerHead:
    """The status and the headers of a replica's answer."""

    status: int = 0
    reason: bytes = b""
    headers: Headers = field(default_factory=list)


def find_header(headers: Iterable[Header], name: bytes) -> bytes | None:
    """Return the first header of this name, in lower case; None without one."""
    for found, value in headers:
        if found == name:
            return value
    return None


def find_named(headers: Iterable[Header]) -> frozenset[bytes]:
    """Return the names of the headers that every `Connection` header names: they end at the next hop."""
    named = [value for name, value in headers if name == b"connection"]
    if not named or named == [b"keep-alive"]:
        return frozenset()
    return frozenset(part.strip().lower() for value in named for part in value.split(b","))


def is_event_stream(headers: Iterable[Header]) -> bool:
    """Whether the body is server-sent events."""
    kind = find_header(headers, b"content-type")
    return kind is not None and kind.partition(b";")[0].strip().lower() == EVENT_STREAM


@lru_cache(maxsize=256)
def status_line(status: int, reason: bytes = b"") -> bytes:
    """Return a status line with its end. Without a reason it gets the standard one."""
    if not reason:
        reason = HTTPStatus(status).phrase.encode() if status in set(HTTPStatus) else b""
    return b"HTTP/1.1 %d %b\r\n" % (status, reason)


def write_headers(headers: Iterable[Header]) -> bytes:
    """Return the lines of headers."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])
