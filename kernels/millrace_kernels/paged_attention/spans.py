"""The spans of keys that decode on GPUs is cut into."""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Numbers = TypeVar("Numbers", NDArray[Any], Tensor)

LEAST_KEYS = 256
"""Keys of a span of a short sequence: fewer cost more for each span, and more leave a lone sequence slow."""
MOST_SPANS = 32
"""Of a sequence: a longer one has longer spans, so that there is less to merge."""
KEYS_UNIT = 64
"""Spans are whole tiles of keys, which have 64 at most: only a sequence's last tile is masked."""


def span_keys(contexts: Numbers) -> Numbers:
    """Return how many keys a span has: by the sequence's length alone, so its bits depend on nothing else."""
    return (-(-contexts // (MOST_SPANS * KEYS_UNIT)) * KEYS_UNIT).clip(min=LEAST_KEYS)


def count_spans(starts: Sequence[int], contexts: Sequence[int]) -> int:
    """Return how many spans a step's rows of one query have."""
    is_single, lengths = np.diff(starts) == 1, np.asarray(contexts, dtype=np.int64)
    return int((-(-lengths // span_keys(lengths)))[is_single].sum())


def bound_spans(num_rows: int, num_tokens: int) -> int:
    """Return how many spans rows can have whose sequences have so many tokens together, at most."""
    return min(num_rows + num_tokens // LEAST_KEYS, num_rows * MOST_SPANS)
