"""RMSNorm in plain torch: the definition, and the CPU path."""

from torch import Tensor


def rms_norm_reference(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Normalise x [..., width] over its last axis and scale it by weight [width]."""
    wide = x.float()
    inverse = wide.square().mean(dim=-1, keepdim=True).add_(epsilon).rsqrt_()
    return (wide * inverse).to(x.dtype) * weight
