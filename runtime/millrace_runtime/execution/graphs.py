"""Recorded steps: CUDA graphs.

A step of an 8-billion-parameter model has some 200 launches, and each takes the host several microseconds,
whatever the device does. A graph is one launch. It repeats exactly the same work, with the same number of
tokens and at the same places in memory. So there are graphs for several numbers of tokens. A step takes the
next larger graph and pads its tokens.

In a decode graph each row has one token. A mixed graph serves any rows, also prompts and chunks of them, and
finds them by tables on the device.

A graph includes the draws, which need only numbers from the host. If a row draws nothing or waits for a mask,
the step pads the graph's draws, and draws from the graph's logits afterwards.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from millrace_fit.plan import CLOSE_SIZES, LEAST_MIXED
from millrace_kernels.device_kernels import Bounds, QueryRows
from millrace_kernels.sampling.columns import Draws
from millrace_kernels.sampling.sampler import RecordedSampler
from millrace_kernels.transfer import upload_into
from millrace_runtime.execution.applied_plan import Spans
from millrace_runtime.protocol.step import StepSize

Repeat = Callable[[], None]
"""Repeats the recorded launches. It reads and writes the same memory each time."""


class Recorder(Protocol):
    """Records launches, so that they can be repeated."""

    def __call__(self, compute: Callable[[], None]) -> Repeat:
        """Compute at least once, and record."""

    def forget(self) -> None:
        """Forget the memory that the recordings shared: all of them are gone."""


NOBODY = -1
"""Each number of a padding row. Only its slot is 0, because the step may read the slot's tokens."""


class Inputs(Protocol):
    """The inputs of a graph's repetitions, all on the device."""

    num_rows: int

    @property
    def owners(self) -> Tensor:
        """int64 [tokens]: the slot of each token's sequence."""

    @property
    def positions(self) -> Tensor:
        """int64 [tokens], each in its sequence; NOBODY for padding."""

    @property
    def draws(self) -> Tensor:
        """int64 [rows, columns], as `RecordedSampler` reads it."""

    def write(self, spans: Spans, draws: Draws | None) -> None:
        """Upload a step's rows and their draws; None: the graph draws nothing."""

    def list_rows(self, num_spans: Sequence[int]) -> list[QueryRows]:
        """Return the rows for the planning of attention by KV group, within the recording."""

    def choose_last(self, hidden: Tensor) -> Tensor:
        """Return the hidden state of each row's last token, within the recording."""


class DecodeInputs:
    """The inputs of a graph's repetition, uploaded by one copy: the rows' numbers, and then their draws."""

    def __init__(self, num_rows: int, sampler: RecordedSampler, device: torch.device) -> None:
        """At first all rows are padding."""
        self.num_rows = num_rows
        self._lay_out = sampler.lay_out
        self._host = np.full(num_rows * (2 + sampler.num_columns), NOBODY)
        self._host[:num_rows] = 0
        self._slots, self._positions = self._host[: 2 * num_rows].reshape(2, num_rows)
        self._draws = self._host[2 * num_rows :].reshape(num_rows, sampler.num_columns)
        self._there = torch.from_numpy(self._host.copy()).to(device)
        self.owners, self.positions = self._there[: 2 * num_rows].view(2, num_rows)
        """int64 [rows] each on the device: slots and positions."""
        self.draws = self._there[2 * num_rows :].view(num_rows, sampler.num_columns)
        """int64 [rows, columns] on the device, as `RecordedSampler` reads it."""

    def write(self, spans: Spans, draws: Draws | None) -> None:
        """Write a step's rows and their draws; None: the graph draws nothing. The other rows are padding."""
        num_rows, num_drawn = len(spans.slots), 0
        self._slots[:num_rows], self._slots[num_rows:] = spans.slots, 0
        self._positions[:num_rows], self._positions[num_rows:] = spans.begins, NOBODY
        if draws is not None:
            self._lay_out(draws, self._draws[:num_rows])
            num_drawn = num_rows
        self._draws[num_drawn:] = NOBODY
        upload_into(self._host, self._there)

    def list_rows(self, num_spans: Sequence[int]) -> list[QueryRows]:
        """Return the rows for the planning of attention by KV group."""
        starts, contexts = torch.arange(self.num_rows + 1, device=self.owners.device), self.positions + 1
        bounds = [Bounds(self.num_rows, count, has_prefill=False) for count in num_spans]
        return [QueryRows((), (), starts, contexts, self.owners, bounds=one) for one in bounds]

    def choose_last(self, hidden: Tensor) -> Tensor:
        """Return all: each row has one token."""
        return hidden


