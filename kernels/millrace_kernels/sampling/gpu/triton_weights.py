"""Functions of several sampling kernels: steps 6 to 8 of README.md."""

import triton
import triton.language as tl

from millrace_kernels.sampling.columns import NOT_FINITE, NOTHING_ALLOWED
from millrace_kernels.sampling.reference import SERIES

BUCKETS: tl.constexpr = tl.constexpr(256)
BUCKETS_OF_TWO: tl.constexpr = tl.constexpr(8)
"""The number of buckets for each halving of a weight."""
DIGIT_BITS: tl.constexpr = tl.constexpr(6)
RADIX: tl.constexpr = tl.constexpr(1 << DIGIT_BITS.value)
NUM_DIGITS: tl.constexpr = tl.constexpr(-(-32 // DIGIT_BITS.value))
"""Digits of a key, as unsigned: together they are all 32 bits, so no two floats have the same digits."""
ROUNDER: tl.constexpr = tl.constexpr(12582912.0)  # 1.5 · 2^23
UNITS: tl.constexpr = tl.constexpr(8388608.0)  # 2^23: larger float32 numbers are integers
LAST_ID: tl.constexpr = tl.constexpr((1 << 31) - 1)
MOST_KEY: tl.constexpr = tl.constexpr((1 << 31) - 1)
"""A key above that of every float."""
BAD: tl.constexpr = tl.constexpr(NOT_FINITE)
EMPTY: tl.constexpr = tl.constexpr(NOTHING_ALLOWED)
C1: tl.constexpr = tl.constexpr(SERIES[5])
C2: tl.constexpr = tl.constexpr(SERIES[4])
C3: tl.constexpr = tl.constexpr(SERIES[3])
C4: tl.constexpr = tl.constexpr(SERIES[2])
C5: tl.constexpr = tl.constexpr(SERIES[1])
C6: tl.constexpr = tl.constexpr(SERIES[0])


@triton.jit  # type: ignore[untyped-decorator]  # triton ships no types
def weigh(z: tl.tensor, peak: tl.tensor, inverse: tl.tensor, least: tl.tensor) -> tl.tensor:
    """Return the int64 weights of README.md's steps 7 and 8."""
    y = tl.maximum((z - peak) * inverse, -32.0)
    n = (y + ROUNDER) - ROUNDER
    f = y - n
    p = f * C6
    p = (p + C5) * f
    p = (p + C4) * f
    p = (p + C3) * f
    p = (p + C2) * f
    p = (p + C1) * f
    p = p + 1.0
    scale = ((n.to(tl.int32) + 157) << 23).to(tl.float32, bitcast=True)
    scaled = p * scale
    whole = tl.where(scaled < UNITS, (scaled + UNITS) - UNITS, scaled).to(tl.int64)
    return tl.where(whole >= least, whole, 0)


@triton.jit  # type: ignore[untyped-decorator]
def to_key(z: tl.tensor) -> tl.tensor:
    """Return int32 numbers in the order of the floats."""
    bits = z.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit  # type: ignore[untyped-decorator]
def from_key(key: tl.tensor) -> tl.tensor:
    """Return the float of a key."""
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def to_digits(z: tl.tensor) -> tl.tensor:
    """Return int64 keys from 0 upwards, in the order of the floats."""
    return to_key(z).to(tl.int64) + (1 << 31)


@triton.jit  # type: ignore[untyped-decorator]
def from_digits(number: tl.tensor) -> tl.tensor:
    """Return the float of such a key."""
    return from_key((number - (1 << 31)).to(tl.int32))


@triton.jit  # type: ignore[untyped-decorator]
def fraction(total: tl.tensor, part: tl.tensor) -> tl.tensor:
    """Return floor(total · part / 2^32), as the reference does."""
    return ((total >> 31) * part + (((total & 0x7FFFFFFF) * part) >> 31)) >> 1


@triton.jit  # type: ignore[untyped-decorator]
def bucket_of(z: tl.tensor, peak: tl.tensor, inverse: tl.tensor) -> tl.tensor:
    """Return each token's bucket: a larger number for a smaller weight."""
    y = tl.maximum((z - peak) * inverse, -32.0)
    return tl.minimum((y * -1.0 * BUCKETS_OF_TWO).to(tl.int32), BUCKETS - 1)


@triton.jit  # type: ignore[untyped-decorator]
def last_bucket(
    histogram: tl.tensor, total: tl.tensor, top_k: tl.tensor, share: tl.tensor, is_top_k: tl.tensor
) -> tl.tensor:
    """Return a bucket after which no token is kept."""
    counts = histogram.to(tl.int64)
    if is_top_k:
        # Also for top_p: its bound is a share of the sum of all these weights.
        last = tl.sum((tl.cumsum(counts, 0) < top_k).to(tl.int32), 0)
    else:
        # A token weighs at most as much as the start of its bucket, except for rounding. The tokens up to a
        # bucket weigh the rest.
        begins = tl.arange(0, BUCKETS).to(tl.float32) * (1.0 / BUCKETS_OF_TWO)
        heaviest = (tl.exp2(30.0 - begins) * 1.0001).to(tl.int64) + 2
        bounds = counts * heaviest
        rest = total - tl.sum(bounds, 0) + tl.cumsum(bounds, 0)
        last = tl.sum((rest < tl.maximum(fraction(total, share), 1)).to(tl.int32), 0)
    return tl.minimum(last, BUCKETS - 1)


@triton.jit  # type: ignore[untyped-decorator]
def rank_tokens(z: tl.tensor, ids: tl.tensor) -> tl.tensor:
    """Return int64 numbers of which the largest has the largest z, and of equal ones the lowest id."""
    return (to_key(z).to(tl.int64) << 32) | (ids ^ LAST_ID).to(tl.int64)
