"""The format of a matrix in memory, as data: one model may mix them. README.md has the maths."""

import enum
from dataclasses import dataclass
from typing import ClassVar, Final

import torch

GROUP: Final = 32
"""Values with one scale: in every row of rounded inputs, and in INT4 weights that a packer rounds."""


class Number(enum.Enum):
    """How a weight is written."""

    DENSE = "dense"
    """In the model's own type, without scales."""
    FP8 = "fp8"
    """In 8 bits as a float: 1 sign, 4 of the exponent, 3 of the fraction (`torch.float8_e4m3fn`)."""
    INT8 = "int8"
    """As an integer of 8 bits."""
    INT4 = "int4"
    """As an integer of 4 bits, -8 to 7."""


@dataclass(frozen=True, slots=True)
class Format:
    """How a matrix's numbers and scales are written. Two matrices of one format can lie below each other."""

    number: Number
    group: int | None = None
    """Inputs that share a scale; None: one scale for each output, or none in DENSE."""
    has_zeros: bool = False
    """Whether each group has a zero point, an integer that is subtracted from its weights."""
    scales: torch.dtype = torch.float32
    """The type of the scales of groups."""

    DENSE: ClassVar["Format"]
    """Unrounded."""
    INT8: ClassVar["Format"]
    """As a packer rounds: one scale for each output. INT8 checkpoints have it too."""
    INT4: ClassVar["Format"]
    """As a packer rounds: a scale in bfloat16 for each output and 32 inputs."""
    OF_PACKERS: ClassVar[tuple["Format", ...]]
    """Those in which a packer can keep plain numbers."""

    @property
    def of_tables(self) -> "Format":
        """The format of embeddings and heads if a packer rounds other matrices to this one."""
        return Format.INT8 if self == Format.INT4 else self

    @property
    def rounds_inputs(self) -> bool:
        """Whether a product with it rounds its inputs to 8 bits on CPUs."""
        return self.number in {Number.INT8, Number.INT4}

    def __str__(self) -> str:
        group = "" if self.group is None else f" in groups of {self.group}"
        return f"{self.number.name}{group}{' with zero points' if self.has_zeros else ''}"


Format.DENSE = Format(Number.DENSE)
Format.INT8 = Format(Number.INT8)
Format.INT4 = Format(Number.INT4, GROUP, scales=torch.bfloat16)
Format.OF_PACKERS = (Format.DENSE, Format.INT8, Format.INT4)
