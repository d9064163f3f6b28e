"""Random bits that are a function of (seed, position), on the device."""

from torch import Tensor

from millrace_kernels.sampling.columns import to_signed

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def random_bits(seeds: Tensor, positions: Tensor) -> Tensor:
    """Return 32 random bits, as int64, for int64 seeds and positions of one shape.

    SplitMix64's finaliser over the seed, then over the result with the position: neighbouring seeds or
    positions give unrelated numbers.
    """
    return _shift(_mix(_mix(seeds) + positions * to_signed(_GOLDEN)), 32)


def _mix(x: Tensor) -> Tensor:
    x = x + to_signed(_GOLDEN)
    x = (x ^ _shift(x, 30)) * to_signed(_MIX_1)
    x = (x ^ _shift(x, 27)) * to_signed(_MIX_2)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift right without the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
