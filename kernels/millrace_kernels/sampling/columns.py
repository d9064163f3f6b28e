"""The parameters of a step's draws, as columns: the reference and the native kernel read the same bytes."""

import math
import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

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
        ("top_k", "i4"),
        ("share", "i8"),
        ("seed", "i8"),
        ("least", "i8"),
    ]
)
_LAYOUT = struct.Struct("=fffiqqq")
_SLOT, _NUM_PROMPT, _POSITION, _MASK = range(4)


class Draws(NamedTuple):
    """A step's rows, as in sampling.h."""

    parameters: NDArray[np.void]
    """PARAMETERS [rows]"""
    places: NDArray[np.int64]
    """[rows, 4]: slot, number of prompt tokens, position of the drawn token, row of its mask or NO_MASK."""

    @property
    def slot(self) -> NDArray[np.int64]:
        """The slot whose known tokens the penalties count."""
        return self.places[:, _SLOT]

    @property
    def num_prompt(self) -> NDArray[np.int64]:
        """The first position that the penalties count."""
        return self.places[:, _NUM_PROMPT]

    @property
    def position(self) -> NDArray[np.int64]:
        """The position of the drawn token."""
        return self.places[:, _POSITION]

    @property
    def mask(self) -> NDArray[np.int64]:
        """The number of the row's mask, or NO_MASK."""
        return self.places[:, _MASK]

    def check_masks(self, masks: Tensor | None) -> None:
        """Assert that the mask of every row exists."""
        needed = int(self.mask.max(initial=NO_MASK)) + 1
        assert needed <= (0 if masks is None else masks.shape[0]), "a row names a mask that does not exist"


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
) -> bytes:
    """Return one row of PARAMETERS. A temperature below the smallest one means greedy."""
    inverse = 0.0
    if temperature >= LEAST_TEMPERATURE:
        inverse = math.log2(math.e) / min(temperature, GREATEST_TEMPERATURE)
    share = round(min(max(top_p, 0.0), 1.0) * WHOLE)
    least = round(min(max(min_p, 0.0), 1.0) * GREATEST_WEIGHT)
    return _LAYOUT.pack(inverse, frequency, presence, min(top_k, 2**31 - 1), share, to_signed(seed), least)


def to_signed(value: int) -> int:
    """Return the int64 with the same low 64 bits."""
    value &= 0xFFFFFFFFFFFFFFFF
    return value - (1 << 64) if value >> 63 else value
