"""A quantised weight widened at once on GPUs, some outputs at a time: for products of many rows."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from millrace_kernels.linear.gpu.matrix import GpuMatrix, unit_of
from millrace_kernels.linear.gpu.triton_unit import read_fp8
from millrace_kernels.linear.gpu.triton_widened import bytes_of, describe

COLUMNS = 32
"""Outputs of a program."""


@triton.jit(do_not_specialize=["begin", "end"])  # type: ignore[untyped-decorator]  # triton ships no types
def _widen_kernel(  # noqa: PLR0917
    codes_ptr: tl.tensor,
    scales_ptr: tl.tensor,
    zeros_ptr: tl.tensor,
    output_ptr: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    NUMBER: tl.constexpr,  # noqa: N803
    INPUTS: tl.constexpr,  # noqa: N803
    OUTPUTS: tl.constexpr,  # noqa: N803
    UNIT: tl.constexpr,  # noqa: N803
    GROUP: tl.constexpr,  # noqa: N803
    UNIT_STRIDE: tl.constexpr,  # noqa: N803
    OUTPUT_STRIDE: tl.constexpr,  # noqa: N803
    HAS_ZEROS: tl.constexpr,  # noqa: N803
    HAS_FP8: tl.constexpr,  # noqa: N803
    DOT: tl.constexpr,  # noqa: ARG001, N803  the products' type
    BLOCK_COLUMNS: tl.constexpr,  # noqa: N803
) -> None:
    unit = tl.program_id(1)
    columns = begin + tl.program_id(0) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    is_column, group = columns < end, unit * UNIT // GROUP
    scales = tl.load(scales_ptr + group * OUTPUTS + columns, mask=is_column, other=0.0)[:, None]
    zeros = tl.zeros((BLOCK_COLUMNS, 1), dtype=tl.float32)
    if HAS_ZEROS:
        its = tl.load(zeros_ptr + group * OUTPUTS + columns, mask=is_column, other=0)
        zeros += its[:, None].to(tl.float32)
    codes = codes_ptr + (columns.to(tl.int64) * OUTPUT_STRIDE + unit.to(tl.int64) * UNIT_STRIDE)[:, None]
    lines = output_ptr + ((columns - begin).to(tl.int64) * INPUTS)[:, None]
    if NUMBER == "int4":
        places = tl.arange(0, UNIT // 2)
        both = tl.load(codes + places[None, :], mask=is_column[:, None], other=0)
        for half in tl.static_range(2):
            inputs = unit * UNIT + half * (UNIT // 2) + places
            numbers = (both & -16 if half else both << 4).to(tl.float32) - 16.0 * zeros
            wide = (numbers * scales).to(output_ptr.dtype.element_ty)
            tl.store(lines + inputs[None, :], wide, mask=is_column[:, None] & (inputs < INPUTS)[None, :])
    else:
        inputs = unit * UNIT + tl.arange(0, UNIT)
        wanted = is_column[:, None] & (inputs < INPUTS)[None, :]
        eight = tl.load(codes + tl.arange(0, UNIT)[None, :], mask=wanted, other=0)
        numbers = read_fp8(eight, tl.float32, HAS_FP8) if NUMBER == "fp8" else eight.to(tl.float32) - zeros
        tl.store(lines + inputs[None, :], (numbers * scales).to(output_ptr.dtype.element_ty), mask=wanted)


def widen(matrix: GpuMatrix, rows: slice, dtype: torch.dtype) -> Tensor:
    """Launch the kernel: return outputs `rows` of the weight, [outputs, inputs] in `dtype`, rounded once."""
    unit, count = unit_of(matrix.form.group), rows.stop - rows.start
    output = torch.empty((count, matrix.inputs), dtype=dtype, device=matrix.codes.device)
    _widen_kernel[(triton.cdiv(count, COLUMNS), triton.cdiv(matrix.inputs, unit))](
        bytes_of(matrix), matrix.scales, matrix.zeros, output, rows.start, rows.stop,
        OUTPUTS=matrix.outputs, BLOCK_COLUMNS=COLUMNS, **describe(matrix, dtype, unit),
        enable_fp_fusion=False,
    )  # fmt: skip
    return output
