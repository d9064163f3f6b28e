"""The tables on the device with each slot's known tokens, biases and fixed mask, which draws read."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class SlotState(NamedTuple):
    """Tables with a row for each slot."""

    tokens: Tensor
    """int64 [slots, length]: the known tokens, and a place for the drawn one."""
    biases: Tensor
    """int64 [slots, entries], as `pack_bias` returns them. A draw adds a range of its slot's entries."""
    masks: Tensor
    """int32 [slots, words], contiguous: the slots' fixed masks. Bit i of word w allows token 32 w + i."""

    @classmethod
    def allocate(
        cls, num_slots: int, length: int, vocabulary: int, num_biases: int, device: torch.device
    ) -> "SlotState":
        """Return zeros."""
        return cls(
            torch.zeros((num_slots, length), dtype=torch.int64, device=device),
            torch.zeros((num_slots, num_biases), dtype=torch.int64, device=device),
            torch.zeros((num_slots, -(-vocabulary // 32)), dtype=torch.int32, device=device),
        )


def pack_bias(bias: Mapping[int, float]) -> NDArray[np.int64]:
    """Return an entry for each id: the id in the high half, and in the low one its float32's bits."""
    ids = np.fromiter(bias.keys(), dtype=np.int64, count=len(bias))
    values = np.fromiter(bias.values(), dtype=np.float64, count=len(bias)).astype(np.float32)
    return ids << 32 | values.view(np.uint32).astype(np.int64)


def unpack_bias(entries: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ids and float32 values of contiguous entries."""
    halves = entries.view(torch.int32).view(-1, 2)
    return halves[:, 1].long(), halves[:, 0].contiguous().view(torch.float32)
