"""Readers of recorded requests: public traces and a simple table of our own. They read each line once.

Every reader yields requests in order, with their seconds from the first. To use another kind of trace, write
one line a request under the head `seconds,prompt_tokens,generation_tokens`.
"""

import heapq
import json
import random
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from millrace_operator.autoscaler.simulate.load import Request

AZURE_HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens"
OUR_HEAD = "seconds,prompt_tokens,generation_tokens"
LATEST_SECONDS = 1e11
"""From 1970 on that is the year 5138, so a larger figure is in milliseconds or less."""
LONGEST_SECONDS = 60 * 86_400.0
"""Two months. In a longer log the times are no seconds."""
COPIES_WITHIN_SECONDS = 5.0
"""Shorter than any window of an autoscaler: a burst is no flatter when it is scaled."""


class TraceError(ValueError):
    """A trace is not readable; the text says which line and what to write."""


class _Row(NamedTuple):
    """A request of a line, with the seconds of the trace's own clock."""

    seconds: float
    prompt_tokens: int
    generation_tokens: int


class _Format(NamedTuple):
    """A kind of line, with an example for error messages."""

    parse: Callable[[str], _Row]
    example: str


def read_file(path: Path) -> Iterator[Request]:
    """Yield a file's requests. Its first line shows its kind."""
    with path.open(encoding="utf-8") as lines:
        yield from read_lines(lines)


def read_lines(lines: Iterable[str]) -> Iterator[Request]:
    """Yield the requests of lines. The first line shows their kind."""
    rest = iter(lines)
    head = next(rest, "").strip().removeprefix("\ufeff")
    if head.startswith("{"):
        return _read(chain([head], rest), 1, _MOONCAKE)
    known = {AZURE_HEAD: _AZURE, OUR_HEAD: _OURS}
    if head not in known:
        raise TraceError(
            f'line 1 is "{head[:60]}"; write "{OUR_HEAD}" there and a line like {_OURS.example} a request'
        )
    return _read(rest, 2, known[head])


def _read(lines: Iterable[str], first_number: int, kind: _Format) -> Iterator[Request]:
    begin, before = None, 0.0
    for number, line in enumerate(lines, first_number):
        if not line.strip():
            continue
        row = _parse(number, line.strip(), kind)
        begin = row.seconds if begin is None else begin
        if row.seconds - begin < before:
            raise TraceError(f"line {number} is earlier than the one before; sort the lines by time")
        before = row.seconds - begin
        if before > LONGEST_SECONDS:
            raise TraceError(
                f"line {number} is {before / 86_400:.0f} days after the first; write times in seconds, "
                f"and at most {LONGEST_SECONDS / 86_400:.0f} days of them"
            )
        yield Request(before, row.prompt_tokens, row.generation_tokens)


def _parse(number: int, line: str, kind: _Format) -> _Row:
    try:
        row = kind.parse(line)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise TraceError(f'line {number} is "{line[:60]}"; write a line like {kind.example}') from error
    if min(row.prompt_tokens, row.generation_tokens) < 1:
        raise TraceError(f'line {number} is "{line[:60]}"; write 1 token or more for prompt and answer')
    if not abs(row.seconds) < float("inf"):
        raise TraceError(f'line {number} is "{line[:60]}"; write a finite time')
    if abs(row.seconds) > LATEST_SECONDS:
        raise TraceError(f'line {number} is "{line[:60]}"; write seconds, not milliseconds or less')
    return row


def _parse_azure(line: str) -> _Row:
    stamp, prompt, generation = line.split(",")
    return _Row(datetime.fromisoformat(stamp + "+00:00").timestamp(), int(prompt), int(generation))


def _parse_ours(line: str) -> _Row:
    seconds, prompt, generation = line.split(",")
    return _Row(float(seconds), int(prompt), int(generation))


def _parse_mooncake(line: str) -> _Row:
    found = json.loads(line)
    return _Row(found["timestamp"] / 1000, int(found["input_length"]), int(found["output_length"]))


_AZURE = _Format(_parse_azure, "2023-11-16 18:15:46.6805900,374,44")
_OURS = _Format(_parse_ours, "0.25,374,44")
_MOONCAKE = _Format(_parse_mooncake, '{"timestamp": 250, "input_length": 374, "output_length": 44}')


def scale(requests: Iterable[Request], factor: int, seed: int) -> Iterator[Request]:
    """Yield `factor` copies of each request, each at random within a few seconds after it.

    Shorter gaps instead would change a burst's length beside a cold start, and copies shifted by minutes
    would fill each other's lulls. This keeps the shape of the rate, `factor` times as high.
    """
    if factor < 1:
        raise TraceError(f"a trace can't be scaled by {factor}; write 1 or more")
    rng = random.Random(seed)  # noqa: S311  a simulation
    coming: list[Request] = []
    for request in requests:
        while coming and coming[0].at <= request.at:
            yield heapq.heappop(coming)
        heapq.heappush(coming, request)
        for _ in range(factor - 1):
            heapq.heappush(coming, request._replace(at=request.at + rng.random() * COPIES_WITHIN_SECONDS))
    while coming:
        yield heapq.heappop(coming)


def cut(requests: Iterable[Request], begin: float, end: float) -> Iterator[Request]:
    """Yield the requests from `begin` to before `end`, with their seconds from `begin`."""
    if not 0 <= begin < end:
        raise TraceError(f"there is no part from {begin:g} s to {end:g} s; write an end after the begin")
    for request in requests:
        if request.at >= end:
            return
        if request.at >= begin:
            yield request._replace(at=request.at - begin)
