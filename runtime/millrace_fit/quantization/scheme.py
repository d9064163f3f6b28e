"""The scheme in which a checkpoint keeps a quantised matrix, and the tensors that one matrix has."""

import enum
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

WORD_NIBBLES: Final = 8
"""Numbers of 4 bits in a word of 32."""
_FLOATS: Final = ("F32", "BF16", "F16")
_PLAIN_SCALES: Final = ("weight_scale", "weight_scale_inv")
"""Names of the same scales: writers of one method differ."""


class Kind(enum.StrEnum):
    """How a weight is written."""

    FP8 = "fp8"
    """Floats of 8 bits, F8_E4M3."""
    INT8 = "int8"
    """Integers of 8 bits, without zero points."""
    INT4 = "int4"
    """Integers of 4 bits, eight in a word."""
    MXFP4 = "mxfp4"
    """Floats of 4 bits, E2M1, times a power of two for each 32 inputs."""


class Packing(enum.StrEnum):
    """Where the numbers of a matrix lie."""

    PLAIN = "plain"
    """`weight` [outputs, inputs], a number in each item."""
    COMPRESSED = "compressed-tensors"
    """`weight_packed` [outputs, inputs / 8], plus 8, the first number in the lowest bits."""
    AWQ = "awq"
    """`qweight` [inputs, outputs / 8], with the numbers of a word in the order 0, 2, 4, 6, 1, 3, 5, 7."""
    GPTQ = "gptq"
    """`qweight` [inputs / 8, outputs], the first number in the lowest bits. Zero points are stored less 1."""
    GPTQ_V2 = "gptq_v2"
    """The same, with zero points as they are."""
    BLOCKS = "blocks"
    """`weight_blocks` [outputs, inputs / 32, 16], two numbers in a byte, the first in the lowest bits."""


