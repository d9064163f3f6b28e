"""Activation and product in plain torch: the definition, and the CPU path."""

from torch import Tensor

GELU_FACTOR, GELU_CUBE = 1.5957691216057308, 0.044715
"""sqrt(8 / pi), and the cube's factor (Hendrycks and Gimpel, 2016)."""


def silu_mul_reference(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up in gate_up's type; gate_up [num_tokens, 2 * width], the gate first."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return _gate(gate, gate, up).to(gate_up.dtype)


def gelu_mul_reference(gate_up: Tensor) -> Tensor:
    """Return gelu(gate) * up, by tanh; as `silu_mul_reference`."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    strength = gate.square().mul_(GELU_CUBE).add_(1.0).mul_(gate * GELU_FACTOR)
    return _gate(gate, strength, up).to(gate_up.dtype)


def _gate(gate: Tensor, strength: Tensor, up: Tensor) -> Tensor:
    """Return gate * sigmoid(strength) * up."""
    denominator = strength.neg().exp_().add_(1.0)
    return (gate / denominator).mul_(up)
