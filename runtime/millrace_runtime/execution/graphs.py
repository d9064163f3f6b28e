"""Decode steps whose launches are recorded once and then repeated at once: CUDA graphs.

A step of an 8-billion-parameter model has some 200 launches, and each takes the host several microseconds,
whatever the device does. A graph is one launch. It repeats the very same work: as many rows, and all at the
same places in memory. So there is one for each of some numbers of rows. A step takes the next larger one, and
fills it up with rows that are nobody's.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from millrace_fit.recordings import CLOSE_SIZES
from millrace_kernels.transfer import upload_into

Compute = Callable[[Tensor], Tensor]
"""Takes numbers int64 [2, rows], the rows' slots and positions. Returns hidden states [rows, width].

No logits: those of 256 rows of a vocabulary of 128k are 131 MB, and a step that draws nothing needs none."""
Recorded = tuple[Callable[[], None], Tensor]
"""Repeats what was recorded, and what it writes each time."""


class Recorder(Protocol):
    """Records launches, so that they can be repeated."""

    def __call__(self, compute: Callable[[], Tensor]) -> Recorded:
        """Compute once or more, and record."""

    def forget(self) -> None:
        """Forget what recordings shared: all of them are gone."""


NOBODY = (0, -1)
"""Slot and position of a row that pads."""


@dataclass(frozen=True, slots=True)
class DecodeGraph:
    """The steps of up to so many rows of one token each."""

    numbers: Tensor
    """int64 [2, rows] on the device: slots and positions, read at each repetition."""
    num_spans: int
    """Spans of keys that its attention has memory for."""
    repeat: Callable[[], None]
    hidden: Tensor
    """[rows, width], written at each repetition."""

    def run(self, slots: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Compute rows, and return their hidden states. They hold until the next call."""
        numbers = np.empty(tuple(self.numbers.shape), dtype=np.int64)
        numbers[:] = np.array(NOBODY)[:, None]
        numbers[:, : len(slots)] = slots, positions
        upload_into(numbers, self.numbers)
        self.repeat()
        return self.hidden[: len(slots)]


class DecodeGraphs:
    """What was recorded, by size, and the one place that all write to: one runs at a time."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._graphs: dict[int, DecodeGraph] = {}
        self._place: Tensor | None = None

    @property
    def sizes(self) -> frozenset[int]:
        """The numbers of rows that were recorded."""
        return frozenset(self._graphs)

    def clear(self) -> None:
        """Forget all."""
        self._sizes, self._graphs, self._place = [], {}, None

    def remove(self, num_rows: int) -> None:
        """Forget a size, if it is there."""
        self._graphs.pop(num_rows, None)
        self._sizes = sorted(self._graphs)

    def put(self, hidden: Tensor) -> Tensor:
        """Copy hidden states to the place of all, and return it.

        The place grows when the first of a size is computed, and that is before it is recorded.
        """
        if self._place is None or len(self._place) < len(hidden):
            self._place = torch.empty_like(hidden)
        place = self._place[: len(hidden)]
        place.copy_(hidden)
        return place

    def add(self, num_rows: int, graph: DecodeGraph) -> None:
        """Add a size."""
        self._graphs[num_rows] = graph
        self._sizes = sorted(self._graphs)

    def find(self, num_rows: int, num_spans: int) -> DecodeGraph | None:
        """Return the smallest graph that holds so much; None without one of a size that comes close.

        A far larger one would do so much more work that it is slower than a step that is not recorded.
        """
        place = bisect_left(self._sizes, num_rows)
        if place == len(self._sizes) or self._sizes[place] > max(CLOSE_SIZES, 2 * num_rows):
            return None
        graph = self._graphs[self._sizes[place]]
        return graph if num_spans <= graph.num_spans else None


def record_decode(
    num_rows: int, num_spans: int, compute: Compute, record: Recorder, device: torch.device
) -> DecodeGraph:
    """Record a size, in which every row pads meanwhile."""
    numbers = torch.tensor(NOBODY, device=device)[:, None].repeat(1, num_rows)
    repeat, hidden = record(lambda: compute(numbers))
    return DecodeGraph(numbers, num_spans, repeat, hidden)


class CudaRecorder:
    """Records with CUDA. Graphs share the memory of what they compute meanwhile, as one runs at a time."""

    def __init__(self) -> None:
        self._pool: Any = None

    def forget(self) -> None:
        """Begin with new memory: that of no graph can't be entered again."""
        self._pool = None

    def __call__(self, compute: Callable[[], Tensor]) -> Recorded:
        """Compute once, so that all kernels are compiled and loaded; then record."""
        compute()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            output = compute()
        self._pool = self._pool or graph.pool()
        return graph.replay, output
