"""A replica's report of its load: in HEADER_LOAD with each answer, and at PATH_LOAD as JSON. Pure."""

import math
from typing import NamedTuple

import msgspec


class LoadReport(NamedTuple):
    """A replica's load at one moment."""

    waiting: int
    running: int
    max_sequences: int
    """How many sequences it runs at once."""
    kv_usage: float
    """The part of its KV cache that is used, from 0 to 1."""
    reported_at: float
    """By the gateway's monotonic clock."""


class _Document(msgspec.Struct):
    waiting: int
    running: int
    max_sequences: int
    kv_usage: float


def read_load_header(text: str, now: float) -> LoadReport | None:
    """Read `<waiting> <running> <max_sequences> <kv_usage>`; None if it has another form."""
    try:
        waiting, running, max_sequences, kv_usage = text.split(" ")
        return _check(LoadReport(int(waiting), int(running), int(max_sequences), float(kv_usage), now))
    except ValueError:
        return None


def read_load_document(body: bytes, now: float) -> LoadReport | None:
    """Read the JSON of PATH_LOAD; None if it has another form."""
    try:
        found = msgspec.json.decode(body, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return _check(LoadReport(found.waiting, found.running, found.max_sequences, found.kv_usage, now))


def _check(report: LoadReport) -> LoadReport | None:
    """Return the report, or None if a replica cannot have such a load: tenants write what runs in it."""
    is_possible = min(report[:4]) >= 0 and max(report[:3]) < 2**31 and math.isfinite(report.kv_usage)
    return report if is_possible else None
