"""Products on GPUs: the BLAS of the device, which also adds what the product is added to."""

import torch
from torch import Tensor


def keep_sums_in_float32() -> None:
    """Have the BLAS of this process add bfloat16 products in float32, also where it splits a product.

    It may round the parts of a split to bfloat16 otherwise, as it does where a step has few rows.
    """
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def linear_add(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor) -> Tensor:
    """Add x·Wᵀ + b to the residual [rows, outputs], in place, and return it. Shapes as in `linear_reference`.

    The product is added before it is rounded, and nothing is launched for the addition.
    """
    if bias is not None:
        residual += bias
    return torch.addmm(residual, x, weight.t(), out=residual)
