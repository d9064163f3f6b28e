"""A product with a weight in plain torch: the definition, and the torch path on CPUs and GPUs."""

from torch import Tensor
from torch.nn import functional

MIN_GEMM_ROWS = 16
"""On CPUs the BLAS uses other algorithms for few rows (a matrix-vector product for one), with other bits.
From 8 rows on, a row's bits did not depend on the other rows (tried with float32 and bfloat16, 1 and 2
threads, up to 700 rows). 16 leaves a margin for untried CPUs."""


def linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x·Wᵀ + b [rows, outputs] for x [rows, inputs] and weight [outputs, inputs], in their type.

    On CPUs a row's bits do not depend on how many rows there are, for one number of threads.
    """
    missing = MIN_GEMM_ROWS - x.shape[0] if weight.device.type == "cpu" else 0
    if missing <= 0:
        return functional.linear(x, weight, bias)
    padded = functional.pad(x, (0, 0, 0, missing))
    return functional.linear(padded, weight, bias)[: x.shape[0]]
