"""Inputs rounded to 8 bits on GPUs, and the scales of a product of integers."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from millrace_kernels.linear.gpu.reference import LARGEST_FP8, LARGEST_INT8, RoundedInputs
from millrace_kernels.linear.rounding import SMALLEST

COLUMNS = 1024


@triton.jit  # type: ignore[untyped-decorator]  # triton ships no types
def _round_to_fp8(values: tl.tensor) -> tl.tensor:
    """Return the e4m3 codes of float32 up to 448, to the nearest, ties to even, by integers alone.

    Devices before 8.9 have no such type, and Triton's interpreter rounds to it otherwise.
    """
    bits = values.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - 960
    # Below 2^-6 codes count steps of 2^-9: an addition that leaves no bit below them rounds to them.
    small = (tl.abs(values) * 512.0 + 8388608.0).to(tl.int32, bitcast=True) & 0xF
    return (tl.where(tl.abs(values) < 0.015625, small, normal) | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit  # type: ignore[untyped-decorator]
def _round_to_int8(values: tl.tensor) -> tl.tensor:
    """Return the nearest integers, ties to even: an addition that leaves no fraction rounds to them."""
    return ((values + 12582912.0) - 12582912.0).to(tl.int8)


@triton.jit  # type: ignore[untyped-decorator]
def _round_inputs_kernel(  # noqa: PLR0917
    x_ptr: tl.tensor,
    codes_ptr: tl.tensor,
    scales_ptr: tl.tensor,
    x_stride: tl.tensor,
    INPUTS: tl.constexpr,  # noqa: N803
    LARGEST: tl.constexpr,  # noqa: N803
    SMALLEST: tl.constexpr,  # noqa: N803
    IS_INT8: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    row, inputs = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    wanted = inputs < INPUTS
    x = tl.load(x_ptr + row * x_stride + inputs, mask=wanted, other=0.0).to(tl.float32)
    # A NaN differs from itself. It counts as infinity, because tl.max leaves it out.
    largest = tl.max(tl.where(x == x, tl.abs(x), float("inf")), 0)  # noqa: PLR0124
    is_known = largest < float("inf")
    is_kept = is_known & (largest >= SMALLEST)
    inverse = tl.where(is_kept, tl.div_rn(LARGEST, tl.where(is_kept, largest, 1.0)), 0.0)
    values = tl.where(is_known, x, 0.0) * inverse
    codes = _round_to_int8(values) if IS_INT8 else _round_to_fp8(values)
    tl.store(codes_ptr + row * INPUTS + inputs, codes, mask=wanted)
    scale = tl.where(is_known, tl.where(largest < SMALLEST, 0.0, tl.div_rn(largest, LARGEST)), float("nan"))
    tl.store(scales_ptr + row, scale)


@triton.jit(do_not_specialize=["eighths"])  # type: ignore[untyped-decorator]
def _scale_sums_kernel(  # noqa: PLR0917
    sums_ptr: tl.tensor,
    row_scales_ptr: tl.tensor,
    scales_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    output_ptr: tl.tensor,
    eighths: tl.tensor,
    OUTPUT_STRIDE: tl.constexpr,  # noqa: N803
    HAS_BIAS: tl.constexpr,  # noqa: N803
    HAS_RESIDUAL: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    # A multiple of 8 is known to be one: so loads are wide, for any number of columns.
    num_columns = eighths * 8
    is_column, where = columns < num_columns, row * OUTPUT_STRIDE + columns
    sums = tl.load(sums_ptr + row * num_columns + columns, mask=is_column, other=0).to(tl.float32)
    total = sums * tl.load(row_scales_ptr + row)
    total *= tl.load(scales_ptr + columns, mask=is_column, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias_ptr + columns, mask=is_column, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        total += tl.load(output_ptr + where, mask=is_column, other=0.0).to(tl.float32)
    tl.store(output_ptr + where, total.to(output_ptr.dtype.element_ty), mask=is_column)


def round_inputs(x: Tensor, dtype: torch.dtype) -> RoundedInputs:
    """Launch the kernel; as `round_inputs_reference`, x [rows, inputs], rows contiguous."""
    num_rows, inputs = x.shape
    is_int8, block = dtype == torch.int8, triton.next_power_of_2(inputs)
    codes = torch.empty((num_rows, inputs), dtype=torch.int8 if is_int8 else torch.uint8, device=x.device)
    scales = torch.empty((num_rows, 1), device=x.device)
    _round_inputs_kernel[(num_rows,)](
        x, codes, scales, x.stride(0), INPUTS=inputs,
        LARGEST=LARGEST_INT8 if is_int8 else LARGEST_FP8, SMALLEST=SMALLEST, IS_INT8=is_int8, BLOCK=block,
        num_warps=min(8, max(1, block // 512)), enable_fp_fusion=False,
    )  # fmt: skip
    return RoundedInputs(codes.view(dtype), scales)


def scale_sums(
    sums: Tensor, row_scales: Tensor, scales: Tensor, bias: Tensor | None, output: Tensor, *, adds: bool
) -> Tensor:
    """Launch the kernel: write sums * row_scales * scales + bias to `output`, or add it if `adds`.

    Whole sums [rows, outputs], a multiple of 8, contiguous; float32 row_scales [rows, 1] and scales
    [1, outputs]; output [rows, outputs], rows contiguous.
    """
    num_rows, outputs = sums.shape
    assert outputs % 8 == 0, "a shape that torch's product of integers does not take"
    _scale_sums_kernel[(num_rows, triton.cdiv(outputs, COLUMNS))](
        sums, row_scales, scales, bias, output, outputs // 8, OUTPUT_STRIDE=output.stride(0),
        HAS_BIAS=bias is not None, HAS_RESIDUAL=adds, BLOCK=COLUMNS, enable_fp_fusion=False,
    )  # fmt: skip
    return output
