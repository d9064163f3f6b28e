"""How the rotary position embedding is stretched for contexts beyond those of the first training."""

from dataclasses import dataclass


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
