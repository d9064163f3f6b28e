"""Linear layers whose rows do not feel each other."""

from torch import Tensor
from torch.nn import functional

MIN_GEMM_ROWS = 16
"""On CPUs the BLAS takes other paths for a few rows (a matrix-vector product for one), with other
bits; from 8 rows on it gave each row the same bits whatever the others (tried, float32 and bfloat16,
1 and 2 threads, to 700 rows). 16 leaves a margin for CPUs not tried."""


class Linear:
    """y = x·Wᵀ + b with weight [out, in]: a row's bits do not depend on how many rows there are."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias
        self._min_rows = MIN_GEMM_ROWS if weight.device.type == "cpu" else 0

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [rows, in] to [rows, out]."""
        missing = self._min_rows - x.shape[0]
        if missing <= 0:
            return functional.linear(x, self.weight, self.bias)
        padded = functional.pad(x, (0, 0, 0, missing))
        return functional.linear(padded, self.weight, self.bias)[: x.shape[0]]
