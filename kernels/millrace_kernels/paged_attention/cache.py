"""The KV cache on every path, by layer, and the definition of its rounding, in plain torch.

`cache.h` has the same numbers, which loading a library compares, and the inner layout of a block on CPUs.
"""

import enum
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

BLOCK_SIZE = 16
"""Tokens in a block."""
SLACK = 64
"""Numbers after a layer's last block: the CPU kernels read whole vectors, beyond the end of a narrow head."""
SCALE_TYPE = torch.bfloat16
"""Half of float32's memory, and as good: numbers are divided by the scale as it is stored."""


class KvFormat(enum.Enum):
    """The form of a cache's numbers. `README.md` has the maths of the rounded ones."""

    MODEL = "Model"
    """The model's own type, without scales."""
    INT8 = "Int8"
    """Integers from -127 to 127, with a scale for each token and KV head."""
    FP8 = "Fp8"
    """float8_e4m3, with such scales."""

    def stored_type(self, dtype: torch.dtype) -> torch.dtype:
        """Return the type of the cache's numbers, for a model of a type."""
        return {KvFormat.INT8: torch.int8, KvFormat.FP8: torch.float8_e4m3fn}.get(self, dtype)


@dataclass(frozen=True, slots=True)
class KvCache:
    """A layer's keys and values."""

    data: Tensor
    """[blocks, 2, kv_heads, BLOCK_SIZE, head_dim], and SLACK numbers of the same memory after it: keys, then
    values."""
    scales: Tensor | None = None
    """SCALE_TYPE [blocks, 2, kv_heads, BLOCK_SIZE]; None in the model's own type."""
    format: KvFormat = KvFormat.MODEL

    @property
    def num_kv_heads(self) -> int:
        """KV heads of a token."""
        return self.data.shape[2]

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self.data.shape[3]

    @property
    def head_dim(self) -> int:
        """Numbers of a head."""
        return self.data.shape[4]

    @property
    def nbytes(self) -> int:
        """Bytes of data and scales."""
        return self.data.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def poison(self, blocks: Tensor | list[int] | slice = slice(None)) -> None:
        """Fill blocks with NaN, or with NaN as their scales, which spoils every row that reads them."""
        if self.scales is None:
            self.data[blocks] = float("nan")
        else:
            self.data.view(torch.int8)[blocks] = 0x55
            self.scales[blocks] = float("nan")


LARGEST = {KvFormat.INT8: 127, KvFormat.FP8: 448}
"""The number that a head's largest becomes: the format's largest."""
SMALLEST = 1e-30
"""A head of only smaller numbers counts as zeros: the inverse of its scale might not be finite."""


class RoundedHeads(NamedTuple):
    """Heads as a cache has them."""

    values: Tensor
    """[..., head_dim] in the format's type"""
    scales: Tensor
    """SCALE_TYPE [...]"""


def round_heads(heads: Tensor, form: KvFormat) -> RoundedHeads:
    """Round each of the heads [..., head_dim] to nearest even, its largest number to the format's largest.

    A NaN or an infinity makes its head's scale NaN.
    """
    wide, most = heads.float(), LARGEST[form]
    largest = wide.abs().amax(-1, keepdim=True)
    is_known, is_zero = largest.isfinite(), largest < SMALLEST
    scales = torch.where(is_known, largest / most, torch.nan).to(SCALE_TYPE)
    scales = torch.where(is_zero, 0, scales)
    values = torch.where(is_known & ~is_zero, wide * scales.float().reciprocal(), 0)
    values = values.round().to(torch.int8) if form is KvFormat.INT8 else values.to(torch.float8_e4m3fn)
    return RoundedHeads(values, scales[..., 0])
