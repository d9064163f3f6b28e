"""Strips of 16 outputs as lanes: rows are cut into parts, and written lane by lane."""

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar, cast

from torch import Tensor

from millrace_kernels.native.abi import LANES
from millrace_kernels.weights import Part

AT_ONCE = 1 << 18
"""Numbers rounded in one pass, which needs a few megabytes."""

Allocate = Callable[[int], Tensor]
"""Takes a number of bytes. Returns zeros."""

Rows = TypeVar("Rows", bound=Part)


def cut(rows: Rows) -> Iterator[tuple[int, Rows]]:
    """Yield rows in parts of whole strips, each with its first row."""
    count = max(AT_ONCE // rows.shape[1] // LANES, 1) * LANES
    for at in range(0, rows.shape[0], count):
        yield at, cast("Rows", rows[at : at + count])


def put(lanes: Tensor, begin: int, rows: Tensor) -> None:
    """Write rows [count, …] into lanes [strips, 16, …], from output `begin` on."""
    for strip, lane, first, count in _split(begin, rows.shape[0]):
        part = rows[first : first + count]
        if lane == 0 and count % LANES == 0:
            lanes[strip : strip + count // LANES] = part.view(-1, LANES, *part.shape[1:])
        else:
            lanes[strip, lane : lane + count] = part


class _Segment(NamedTuple):
    """Rows of one write: whole strips, or lanes of one strip."""

    strip: int
    lane: int
    first_row: int
    num_rows: int


def _split(begin: int, count: int) -> Iterator[_Segment]:
    """Yield the segments of `count` rows from output `begin` on."""
    row = 0
    while row < count:
        strip, lane = divmod(begin + row, LANES)
        left = count - row
        size = left // LANES * LANES if lane == 0 and left >= LANES else min(LANES - lane, left)
        yield _Segment(strip, lane, row, size)
        row += size
