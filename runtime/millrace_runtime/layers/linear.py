"""Linear layers: a packed weight, and the operation that a model applies it with."""

from torch import Tensor

from millrace_kernels.step import Matrix, Step


class Linear:
    """y = x·Wᵀ + b. A row's result does not depend on how many rows there are."""

    def __init__(self, weight: Matrix) -> None:
        self.weight = weight

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Map x [rows, inputs] to [rows, outputs]."""
        return step.linear(x, self.weight)

    def add_to(self, residual: Tensor, x: Tensor, step: Step) -> Tensor:
        """Return residual + y; the residual may not be used again."""
        return step.linear_add(x, self.weight, residual)


class GatedLinear:
    """silu(gate(x)) * up(x): the weight holds the gate's rows, then the other's."""

    def __init__(self, weight: Matrix) -> None:
        self.weight = weight

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Map x [rows, inputs] to [rows, outputs / 2]."""
        return step.linear_silu_mul(x, self.weight)
