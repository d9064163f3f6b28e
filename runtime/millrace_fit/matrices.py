"""A worker's matrices, and the bytes of each in memory: rounded by the loader, or as stored."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from millrace_fit.errors import ArchitectureError
from millrace_fit.module_schemes import ModuleSchemes
from millrace_fit.modules import GROUP, Module, Part, list_layer, list_outer
from millrace_fit.quantization.groups import can_cut, cut_group, fit_strips
from millrace_fit.quantization.scheme import Kind, Scheme
from millrace_fit.settings import Device
from millrace_fit.shape import DecoderShape
from millrace_fit.shard import CANNOT_SHARE, Shard

LANES: Final = 16
"""Outputs of a strip on CPUs. The last strip is padded with zeros (`native/weights/strips.py`)."""
_SCALE_BYTES = _FLOAT_BYTES = 4
"""Of a scale in float32, and of any such number."""
_ORDER_BYTES, _GPU_ORDER_BYTES = 4, 8
"""Of an input's place in another order."""
_FEW_ROWS_ON_GPUS: Final = 64
"""Up to so many, a product takes no memory (`linear/gpu/choice.py`)."""
_WIDENED_ROWS_ON_GPUS: Final = 1024
"""Up to so many, weights are widened in registers alone (`linear/gpu/choice.py`)."""
_SLICE_BYTES: Final = 128 << 20
"""Of the outputs that are widened or summed at once, at most (`linear/gpu/product.py`)."""
_UNIT_ON_GPUS: Final = 128
"""Inputs whose numbers of 4 bits lie together on GPUs, at most (`linear/gpu/matrix.py`)."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight [outputs, inputs], and the count of such weights."""

    outputs: int
    inputs: int
    count: int
    has_bias: bool = False
    is_gated: bool = False
    """Whether the outputs are those of `gate` and `up`, each in strips of its own."""
    is_table: bool = False
    """Whether it is an embedding or a head, which have 8 bits if the others have 4."""
    is_rounded: bool = True
    """Whether it has another format if weights are rounded: not a router."""
    scheme: Scheme | None = None
    """How the checkpoint quantises it; None: not at all."""
    group: int | None = None
    """Inputs that share a scale, if it is quantised; None: all."""


def list_matrices(shape: DecoderShape, shard: Shard, quantized: Sequence[ModuleSchemes]) -> Iterator[Matrix]:
    """Yield a worker's matrices. `quantized` says which ones a checkpoint has quantised, and how.

    Raises ArchitectureError if so many workers can't share the model.
    """
    for kind, module, count in count_modules(shape):
        if module.columns is None:
            continue
        left = count
        for one in quantized:
            if (one.kind, one.role) == (kind, module.role):
                left -= one.count
                yield from _list_quantized(module, shard, one)
        if left > 0:
            yield _make(module, module.parts, shard, None, left)


def _list_quantized(module: Module, shard: Shard, quantized: ModuleSchemes) -> Iterator[Matrix]:
    """Yield one matrix of all parts if they have one scheme, else one for each part."""
    schemes, count = quantized.schemes, quantized.count
    if len(set(schemes)) == 1:
        yield _make(module, module.parts, shard, schemes[0], count)
        return
    for part, scheme in zip(module.parts, schemes, strict=True):
        yield _make(module, (part,), shard, scheme, count)


def _make(module: Module, parts: Sequence[Part], shard: Shard, scheme: Scheme | None, count: int) -> Matrix:
    assert module.columns is not None, "a vector is no matrix"
    columns, rows = module.columns.cut(shard), [part.rows.cut(shard) for part in parts]
    if scheme is not None and not all(can_cut(scheme, one, columns) for one in rows):
        raise ArchitectureError(f"weights in {scheme} {CANNOT_SHARE} {shard.count} workers")
    return Matrix(
        sum(one.size for one in rows),
        columns.size,
        count * module.count,
        has_bias=module.adds_bias(shard),
        is_gated=module.is_gated,
        is_table=module.is_table,
        is_rounded=module.is_rounded,
        scheme=scheme,
        group=None if scheme is None else cut_group(scheme, columns),
    )


def count_modules(shape: DecoderShape) -> Iterator[tuple[int | None, Module, int]]:
    """Yield each kind of module, with its layers' kind and the count of layers that have it."""
    for module in list_outer(shape):
        yield None, module, 1
    for kind, (layer, count) in enumerate(shape.counted):
        for module in list_layer(shape, layer):
            yield kind, module, count


