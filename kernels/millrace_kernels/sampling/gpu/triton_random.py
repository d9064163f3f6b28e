"""The random bits of a draw from its seed and position, as `randomness.py` defines them."""

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]  # triton ships no types
def mix_bits(x: tl.tensor) -> tl.tensor:
    """Return 64 bits, each of which depends on all of x: splitmix64."""
    x = x + 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit  # type: ignore[untyped-decorator]
def random_bits(seed: tl.tensor, position: tl.tensor) -> tl.tensor:
    """Return 32 random bits as int64, as `randomness.random_bits`."""
    mixed = mix_bits(seed.to(tl.uint64, bitcast=True)) + position.to(tl.uint64) * 0x9E3779B97F4A7C15
    return (mix_bits(mixed) >> 32).to(tl.int64)
