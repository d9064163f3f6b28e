"""Split-KV: the spans of keys that decode on GPUs reads side by side, and merges."""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Numbers = TypeVar("Numbers", NDArray[Any], Tensor)

LEAST_KEYS = 256
"""Keys of a short sequence's span. Fewer cost more for each span; with more, a single sequence is slow."""
MOST_SPANS = 32
"""The most spans of a sequence. A longer sequence has longer spans, so that there is less to merge."""
KEYS_UNIT = 64
"""Spans consist of whole tiles of at most 64 keys: only a sequence's last tile is masked."""


def count_span_keys(seen: Numbers) -> Numbers:
    """Return the keys of a span, of a query that sees so many. A query's bits depend on nothing else."""
    return (-(-seen // (MOST_SPANS * KEYS_UNIT)) * KEYS_UNIT).clip(min=LEAST_KEYS)


def count_row_spans(contexts: Numbers, window: int | None) -> Numbers:
    """Return the number of spans of each sequence's last query, which sees at most `window` keys."""
    seen = contexts if window is None else contexts.clip(max=window)
    num_spans: Numbers = -(-seen // count_span_keys(seen))
    return num_spans


def count_spans(starts: Sequence[int], contexts: Sequence[int], window: int | None = None) -> int:
    """Return the number of spans of a step's rows with one query."""
    is_single, lengths = np.diff(starts) == 1, np.asarray(contexts, dtype=np.int64)
    return int(count_row_spans(lengths, window)[is_single].sum())


def bound_spans(num_rows: int, num_tokens: int, window: int | None = None) -> int:
    """Return the largest number of spans of rows whose sequences have `num_tokens` together."""
    most = MOST_SPANS if window is None else min(-(-window // LEAST_KEYS), MOST_SPANS)
    return min(num_rows + num_tokens // LEAST_KEYS, num_rows * most)
