"""SiLU and product in plain torch: the definition, and the CPU path."""

from torch import Tensor


def silu_mul_reference(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up in gate_up's type; gate_up [num_tokens, 2 * width], the gate first."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    denominator = gate.neg().exp_().add_(1.0)
    return (gate / denominator).mul_(up).to(gate_up.dtype)