class StoredPart(NamedTuple):
    """One tensor of a quantised matrix, as its file's header has it."""

    ending: str
    """The end of its name, after the matrix's."""
    shapes: tuple[tuple[int, ...], ...]
    """Those that mean the same."""
    types: tuple[str, ...]
    """The types that it may have, by their names in headers."""
    is_required: bool = True
    """Whether the matrix means nothing without it."""
    is_read: bool = True
    """Whether a replica uses it."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a matrix's numbers are rounded and stored."""

    kind: Kind
    packing: Packing
    rows: int | None = 1
    """Outputs that share a scale; None: all."""
    group: int | None = None
    """Inputs that share a scale; None: all."""
    has_zeros: bool = False
    """Whether each group has a zero point."""
    is_ordered: bool = False
    """Whether a tensor says the group of each input, in any order."""
    scale: str = "weight_scale"
    """The ending of the scales' name."""
    are_inputs_rounded: bool = field(default=False, compare=False)
    """Whether its author rounded activations too, so that a product may."""

    @property
    def is_widened(self) -> bool:
        """Whether the loader makes plain numbers of the matrix: no kernel multiplies the stored ones."""
        return self.kind is Kind.MXFP4

    @property
    def keeps_order(self) -> bool:
        """Whether a matrix keeps the inputs' order: in one group for all, none is needed."""
        return self.is_ordered and self.group is not None

    def list_parts(self, outputs: int, inputs: int) -> Iterator[StoredPart]:
        """Yield the tensors of a matrix [outputs, inputs]."""
        match self.packing:
            case Packing.PLAIN:
                yield from self._list_plain(outputs, inputs)
            case Packing.COMPRESSED:
                yield from self._list_compressed(outputs, inputs)
            case Packing.BLOCKS:
                yield from self._list_blocks(outputs, inputs)
            case _:
                yield from self._list_words(outputs, inputs)

    @property
    def marks(self) -> tuple[str, ...]:
        """The endings of tensors that only a matrix of this kind of scheme has."""
        match self.packing:
            case Packing.PLAIN:
                return _PLAIN_SCALES
            case Packing.COMPRESSED:
                return "weight_packed", "weight_scale"
            case Packing.BLOCKS:
                return "weight_blocks", "weight_scales"
        return "qweight", "qzeros", "scales"

    def rename_scale(self, found: Collection[str]) -> "Scheme":
        """Return the scheme with the name that the scales have, of the endings that were found."""
        others = [name for name in _PLAIN_SCALES if name in found]
        if self.packing is not Packing.PLAIN or not others or self.scale in others:
            return self
        return replace(self, scale=others[0])

    def count_groups(self, inputs: int) -> int:
        """Return the groups of a row."""
        return 1 if self.group is None else -(-inputs // self.group)

    def __str__(self) -> str:
        words = self.kind.upper()
        if self.group is not None:
            words += (
                f" in groups of {self.group}" if self.rows == 1 else f" in blocks of {self.rows}x{self.group}"
            )
        return f"{words} in any order" if self.is_ordered else words

    def _list_plain(self, outputs: int, inputs: int) -> Iterator[StoredPart]:
        yield StoredPart("weight", ((outputs, inputs),), ("F8_E4M3",) if self.kind is Kind.FP8 else ("I8",))
        yield StoredPart(self.scale, self._list_scale_shapes(outputs, inputs), _FLOATS)
        # Of activations, which a replica does not round, or rounds as it sees them.
        for ending in ("input_scale", "act_scale", "input_scale_ub", "activation_scale"):
            yield StoredPart(ending, ((), (1,), (1, 1)), _FLOATS, is_required=False, is_read=False)
        # Zeros, which old versions of compressed-tensors wrote for symmetric numbers too.
        for ending in ("input_zero_point", "weight_zero_point"):
            shapes = ((), (1,), (1, 1), (outputs, 1))
            yield StoredPart(ending, shapes, ("I8", "F8_E4M3"), is_required=False, is_read=False)

    def _list_scale_shapes(self, outputs: int, inputs: int) -> tuple[tuple[int, ...], ...]:
        if self.rows is None:
            return ((), (1,), (1, 1))
        groups = self.count_groups(inputs)
        blocks = -(-outputs // self.rows)
        if self.group is not None:
            return (blocks, groups), (blocks, 1, groups, 1)  # the second shape is ModelOpt's
        return (blocks, 1), (blocks,)

    def _list_compressed(self, outputs: int, inputs: int) -> Iterator[StoredPart]:
        groups, numbers = self.count_groups(inputs), 8 if self.kind is Kind.INT4 else 4
        yield StoredPart("weight_packed", ((outputs, -(-inputs // numbers)),), ("I32",))
        yield StoredPart("weight_scale", self._list_scale_shapes(outputs, inputs), _FLOATS)
        yield StoredPart("weight_shape", ((2,),), ("I64", "I32"), is_required=False, is_read=False)
        if self.has_zeros:
            yield StoredPart("weight_zero_point", ((-(-outputs // numbers), groups),), ("I32",))
        if self.is_ordered:
            yield StoredPart("weight_g_idx", ((inputs,),), ("I32", "I64"))

    def _list_blocks(self, outputs: int, inputs: int) -> Iterator[StoredPart]:
        groups, num_bytes = self.count_groups(inputs), (self.group or inputs) // 2
        yield StoredPart("weight_blocks", ((outputs, groups, num_bytes),), ("U8",))
        yield StoredPart(self.scale, ((outputs, groups),), ("U8",))

    def _list_words(self, outputs: int, inputs: int) -> Iterator[StoredPart]:
        groups, words = self.count_groups(inputs), -(-outputs // WORD_NIBBLES)
        is_awq = self.packing is Packing.AWQ
        shape = (inputs, words) if is_awq else (-(-inputs // WORD_NIBBLES), outputs)
        yield StoredPart("qweight", (shape,), ("I32",))
        yield StoredPart("qzeros", ((groups, words),), ("I32",))
        yield StoredPart("scales", ((groups, outputs),), _FLOATS)
        if not is_awq:
            yield StoredPart(
                "g_idx", ((inputs,),), ("I32", "I64"), is_required=self.is_ordered, is_read=self.is_ordered
            )
            # Old writers gave every matrix a bias, of zeros where the model has none.
            yield StoredPart("bias", ((outputs,),), _FLOATS, is_required=False, is_read=False)
