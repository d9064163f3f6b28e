"""Products with quantised weights on GPUs, which are widened in registers: few rows wait for the bytes."""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from millrace_kernels.linear.format import Format, Number
from millrace_kernels.linear.gpu.choice import FP8_CAPABILITY
from millrace_kernels.linear.gpu.matrix import GpuMatrix, unit_of
from millrace_kernels.linear.gpu.triton_unit import multiply_units

SUM_COLUMNS = 1024
LEAST_UNITS = 4
"""Of a program that has a part of the inputs: fewer don't fill its pipeline."""
FEWEST_ROWS, SOME_ROWS = 16, 256
"""Up to so many rows have tiles of their own. More rows have enough tiles, if few outputs each."""
TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}


class Tile(NamedTuple):
    """The part of a product that a program multiplies at once."""

    rows: int
    columns: int
    warps: int
    stages: int
    programs: int = 1
    """So many are wanted for up to `rows` rows: a large GPU has 132 processors, and several programs on each
    hide each other's waiting. Where there are fewer, inputs are divided among them."""


def choose_tile(form: Format, dtype: torch.dtype, num_rows: int) -> Tile:
    """Return the tile for so many rows."""
    if num_rows <= FEWEST_ROWS:
        return Tile(16, 64, 4, 4 if dtype == torch.bfloat16 else 2, 512)
    if num_rows <= SOME_ROWS or dtype == torch.float32:
        return Tile(64, 64, 4, 3 if dtype == torch.bfloat16 else 1, 256)
    return Tile(128, 128, 8, 2 if form.number is Number.INT4 else 3)


def choose_unit(form: Format, tile: Tile) -> int:
    """Return the inputs of a step: those that lie together, or fewer where shared memory bounds them."""
    unit = unit_of(form.group)
    return min(unit, 64) if tile.columns > 64 and form.number is not Number.INT4 else unit


