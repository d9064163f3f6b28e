"""The interface of sampling on a device: draws, and log-probabilities of the drawn tokens."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from millrace_kernels.sampling.columns import Draws, Sampled
from millrace_kernels.sampling.reference import TopLogprobs
from millrace_kernels.sampling.state import SlotState
from millrace_kernels.transfer import upload_all

Draw = Callable[[Tensor, Draws, SlotState, Tensor | None], Sampled]
"""Takes logits, draws, the slots' state and masks, as `sample_reference`."""


class RecordedSampler(NamedTuple):
    """Draws rows without a mask of their step from tables on the device, so that a graph can record it."""

    num_columns: int
    lay_out: Callable[[Draws, NDArray[np.int64]], None]
    """Writes each draw's inputs into int64 [rows, columns]. A row of -1 draws nothing."""
    draw: Callable[[Tensor, Tensor, SlotState, Tensor], None]
    """Takes logits, such a table, the slots' state, and int64 [2, rows] for the numbers of Sampled."""


class Sampler(NamedTuple):
    """The operations on one device."""

    draw: Draw
    """Also stores the drawn tokens among the known ones."""
    top_logprobs: Callable[[Tensor, Tensor, Tensor, int], TopLogprobs]
    """As `top_logprobs_reference`."""
    recorded: RecordedSampler | None = None
    """None if the device records no steps."""


def store_drawn(draw: Draw) -> Draw:
    """Return an operation that draws, then stores each token among the known ones at its position."""

    def draw_and_store(logits: Tensor, draws: Draws, state: SlotState, masks: Tensor | None) -> Sampled:
        sampled = draw(logits, draws, state, masks)
        slots, positions = upload_all((draws.slot, draws.position), state.tokens.device)
        state.tokens.index_put_((slots, positions), sampled.tokens)
        return sampled

    return draw_and_store
