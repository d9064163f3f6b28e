"""Products on GPUs: the BLAS of the device, which also adds what the product is added to."""

import torch
from torch import Tensor


def linear_add(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor) -> Tensor:
    """Add x·Wᵀ + b to the residual [rows, outputs], in place, and return it. Shapes as in `linear_reference`.

    The product is added before it is rounded, and nothing is launched for the addition. A kernel that adds
    and normalises would read the product and the residual, and write both the sum and the norm; so the sum is
    read once less, but the product is written and read once more.
    """
    if bias is not None:
        residual += bias
    return torch.addmm(residual, x, weight.t(), out=residual)