@dataclass(frozen=True, slots=True)
class Graph:
    """A recorded step for up to a number of tokens."""

    inputs: Inputs
    num_spans: tuple[int, ...]
    """The number of spans of keys for which its attention has memory, by KV group."""
    repeat: Repeat
    logits: Tensor
    """float32 [rows, vocabulary], written at each repetition."""
    sampled: Tensor
    """int64 [2, rows], written at each repetition: the drawn tokens and faults, as in Sampled."""


class _Ladder:
    """The graphs of one kind, by the number of tokens."""

    def __init__(self, close_tokens: int) -> None:
        """A graph of up to `close_tokens` tokens is similar to every smaller step."""
        self._close_tokens = close_tokens
        self._sizes: list[int] = []
        self.graphs: dict[int, Graph] = {}

    def replace(self, num_tokens: int, graph: Graph | None) -> None:
        """Add a size, or remove it, if it is there."""
        self.graphs.pop(num_tokens, None)
        if graph is not None:
            self.graphs[num_tokens] = graph
        self._sizes = sorted(self.graphs)

    def find(self, num_tokens: int) -> Graph | None:
        """Return the smallest graph with enough tokens; None without one of a similar size.

        A far larger one would do so much more work that it is slower than a step without a graph.
        """
        place = bisect_left(self._sizes, num_tokens)
        if place == len(self._sizes) or self._sizes[place] > max(self._close_tokens, 2 * num_tokens):
            return None
        return self.graphs[self._sizes[place]]


class Graphs:
    """The graphs by size, and the logits' memory, which all graphs share because one runs at a time."""

    def __init__(self) -> None:
        self.clear()

    @property
    def sizes(self) -> frozenset[StepSize]:
        """The recorded sizes."""
        kinds = ((self.decode, False), (self.mixed, True))
        return frozenset(StepSize(number, is_mixed) for kind, is_mixed in kinds for number in kind.graphs)

    def clear(self) -> None:
        """Forget all."""
        self.decode, self.mixed = _Ladder(CLOSE_SIZES), _Ladder(LEAST_MIXED)
        self._place: Tensor | None = None

    def replace(self, size: StepSize, graph: Graph | None) -> None:
        """Add a size, or remove it, if it is there."""
        (self.mixed if size.is_mixed else self.decode).replace(size.num_tokens, graph)

    def put(self, logits: Tensor) -> Tensor:
        """Copy logits to the shared memory, in float32, and return it.

        The memory grows at the first computation of a size, which comes before its recording.
        """
        if self._place is None or len(self._place) < len(logits):
            self._place = torch.empty_like(logits, dtype=torch.float32)
        return self.place(len(logits)).copy_(logits)

    def place(self, num_rows: int) -> Tensor:
        """Return the shared memory of so many rows."""
        assert self._place is not None, "nothing was put yet"
        return self._place[:num_rows]


class CudaRecorder:
    """Records with CUDA. Graphs share the memory of intermediate results, because one runs at a time."""

    def __init__(self) -> None:
        self._pool: Any = None

    def forget(self) -> None:
        """Use new memory from now on: CUDA can't reuse a pool whose graphs are all gone."""
        self._pool = None

    def __call__(self, compute: Callable[[], None]) -> Repeat:
        """Compute once, so that all kernels are compiled and loaded. Then record."""
        compute()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            compute()
        self._pool = self._pool or graph.pool()
        return graph.replay
