"""A line of JSON for each request: who asked what, how it ended, what it used. Never a prompt. Pure.

A line has only printable ASCII: whatever a client puts into a name or a header, it ends no line and moves no
terminal's cursor.
"""

import json
from dataclasses import dataclass
from typing import Any

from millrace_gateway.access.limits.reservation import Usage

MOST_LETTERS = 256
"""Of a text that a client has written; the rest is left out."""


@dataclass(frozen=True)
class LoggedRequest:
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
    """None if no replica reported it."""


def format_line(request: LoggedRequest) -> bytes:
    """Return a request as a line, with its end."""
    line: dict[str, Any] = {
        "time": round(request.at, 3),
        "client": _cut(request.client),
        "namespace": request.namespace,
        "service": request.service,
        "model": _cut(request.model),
        "status": request.status,
        "outcome": request.outcome,
        "seconds": round(request.seconds, 4),
        "request_id": _cut(request.request_id),
    }
    if request.usage is not None:
        usage = request.usage
        line |= {
            "prompt_tokens": usage.prompt,
            "cached_tokens": usage.cached,
            "completion_tokens": usage.completion,
        }
    return json.dumps(line, separators=(",", ":")).replace("\x7f", "\\u007f").encode() + b"\n"


def format_dropped(num_dropped: int) -> bytes:
    """Return the line that stands for lines which could not be written."""
    return json.dumps({"dropped_lines": num_dropped}).encode() + b"\n"


def _cut(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else text[:MOST_LETTERS] + "…"
