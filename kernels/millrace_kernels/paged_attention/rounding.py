"""The rounding of heads in plain torch: the definition that every path follows. README.md has the maths."""

from typing import NamedTuple

import torch
from torch import Tensor

from millrace_kernels.paged_attention.cache import SCALE_TYPE, KvFormat

LARGEST = {KvFormat.INT8: 127, KvFormat.FP8: 448}
"""What a head's largest number becomes: the largest of the format."""
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
