"""Rotary position embedding: the angles' tables."""

import math

import torch
from torch import Tensor

from millrace_fit.config import LinearScaling, Llama3Scaling, RotaryScaling
from millrace_kernels.step import Angles


def rotary_angles(
    head_dim: int, theta: float, length: int, scaling: RotaryScaling | None, device: torch.device
) -> Angles:
    """Return the angles of positions 0 … length - 1."""
    frequencies = _frequencies(head_dim, theta, scaling)
    turns = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    table = torch.empty((2, *turns.shape))
    torch.cos(turns, out=table[0])
    torch.sin(turns, out=table[1])
    return Angles(table.to(device))


def _frequencies(head_dim: int, theta: float, scaling: RotaryScaling | None) -> Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / theta**exponents
    match scaling:
        case None:
            return frequencies
        case LinearScaling(factor):
            return frequencies / factor
        case Llama3Scaling():
            return _stretch(frequencies, scaling)


def _stretch(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Keep wavelengths under length/high, divide those over length/low, and blend linearly between."""
    turns = scaling.original_length * frequencies / (2 * math.pi)
    span = scaling.high_frequency_factor - scaling.low_frequency_factor
    kept = ((turns - scaling.low_frequency_factor) / span).clamp(0.0, 1.0)
    return frequencies * kept + frequencies / scaling.factor * (1.0 - kept)