def count_parts(tile: Tile, outputs: int, units: int) -> int:
    """Return among how many programs the inputs are divided: by no number of rows, as each count compiles."""
    return max(1, min(tile.programs // -(-outputs // tile.columns), units // LEAST_UNITS))


@triton.jit  # type: ignore[untyped-decorator]  # triton ships no types
def _finish(  # noqa: PLR0917
    total: tl.tensor,
    is_wanted: tl.tensor,
    columns: tl.tensor,
    where: tl.tensor,
    bias_ptr: tl.tensor,
    residual_ptr: tl.tensor,
    HAS_BIAS: tl.constexpr,  # noqa: N803
    HAS_RESIDUAL: tl.constexpr,  # noqa: N803
) -> tl.tensor:
    """Add bias and residual before anything is rounded."""
    if HAS_BIAS:
        total += tl.load(bias_ptr + columns, mask=is_wanted, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        total += tl.load(residual_ptr + where, mask=is_wanted, other=0.0).to(tl.float32)
    return total


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def _widened_kernel(  # noqa: PLR0917
    x_ptr: tl.tensor,
    codes_ptr: tl.tensor,
    scales_ptr: tl.tensor,
    zeros_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    residual_ptr: tl.tensor,
    output_ptr: tl.tensor,
    x_stride: tl.tensor,
    num_rows: tl.tensor,
    NUMBER: tl.constexpr,  # noqa: N803
    INPUTS: tl.constexpr,  # noqa: N803
    OUTPUTS: tl.constexpr,  # noqa: N803
    UNIT: tl.constexpr,  # noqa: N803
    GROUP: tl.constexpr,  # noqa: N803
    UNIT_STRIDE: tl.constexpr,  # noqa: N803
    OUTPUT_STRIDE: tl.constexpr,  # noqa: N803
    PARTS: tl.constexpr,  # noqa: N803
    HAS_ZEROS: tl.constexpr,  # noqa: N803
    HAS_BIAS: tl.constexpr,  # noqa: N803
    HAS_RESIDUAL: tl.constexpr,  # noqa: N803
    HAS_FP8: tl.constexpr,  # noqa: N803
    DOT: tl.constexpr,  # noqa: N803
    BLOCK_ROWS: tl.constexpr,  # noqa: N803
    BLOCK_COLUMNS: tl.constexpr,  # noqa: N803
) -> None:
    rows = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    columns = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    part = tl.program_id(2)
    is_row, is_column = rows < num_rows, columns < OUTPUTS
    UNITS: tl.constexpr = (INPUTS + UNIT - 1) // UNIT  # noqa: N806
    SHARE: tl.constexpr = (UNITS + PARTS - 1) // PARTS  # noqa: N806
    # A matrix may have more bytes than 32 bits count.
    codes = codes_ptr + columns.to(tl.int64) * OUTPUT_STRIDE + part.to(tl.int64) * (SHARE * UNIT_STRIDE)
    total = multiply_units(
        x_ptr + rows * x_stride, is_row,
        codes, scales_ptr + columns, zeros_ptr + columns if HAS_ZEROS else codes, is_column,
        part * SHARE, tl.minimum((part + 1) * SHARE, UNITS),
        tl.zeros((BLOCK_COLUMNS, BLOCK_ROWS), dtype=tl.float32),
        NUMBER, INPUTS, OUTPUTS, UNIT, GROUP, UNIT_STRIDE, HAS_ZEROS, HAS_FP8, DOT,
    )  # fmt: skip
    wanted = is_column[:, None] & is_row[None, :]
    where = rows[None, :] * OUTPUTS + columns[:, None]
    if PARTS == 1:
        total = _finish(
            total, wanted, columns[:, None], where, bias_ptr, residual_ptr, HAS_BIAS, HAS_RESIDUAL
        )
    else:
        where += part.to(tl.int64) * num_rows * OUTPUTS
    tl.store(output_ptr + where, total.to(output_ptr.dtype.element_ty), mask=wanted)


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def _add_parts_kernel(  # noqa: PLR0917
    parts_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    residual_ptr: tl.tensor,
    output_ptr: tl.tensor,
    num_rows: tl.tensor,
    OUTPUTS: tl.constexpr,  # noqa: N803
    PARTS: tl.constexpr,  # noqa: N803
    HAS_BIAS: tl.constexpr,  # noqa: N803
    HAS_RESIDUAL: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column, where = columns < OUTPUTS, row * OUTPUTS + columns
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for part in range(PARTS):
        parts = parts_ptr + part * num_rows.to(tl.int64) * OUTPUTS
        total += tl.load(parts + where, mask=is_column, other=0.0)
    total = _finish(total, is_column, columns, where, bias_ptr, residual_ptr, HAS_BIAS, HAS_RESIDUAL)
    tl.store(output_ptr + where, total.to(output_ptr.dtype.element_ty), mask=is_column)


def widened_product(
    x: Tensor,
    matrix: GpuMatrix,
    residual: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return x·Wᵀ + b [rows, outputs] in x's type or in `dtype`; with a residual, in its place, plus it.

    Launch the kernels; x [rows, inputs] in the columns' order, rows contiguous, residual [rows, outputs]
    contiguous.
    """
    num_rows, outputs = x.shape[0], matrix.outputs
    output = residual
    if output is None:
        output = torch.empty((num_rows, outputs), dtype=dtype or x.dtype, device=x.device)
    tile = choose_tile(matrix.form, x.dtype, num_rows)
    constants = describe(matrix, x.dtype, choose_unit(matrix.form, tile))
    parts = count_parts(tile, outputs, triton.cdiv(matrix.inputs, constants["UNIT"]))
    written = output
    if parts > 1:
        written = torch.empty((parts, num_rows, outputs), device=x.device)
    added = {"HAS_BIAS": matrix.bias is not None, "HAS_RESIDUAL": residual is not None}
    grid = (triton.cdiv(num_rows, tile.rows), triton.cdiv(outputs, tile.columns), parts)
    _widened_kernel[grid](
        x, bytes_of(matrix), matrix.scales, matrix.zeros, matrix.bias, residual, written,
        x.stride(0), num_rows, OUTPUTS=outputs, PARTS=parts,
        BLOCK_ROWS=tile.rows, BLOCK_COLUMNS=tile.columns, **constants, **added,
        num_warps=tile.warps, num_stages=tile.stages, enable_fp_fusion=False,
    )  # fmt: skip
    if parts > 1:
        _add_parts_kernel[(num_rows, triton.cdiv(outputs, SUM_COLUMNS))](
            written, matrix.bias, residual, output, num_rows,
            OUTPUTS=outputs, PARTS=parts, BLOCK=SUM_COLUMNS, **added, enable_fp_fusion=False,
        )  # fmt: skip
    return output


def bytes_of(matrix: GpuMatrix) -> Tensor:
    """Return the codes as Triton loads them: it has no 8-bit floats on older devices."""
    return matrix.codes.view(torch.uint8) if matrix.form.number is Number.FP8 else matrix.codes


def describe(matrix: GpuMatrix, dtype: torch.dtype, unit: int) -> dict[str, Any]:
    """Return a kernel's constants: the matrix's form and strides, and the type of the products."""
    is_int4, is_interpreted = matrix.form.number is Number.INT4, bool(triton.knobs.runtime.interpret)
    return {
        "NUMBER": matrix.form.number.value,
        "INPUTS": matrix.inputs,
        "UNIT": unit,
        "GROUP": matrix.form.group or matrix.inputs,
        "UNIT_STRIDE": matrix.codes.stride(0) if is_int4 else unit,
        "OUTPUT_STRIDE": matrix.codes.stride(1) if is_int4 else matrix.codes.stride(0),
        "HAS_ZEROS": matrix.zeros is not None,
        "HAS_FP8": matrix.capability >= FP8_CAPABILITY and not is_interpreted,
        # The interpreter keeps bfloat16 as raw bits, which its products would multiply.
        "DOT": tl.float32 if is_interpreted else TYPES[dtype],
    }
