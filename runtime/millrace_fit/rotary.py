"""The scaling of a rotary position embedding, as config.json describes it."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by a factor."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1: it stretches long wavelengths by `factor`, keeps short ones, and has a ramp between."""

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_length: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (Peng et al., 2023): a ramp over the dimensions, and cosines and sines times `magnitude`.

    Dimensions that turn more than `fast` times within the original length keep their frequency, those that
    turn less than `slow` times have theirs divided by `factor`.
    """

    factor: float
    fast: float
    slow: float
    original_length: int
    magnitude: float
    is_truncated: bool = True
    """Whether the ramp begins and ends at whole dimensions."""

    def find_ramp(self, head_dim: int, theta: float) -> tuple[float, float]:
        """Return the first dimension (of pairs) that is stretched at all, and the first that is wholly so."""
        low, high = (self._find_dimension(turns, head_dim, theta) for turns in (self.fast, self.slow))
        if self.is_truncated:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        return low, high + 0.001 if low == high else high

    def _find_dimension(self, turns: float, head_dim: int, theta: float) -> float:
        """Return the pair of dimensions that turns so many times within the original length."""
        wavelength = self.original_length / (turns * 2 * math.pi)
        return head_dim * math.log(wavelength) / (2 * math.log(theta))


@dataclass(frozen=True, slots=True)
class LongRopeScaling:
    """LongRoPE (Ding et al., 2024): each pair of dimensions has a wavelength of its own.

    Cosines and sines are multiplied by `magnitude`. Reported facts leave the factors out.
    """

    original_length: int
    magnitude: float
    short: tuple[float, ...] = ()
    """Factors of the wavelengths up to the original length."""
    long: tuple[float, ...] = ()
    """Those for longer sequences."""

    def choose(self, length: int) -> tuple[float, ...]:
        """Return the factors for a replica of this longest sequence.

        All of its sequences have the same, as in vLLM. transformers changes them while a sequence grows, and
        what it has cached stays as it was.
        """
        return self.short if length <= self.original_length else self.long


RotaryScaling = LinearScaling | Llama3Scaling | YarnScaling | LongRopeScaling
