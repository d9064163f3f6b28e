"""Activations."""

from collections.abc import Callable

import torch
from torch import Tensor

from millrace_kernels.select import select_kernels


def silu_mul_for(device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return the operation [rows, 2 * width] to [rows, width]: silu of the first half times the second."""
    return select_kernels(device).silu_mul
