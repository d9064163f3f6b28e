"""Unpacks the words of quantised checkpoints: from int32 with eight numbers each to one number an item. Pure.

Integers of 4 bits are stored as 0 to 15. They are returned less 8, and so are zero points, so that their
difference is the same. Floats of 4 bits are returned as plain numbers.
"""

import torch
from torch import Tensor

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output of each four bits of AWQ's word, the lowest first (AutoAWQ, `packing_utils.py`)."""
_OFFSET = 8
_FLOATS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""By the three lower bits of E2M1. The fourth one is the sign."""
_BYTES = torch.arange(256)
_SIGNED = torch.tensor((*_FLOATS, *(-one for one in _FLOATS)), dtype=torch.bfloat16)
_PAIRS = torch.stack((_SIGNED[_BYTES & 15], _SIGNED[_BYTES >> 4]), 1).view(torch.int32).flatten()
"""By a byte: its two numbers in bfloat16, which are looked up at once."""
_FACTORS = (2.0 ** (_BYTES.double() - 127)).to(torch.bfloat16)
"""By the byte of an E8M0 scale."""
LARGEST_SCALE = 252
"""With a larger byte, bfloat16 can't hold each number of a block. 255 is no number."""


def unpack_nibbles(words: Tensor) -> Tensor:
    """Return int8 [rows, 8 · columns] from int32 [rows, columns]: the lowest four bits come first."""
    pairs = words.contiguous().view(torch.uint8)
    both = torch.empty((*pairs.shape, 2), dtype=torch.uint8)
    torch.bitwise_and(pairs, 15, out=both[..., 0])  # into place: copies would be several times the tensor
    torch.bitwise_right_shift(pairs, 4, out=both[..., 1])
    return both.flatten(1).view(torch.int8).sub_(_OFFSET)


def unpack_bytes(words: Tensor) -> Tensor:
    """Return int8 [rows, 4 · columns] from int32 [rows, columns] of numbers plus 128."""
    return (words.contiguous().view(torch.uint8) ^ 128).view(torch.int8)


def unpack_awq(words: Tensor) -> Tensor:
    """Return int8 [8 · columns, rows] from int32 [rows, columns]: the columns of words are outputs."""
    turned = words.t().contiguous()  # first, while eight numbers are one: five times as fast
    pairs = turned.flatten().view(torch.uint8).view(*turned.shape, 4)
    unpacked = torch.empty((words.shape[1], len(AWQ_ORDER), words.shape[0]), dtype=torch.uint8)
    for place, output in enumerate(AWQ_ORDER):
        pair, part = pairs[..., place // 2], unpacked[:, output]
        if place % 2:
            torch.bitwise_right_shift(pair, 4, out=part)
        else:
            torch.bitwise_and(pair, 15, out=part)
    return unpacked.flatten(0, 1).view(torch.int8).sub_(_OFFSET)


def unpack_down(words: Tensor) -> Tensor:
    """Return int8 [8 · rows, columns] from int32 [rows, columns]: a word has numbers below each other."""
    return unpack_nibbles(words.t()).t()


def widen_blocks(blocks: Tensor, scales: Tensor) -> Tensor:
    """Return bfloat16 [rows, inputs] from bytes [rows, groups, bytes] and the byte of each group's scale.

    It holds each such number exactly, up to LARGEST_SCALE.
    """
    pairs = _PAIRS.index_select(0, blocks.flatten().int())
    values = pairs.view(torch.bfloat16).view(*scales.shape, -1)
    values *= _FACTORS.index_select(0, scales.flatten().int()).view(*scales.shape, 1)
    return values.flatten(1)
