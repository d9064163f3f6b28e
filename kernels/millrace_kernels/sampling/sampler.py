"""What draws from logits on a device, and what tells how likely the drawn tokens were."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from millrace_kernels.sampling.columns import Draws, Sampled
from millrace_kernels.sampling.logprobs import TopLogprobs


class Sampler(NamedTuple):
    """The two operations, on one device."""

    draw: Callable[[Tensor, Draws, Tensor, Tensor | None], Sampled]
    """As `sample_reference`."""
    top_logprobs: Callable[[Tensor, Tensor, Tensor, int], TopLogprobs]
    """As `top_logprobs_reference`."""
