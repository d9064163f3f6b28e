"""Normalisation."""

from torch import Tensor

from millrace_kernels.step import Step


class RMSNorm:
    """Root-mean-square normalisation over the last axis, then a learned scale."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        self.weight = weight
        self.epsilon = epsilon

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Map x [rows, width] to the same shape, in the model's type."""
        return step.rms_norm(x, self.weight, self.epsilon)
