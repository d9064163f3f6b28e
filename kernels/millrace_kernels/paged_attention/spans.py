"""The spans of keys that decode on GPUs is cut into."""

from collections.abc import Sequence

import numpy as np

SPAN = 256
"""Keys of a span, whatever the batch: so a sequence's bits depend on nothing but the sequence."""


def count_spans(starts: Sequence[int], contexts: Sequence[int]) -> int:
    """Return how many spans a step's rows of one query have."""
    is_single = np.diff(starts) == 1
    return int((-(-np.asarray(contexts) // SPAN))[is_single].sum())


def bound_spans(num_rows: int, num_tokens: int) -> int:
    """Return how many spans rows can have whose sequences have so many tokens together, at most."""
    return num_rows + num_tokens // SPAN
