"""Normalisation."""

from torch import Tensor

from millrace_kernels.select import select_kernels


class RMSNorm:
    """Root-mean-square normalisation over the last axis, then a learned scale."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        self.weight = weight
        self.epsilon = epsilon
        self._rms_norm = select_kernels(weight.device).rms_norm

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [rows, width] to the same shape and type."""
        return self._rms_norm(x, self.weight, self.epsilon)
