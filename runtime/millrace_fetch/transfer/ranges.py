"""Arithmetic of byte ranges: fetched, missing and requested ones. Pure."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Span(NamedTuple):
    """Bytes from `start` up to `end`, exclusive."""

    start: int
    end: int

    @property
    def num_bytes(self) -> int:
        """The length."""
        return self.end - self.start


def merge(spans: Iterable[Span]) -> list[Span]:
    """Return the same bytes in order, with overlapping and adjacent spans joined."""
    merged: list[Span] = []
    for span in sorted(spans):
        if merged and span.start <= merged[-1].end:
            merged[-1] = Span(merged[-1].start, max(merged[-1].end, span.end))
        else:
            merged.append(span)
    return merged


def find_missing(size: int, done: Iterable[Span]) -> Iterator[Span]:
    """Yield the gaps, in order."""
    position = 0
    for span in merge(done):
        if span.start > position:
            yield Span(position, span.start)
        position = span.end
    if position < size:
        yield Span(position, size)


def split(span: Span, largest: int) -> Iterator[Span]:
    """Yield a span in pieces of at most `largest` bytes."""
    for start in range(span.start, span.end, largest):
        yield Span(start, min(start + largest, span.end))


def find_frontier(done: Iterable[Span]) -> int:
    """Return the end of the bytes that start at 0 and have no gap."""
    first = next(iter(merge(done)), Span(0, 0))
    return first.end if first.start == 0 else 0


class Place(NamedTuple):
    """The position of a part, and its file's size; None for an absent value."""

    start: int | None
    file_bytes: int | None


_START = re.compile(r"bytes[ =]([0-9]{1,18})-", re.IGNORECASE)
_FILE_BYTES = re.compile(r"/([0-9]{1,18})$")


def read_place(content_range: str) -> Place:
    """Parse a Content-Range header, such as `bytes 0-99/2000`."""
    start, file_bytes = _START.match(content_range), _FILE_BYTES.search(content_range)
    return Place(int(start[1]) if start else None, int(file_bytes[1]) if file_bytes else None)
