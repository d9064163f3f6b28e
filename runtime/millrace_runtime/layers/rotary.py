"""Rotary position embedding: the angles' tables."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by a factor."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1: long wavelengths stretched by `factor`, short ones kept, a ramp between."""

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_length: int


RotaryScaling = LinearScaling | Llama3Scaling


class Rotary:
    """cos and sin of every position's angles, float32 [max_length, head_dim / 2]."""

    def __init__(
        self,
        head_dim: int,
        theta: float,
        max_length: int,
        device: torch.device,
        scaling: RotaryScaling | None = None,
    ) -> None:
        frequencies = _frequencies(head_dim, theta, scaling)
        angles = torch.outer(torch.arange(max_length, dtype=torch.float32), frequencies)
        self._cos, self._sin = angles.cos().to(device), angles.sin().to(device)

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin, each [tokens, head_dim / 2], of positions [tokens]."""
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)


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