def vector_bytes(shape: DecoderShape, shard: Shard, item_bytes: int) -> int:
    """Return the bytes of a worker's norms and sinks. `item_bytes` is the served type's."""
    return sum(
        count * part.rows.cut(shard).size * (_FLOAT_BYTES if module.is_float else item_bytes)
        for _, module, count in count_modules(shape)
        if module.columns is None
        for part in module.parts
    )


def matrix_bytes(matrix: Matrix, weights: str, item_bytes: int, device: Device) -> int:
    """Return the bytes of one such matrix with its bias, on a GPU or with the native kernels of a CPU.

    `weights` is one of WEIGHTS, and `item_bytes` the served type's. If torch computes on a CPU, rounded
    weights take more.
    """
    scheme = matrix.scheme
    if device == "cuda":
        numbers = item_bytes * matrix.outputs * matrix.inputs
        stored = numbers if scheme is None else _gpu_bytes(matrix, scheme)
        return stored + item_bytes * matrix.outputs * matrix.has_bias
    strip = _strip_bytes(matrix, weights, item_bytes)
    strip, order = (strip, 0) if scheme is None else (_stored_strip_bytes(matrix, scheme), _ORDER_BYTES)
    order *= matrix.inputs * (scheme is not None and scheme.keeps_order)
    return strip * _count_strips(matrix) + order + 4 * matrix.outputs * matrix.has_bias


def _gpu_bytes(matrix: Matrix, scheme: Scheme) -> int:
    """Return the bytes of a quantised matrix on a GPU (`linear/gpu/matrix.py`)."""
    groups = matrix.outputs * _count_groups(matrix.group, matrix.inputs)
    beside = (
        groups * (_SCALE_BYTES + scheme.has_zeros) + _GPU_ORDER_BYTES * matrix.inputs * scheme.keeps_order
    )
    if scheme.kind is not Kind.INT4:
        return matrix.outputs * matrix.inputs + beside
    # The largest power of two that divides the group.
    unit = _UNIT_ON_GPUS if matrix.group is None else min(_UNIT_ON_GPUS, matrix.group & -matrix.group)
    return matrix.outputs * -(-matrix.inputs // unit) * unit // 2 + beside


def product_bytes(matrix: Matrix, num_rows: int, item_bytes: int) -> int:
    """Return the most bytes that a product on a GPU takes beside its inputs and outputs, for many rows.

    Inputs are arranged and rounded. Some outputs are widened at once, or have whole sums
    (`linear/gpu/product.py`). Which of these happens depends on the device and the checkpoint: the larger one
    counts.
    """
    scheme = matrix.scheme
    if scheme is None or num_rows <= _FEW_ROWS_ON_GPUS:
        return 0
    arranged = num_rows * matrix.inputs * item_bytes * scheme.keeps_order
    widened = item_bytes * matrix.outputs * matrix.inputs * (num_rows > _WIDENED_ROWS_ON_GPUS)
    rounded = 0
    if scheme.kind is not Kind.INT4 and scheme.group is None:
        sums = 4 * num_rows * matrix.outputs * (scheme.kind is Kind.INT8)
        rounded = num_rows * (matrix.inputs + _SCALE_BYTES) + min(_SLICE_BYTES, sums)
    return arranged + max(rounded, min(_SLICE_BYTES, widened))


def _count_groups(group: int | None, inputs: int) -> int:
    """Return the groups of an output."""
    return 1 if group is None else -(-inputs // group)


def _count_strips(matrix: Matrix) -> int:
    return 2 * -(-matrix.outputs // 2 // LANES) if matrix.is_gated else -(-matrix.outputs // LANES)


def _stored_strip_bytes(matrix: Matrix, scheme: Scheme) -> int:
    """Return the bytes of a strip in a checkpoint's own numbers (`linear/README.md`)."""
    scales = _SCALE_BYTES * LANES
    if scheme.kind is Kind.INT8:
        return -(-matrix.inputs // GROUP) * GROUP * LANES + scales
    group = fit_strips(scheme.kind, matrix.group)
    if group is None:
        return -(-matrix.inputs // 4) * 4 * LANES + scales
    numbers = group * LANES // (2 if scheme.kind is Kind.INT4 else 1)
    return _count_groups(group, matrix.inputs) * (scales + LANES * scheme.has_zeros + numbers)


def _strip_bytes(matrix: Matrix, weights: str, item_bytes: int) -> int:
    groups = -(-matrix.inputs // GROUP)
    if not matrix.is_rounded:
        return matrix.inputs * LANES * item_bytes
    if weights == "Int4" and not matrix.is_table:
        return groups * (2 * LANES + GROUP // 2 * LANES)
    if weights in {"Int8", "Int4"}:
        return groups * GROUP * LANES + 4 * LANES
    return matrix.inputs * LANES * item_bytes
