"""A line of JSON for each request: who asked what, how it ended, what it used. Never a prompt. Pure.

A line has only printable ASCII, so no name or header of a client can end a line or move a terminal's cursor.
"""

import json
from json.encoder import encode_basestring_ascii as quote
from typing import NamedTuple

from millrace_gateway.access.limits.reservation import Usage

MOST_LETTERS = 256
"""Letters kept of a text that a client has written."""


class LoggedRequest(NamedTuple):
    """One request at its end."""

    at: float
    """Its arrival, by the wall clock, in seconds since 1970."""
    seconds: float
    status: int
    outcome: str
    """As in the metrics."""
    client: str = ""
    """The client's name, `<namespace>/<secret>/<entry>`; empty without a key."""
    namespace: str = ""
    service: str = ""
    model: str = ""
    request_id: str = ""
    usage: Usage | None = None
    """As its client's use counts; None if nothing does."""


def format_line(request: LoggedRequest) -> bytes:
    """Return a request as a line, with its end. `json.dumps` of a dict takes three times as long."""
    usage = request.usage
    tokens = (
        ""
        if usage is None
        else (
            f',"prompt_tokens":{usage.prompt},"cached_tokens":{usage.cached},"completion_tokens":{usage.completion}'
        )
    )
    line = (
        f'{{"time":{request.at:.3f},"client":{quote(_cut(request.client))},'
        f'"namespace":{quote(request.namespace)},"service":{quote(request.service)},'
        f'"model":{quote(_cut(request.model))},"status":{request.status},"outcome":{quote(request.outcome)},'
        f'"seconds":{request.seconds:.4f},"request_id":{quote(_cut(request.request_id))}{tokens}}}\n'
    )
    return line.replace("\x7f", "\\u007f").encode()


def format_dropped(num_dropped: int) -> bytes:
    """Return the line that stands for lines which could not be written."""
    return json.dumps({"dropped_lines": num_dropped}).encode() + b"\n"


def _cut(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else text[:MOST_LETTERS] + "…"
