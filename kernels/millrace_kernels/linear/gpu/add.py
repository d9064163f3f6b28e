"""Products on GPUs by the device's BLAS, which also adds the residual."""

import torch
from torch import Tensor


def keep_sums_in_float32() -> None:
    """Make this process's BLAS sum bfloat16 products in float32, even if it splits a product.

    Otherwise it may round the parts of a split to bfloat16, which it does for steps of few rows.
    """
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def linear_add(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor) -> Tensor:
    """Add x·Wᵀ + b to the residual [rows, outputs], in place, and return it. Shapes as in `linear_reference`.

    The BLAS adds the product before it rounds, without a launch of its own for the addition.
    """
    if bias is not None:
        residual += bias
    return torch.addmm(residual, x, weight.t(), out=residual)
