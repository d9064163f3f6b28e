"""Muon: momentum whose matrix is orthogonalised before it is applied (Jordan et al., 2024)."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

# A quintic whose iteration drives singular values towards 1 from anywhere in (0, 1].
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalise(matrix: Tensor, num_iterations: int = 4) -> Tensor:
    """The nearest half-orthogonal matrix to [m, n], roughly, by Newton-Schulz iterations."""
    a, b, c = _COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x: Tensor = matrix.T if is_tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(num_iterations):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if is_tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised; for 2-D weights of hidden layers."""

    def __init__(self, matrices: Iterable[Tensor], *, rate: float, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": rate, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Apply the gradients; closures are not supported."""
        if closure is not None:
            raise NotImplementedError("call backward yourself, then step()")
        for group in self.param_groups:
            for matrix in group["params"]:
                self._update(matrix, group["lr"], group["momentum"])

    def _update(self, matrix: Tensor, rate: float, momentum: float) -> None:
        state = self.state[matrix]
        buffer = state.setdefault("momentum", torch.zeros_like(matrix))
        if matrix.grad is None:
            return
        buffer.lerp_(matrix.grad, 1 - momentum)
        update = orthogonalise(matrix.grad.lerp(buffer, momentum))
        scale = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
        matrix.add_(update, alpha=-rate * scale)
