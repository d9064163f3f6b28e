"""What draws from logits on a device, and what tells how likely the drawn tokens were."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from millrace_kernels.sampling.columns import Draws, Sampled
from millrace_kernels.sampling.logprobs import TopLogprobs
from millrace_kernels.transfer import upload_all

Draw = Callable[[Tensor, Draws, Tensor, Tensor | None], Sampled]
"""Takes logits, draws, known tokens and masks, as `sample_reference`."""


class PlainSampler(NamedTuple):
    """Draws what is neither cut, penalised nor masked, with all that it needs on the device: recordable."""

    num_columns: int
    lay_out: Callable[[Draws, NDArray[np.int64]], None]
    """Writes into int64 [rows, columns] what each draw needs. A row that has -1 everywhere draws nothing."""
    draw: Callable[[Tensor, Tensor, Tensor, Tensor], None]
    """Takes logits, such a table, known tokens and, int64 [2, rows], where Sampled's numbers go."""


class Sampler(NamedTuple):
    """The operations on one device."""

    draw: Draw
    """The drawn tokens become known ones too."""
    top_logprobs: Callable[[Tensor, Tensor, Tensor, int], TopLogprobs]
    """As `top_logprobs_reference`."""
    plain: PlainSampler | None = None
    """None where no step is recorded."""


def storing(draw: Draw) -> Draw:
    """Return an operation that draws, and then stores each token among the known ones at its position."""

    def draw_and_store(logits: Tensor, draws: Draws, known_tokens: Tensor, masks: Tensor | None) -> Sampled:
        sampled = draw(logits, draws, known_tokens, masks)
        slots, positions = upload_all((draws.slot, draws.position), known_tokens.device)
        known_tokens.index_put_((slots, positions), sampled.tokens)
        return sampled

    return draw_and_store
