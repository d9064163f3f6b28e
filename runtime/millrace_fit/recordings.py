"""Which decode steps a GPU's replica records, by their numbers of rows."""

from typing import Final

CLOSE_SIZES: Final = 8
WIDE_SIZES: Final = 16
CLOSE_UNTIL: Final = 32
MOST_ROWS: Final = 512
"""A step of more rows computes for longer than its launches take: for so many rows a model of 8 billion
weights needs 8 ms of a device with 10^15 operations a second."""


def choose_sizes(max_rows: int) -> tuple[int, ...]:
    """Return the numbers of rows that are recorded: 1, 2, 4, 8, 16, 24, 32, 48, … up to `max_rows`.

    A step reads all weights whatever its rows, so a few more rows cost little; but each size takes about as
    long to record as some steps take, and memory.
    """
    max_rows = min(max_rows, MOST_ROWS)
    sizes = {1, 2, 4, *range(CLOSE_SIZES, CLOSE_UNTIL, CLOSE_SIZES)}
    sizes |= set(range(CLOSE_UNTIL, max_rows, WIDE_SIZES))
    return (*sorted(size for size in sizes if size < max_rows), max_rows)
