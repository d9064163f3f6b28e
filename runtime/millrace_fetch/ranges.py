"""Arithmetic of byte ranges: what is there, what is missing, how it is asked for. Pure."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Span(NamedTuple):
    """Bytes from `start` up to, and without, `end`."""

    start: int
    end: int

    @property
    def num_bytes(self) -> int:
        """How many bytes it has."""
        return self.end - self.start


def merge(spans: Iterable[Span]) -> list[Span]:
    """Return the same bytes in order, without overlaps and without neighbours that touch."""
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
    """Return how many bytes are there from the beginning on, without a gap."""
    first = next(iter(merge(done)), Span(0, 0))
    return first.end if first.start == 0 else 0
