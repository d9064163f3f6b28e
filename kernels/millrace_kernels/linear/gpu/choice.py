"""Which product a GPU computes with a quantised matrix. Pure: README.md has the reasons."""

import enum
from typing import Final, NamedTuple

import torch

from millrace_kernels.linear.format import Format, Number

FEW_ROWS: Final = 64
"""So many rows wait for the weights, not for the multiplication: they keep their inputs as they are."""
WIDENED_ROWS: Final = 1024
"""From more rows on, it is faster to widen the weights once than in each program. Reckoned, not measured:
for M rows a whole widening takes 545 / M of the product's time on an H100, and widening in it about a half.
"""
FP8_CAPABILITY: Final = (8, 9)
"""Of GPUs that multiply 8-bit floats."""


class Product(enum.Enum):
    """A way to multiply."""

    DIRECT = "widened in the product"
    """Exact but for the order of its float32 sums."""
    WIDENED = "widened at once, and then a dense product"
    """Weights are rounded to the model's type."""
    SCALED = "torch's product of 8-bit floats"
    """Inputs are rounded to 8-bit floats, with a scale for each row."""
    INTEGERS = "torch's product of integers"
    """Inputs are rounded to 8-bit integers, with a scale for each row."""


class Capability(NamedTuple):
    """The version of a GPU's instruction set: its compute capability."""

    major: int
    minor: int


def choose_product(  # noqa: PLR0917  what the choice hangs on, and no more
    form: Format,
    outputs: int,
    inputs: int,
    rows: int,
    dtype: torch.dtype,
    capability: Capability,
    *,
    may_round: bool,
) -> Product:
    """Return the product of `rows` rows in `dtype` with a matrix of the form and shape.

    `may_round` says whether the checkpoint's author rounded activations too.
    """
    if rows <= FEW_ROWS:
        return Product.DIRECT
    if may_round and dtype == torch.bfloat16:
        multiplies_fp8 = form.number is Number.FP8 and capability >= FP8_CAPABILITY
        if multiplies_fp8 and form.group is None and outputs % 16 == inputs % 16 == 0:
            return Product.SCALED
        if form.number is Number.INT8 and form.group is None and outputs % 8 == inputs % 8 == 0:
            return Product.INTEGERS
    return Product.WIDENED if rows > WIDENED_ROWS else Product.DIRECT
