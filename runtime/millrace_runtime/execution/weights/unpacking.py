"""Unpacks the words of quantised checkpoints: from int32 with eight numbers each to one number an item. Pure.

Numbers of 4 bits are stored as 0 to 15. They are returned less 8, and so are zero points, so that their
difference is the same.
"""

import torch
from torch import Tensor

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output of each four bits of AWQ's word, the lowest first (AutoAWQ, `packing_utils.py`)."""
_OFFSET = 8


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
