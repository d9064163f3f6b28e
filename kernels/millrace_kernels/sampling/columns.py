"""The parameters of a step's draws, as columns: the reference and the native kernel read the same bytes."""

import math
import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from millrace_kernels.sampling.state import SlotState

NO_FAULT, NOT_FINITE, NOTHING_ALLOWED = 0, 1, 2
NO_MASK = -1
WHOLE = 1 << 32
"""The share of 1, in units of 2^-32."""
GREATEST_WEIGHT = 1 << 30
"""The weight of the most likely token: 2^31 tokens sum within int64."""
LEAST_TEMPERATURE, GREATEST_TEMPERATURE = 1e-6, 1e6
PARAMETERS = np.dtype(
    [
        ("inverse_temperature", "f4"),
        ("frequency", "f4"),
        ("presence", "f4"),
        ("repetition", "f4"),
        ("top_k", "i4"),
        ("has_fixed_mask", "i4"),
        ("share", "i8"),
        ("seed", "i8"),
        ("least", "i8"),
    ]
)
_LAYOUT = struct.Struct("=ffffiiqqq")
_SLOT, _NUM_PROMPT, _POSITION, _MASK, _BIAS_BEGIN, _BIAS_END = range(6)
NUM_PLACES = 6
"""Columns of a draw's places."""


class Draws(NamedTuple):
    """A step's rows, as in sampling.h."""

    parameters: NDArray[np.void]
    """PARAMETERS [rows]"""
    places: NDArray[np.int64]
    """[rows, NUM_PLACES]: slot, number of prompt tokens, position of the drawn token, row of its mask or
    NO_MASK, and the range of its slot's biases."""

    @property
    def slot(self) -> NDArray[np.int64]:
        """The slot whose known tokens the penalties count, and whose biases and fixed mask it has."""
        return self.places[:, _SLOT]

    @property
    def num_prompt(self) -> NDArray[np.int64]:
        """The first position that frequency and presence count."""
        return self.places[:, _NUM_PROMPT]

    @property
    def position(self) -> NDArray[np.int64]:
        """The position of the drawn token."""
        return self.places[:, _POSITION]

    @property
    def mask(self) -> NDArray[np.int64]:
        """The number of the row's mask, or NO_MASK."""
        return self.places[:, _MASK]

    @property
    def fixed_mask(self) -> NDArray[np.int64]:
        """The number of the row's fixed mask, or NO_MASK."""
        return np.where(self.parameters["has_fixed_mask"] != 0, self.slot, NO_MASK)

    @property
    def bias_begin(self) -> NDArray[np.int64]:
        """The first of its slot's biases that the row adds."""
        return self.places[:, _BIAS_BEGIN]

    @property
    def bias_end(self) -> NDArray[np.int64]:
        """The end of these."""
        return self.places[:, _BIAS_END]

    def check(self, state: SlotState, masks: Tensor | None) -> None:
        """Assert that the mask and the biases of every row exist."""
        needed = int(self.mask.max(initial=NO_MASK)) + 1
        assert needed <= (0 if masks is None else masks.shape[0]), "a row names a mask that does not exist"
        last = int(self.bias_end.max(initial=0))
        assert last <= state.biases.shape[1], "a row names a bias that does not exist"


class Sampled(NamedTuple):
    """Drawn tokens, and the faults of rows without one."""

    numbers: Tensor
    """int64 [2, rows]: tokens, then faults. One tensor, so that one copy transfers them together."""

    @property
    def tokens(self) -> Tensor:
        """[rows]; 0 in a row with a fault."""
        return self.numbers[0]

    @property
    def faults(self) -> Tensor:
        """[rows]: NO_FAULT, NOT_FINITE (the logits) or NOTHING_ALLOWED (by mask)."""
        return self.numbers[1]


def pack_parameters(
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int,
    frequency: float,
    presence: float,
    repetition: float,
    has_fixed_mask: bool,
) -> bytes:
    """Return one row of PARAMETERS. A temperature below the smallest one means greedy."""
    inverse = 0.0
    if temperature >= LEAST_TEMPERATURE:
        inverse = math.log2(math.e) / min(temperature, GREATEST_TEMPERATURE)
    share = round(min(max(top_p, 0.0), 1.0) * WHOLE)
    least = round(min(max(min_p, 0.0), 1.0) * GREATEST_WEIGHT)
    changes = (inverse, frequency, presence, repetition)
    return _LAYOUT.pack(*changes, min(top_k, 2**31 - 1), has_fixed_mask, share, to_signed(seed), least)


def to_signed(value: int) -> int:
    """Return the int64 with the same low 64 bits."""
    value &= 0xFFFFFFFFFFFFFFFF
    return value - (1 << 64) if value >> 63 else value
