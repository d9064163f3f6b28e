"""A step's numbers by token, and the inputs of graphs whose rows have any number of tokens."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from millrace_kernels.device_kernels import Bounds, QueryRows
from millrace_kernels.sampling.columns import Draws
from millrace_kernels.sampling.sampler import RecordedSampler
from millrace_kernels.transfer import upload_into
from millrace_runtime.execution.applied_plan import Spans
from millrace_runtime.execution.graphs import NOBODY

Numbers = TypeVar("Numbers", NDArray[np.int64], Tensor)


class TokenLayout(NamedTuple):
    """The tokens of a step, row after row. int64 each."""

    owners: NDArray[np.int64]
    """[tokens]: the slot of each token's sequence."""
    positions: NDArray[np.int64]
    """[tokens], each in its sequence."""
    starts: NDArray[np.int64]
    """[rows + 1]: each row's first token."""


def lay_out_tokens(spans: Spans) -> TokenLayout:
    """Return the tokens of all spans."""
    slots, begins, ends = spans
    sizes = ends - begins
    starts = np.concatenate(([0], sizes.cumsum()))
    in_row = np.arange(starts[-1]) - starts[:-1].repeat(sizes)
    return TokenLayout(slots.repeat(sizes), begins.repeat(sizes) + in_row, starts)


def split_rows(spans: Spans, places: NDArray[np.int64]) -> tuple[Spans, list[int]]:
    """Split rows after the tokens with these numbers. Return the parts, and the numbers of those that end so.

    The tokens keep their order.
    """
    owners, positions, starts = lay_out_tokens(spans)
    lasts = np.union1d(starts[1:] - 1, places)
    firsts = np.concatenate(([0], lasts[:-1] + 1))
    parts = Spans(owners[lasts], positions[firsts], positions[lasts] + 1)
    return parts, np.flatnonzero(np.isin(lasts, places)).tolist()


class _Parts(NamedTuple, Generic[Numbers]):
    """A graph's numbers, on the host or on the device."""

    owners: Numbers
    positions: Numbers
    starts: Numbers
    contexts: Numbers
    slots: Numbers
    draws: Numbers


class MixedInputs:
    """The inputs of a mixed graph's repetition, uploaded by one copy: tokens, rows and their draws."""

    def __init__(
        self, num_tokens: int, num_rows: int, sampler: RecordedSampler, device: torch.device
    ) -> None:
        """At first all tokens and rows are padding."""
        self.num_rows = num_rows
        self._num_tokens, self._lay_out, self._num_columns = num_tokens, sampler.lay_out, sampler.num_columns
        sizes = (num_tokens, num_tokens, num_rows + 1, num_rows, num_rows, num_rows * sampler.num_columns)
        # Each part starts at a multiple of 16 bytes, as in `upload_all`.
        self._bounds = list(pairwise((0, *accumulate(size + size % 2 for size in sizes))))
        self._sizes = sizes
        self._host = np.zeros(self._bounds[-1][1], dtype=np.int64)
        self._numbers = self._cut(self._host)
        self._numbers.positions[:], self._numbers.draws[:] = NOBODY, NOBODY
        self._memory = torch.from_numpy(self._host.copy()).to(device)
        self._there = self._cut(self._memory)

    def _cut(self, memory: Numbers) -> _Parts[Numbers]:
        owners, positions, starts, contexts, slots, draws = (
            memory[begin : begin + size] for (begin, _), size in zip(self._bounds, self._sizes, strict=True)
        )
        shape = (self.num_rows, self._num_columns)
        return _Parts(owners, positions, starts, contexts, slots, draws=draws.reshape(shape))

    @property
    def owners(self) -> Tensor:
        """int64 [tokens] on the device: slots."""
        return self._there.owners

    @property
    def positions(self) -> Tensor:
        """int64 [tokens] on the device; NOBODY for padding."""
        return self._there.positions

    @property
    def draws(self) -> Tensor:
        """int64 [rows, columns] on the device, as `RecordedSampler` reads it."""
        return self._there.draws

    def write(self, spans: Spans, draws: Draws | None) -> None:
        """Write a step's tokens, rows and draws; None: the graph draws nothing. All else is padding."""
        owners, positions, starts = lay_out_tokens(spans)
        num_tokens, num_rows, mine = len(owners), len(spans.slots), self._numbers
        num_drawn = 0 if draws is None else num_rows
        self._host.fill(0)
        mine.owners[:num_tokens] = owners
        mine.positions[:num_tokens], mine.positions[num_tokens:] = positions, NOBODY
        mine.starts[: num_rows + 1], mine.starts[num_rows + 1 :] = starts, num_tokens
        mine.contexts[:num_rows], mine.slots[:num_rows] = spans.ends, spans.slots
        if draws is not None:
            self._lay_out(draws, mine.draws[:num_rows])
        mine.draws[num_drawn:] = NOBODY
        upload_into(self._host, self._memory)

    def list_rows(self, num_spans: Sequence[int]) -> list[QueryRows]:
        """Return the rows for the planning of attention by KV group."""
        there = self._there
        bounds = [Bounds(self._num_tokens, count, has_prefill=True) for count in num_spans]
        return [QueryRows((), (), there.starts, there.contexts, there.slots, bounds=one) for one in bounds]

    def choose_last(self, hidden: Tensor) -> Tensor:
        """Return the hidden state of each row's last token, and any one for a row of padding."""
        return hidden.index_select(0, (self._there.starts[1:] - 1).clamp(min=0))
