"""The products of quantised experts on GPUs: as those of dense ones, with weights widened in registers."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from millrace_kernels.experts.reference import Choice
from millrace_kernels.experts.triton_kernel import gate_by, sum_products
from millrace_kernels.experts.triton_route import MIN_BLOCK_ROWS, SortedChoice
from millrace_kernels.linear.gpu.matrix import GpuMatrix, unit_of
from millrace_kernels.linear.gpu.triton_unit import multiply_units
from millrace_kernels.linear.gpu.triton_widened import bytes_of, describe


def choose_tile(dtype: torch.dtype, block_rows: int) -> tuple[int, int, int]:
    """Return a program's outputs, warps and stages. Few rows wait for memory, so they take narrow tiles."""
    columns = 32 if block_rows == MIN_BLOCK_ROWS else 64
    return columns, 4, 3 if dtype == torch.bfloat16 else 1


@triton.jit(do_not_specialize=["num_entries"])  # type: ignore[untyped-decorator]  # triton ships no types
def _quantized_silu_mul_kernel(  # noqa: PLR0917
    x_ptr: tl.tensor,
    codes_ptr: tl.tensor,
    scales_ptr: tl.tensor,
    zeros_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    entries_ptr: tl.tensor,
    owners_ptr: tl.tensor,
    output_ptr: tl.tensor,
    x_stride: tl.tensor,
    limit: tl.tensor,
    num_entries: tl.tensor,
    NUM_CHOSEN: tl.constexpr,  # noqa: N803
    IS_CLAMPED: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    NUMBER: tl.constexpr,  # noqa: N803
    INPUTS: tl.constexpr,  # noqa: N803
    OUTPUTS: tl.constexpr,  # noqa: N803
    UNIT: tl.constexpr,  # noqa: N803
    GROUP: tl.constexpr,  # noqa: N803
    UNIT_STRIDE: tl.constexpr,  # noqa: N803
    OUTPUT_STRIDE: tl.constexpr,  # noqa: N803
    HAS_ZEROS: tl.constexpr,  # noqa: N803
    HAS_FP8: tl.constexpr,  # noqa: N803
    DOT: tl.constexpr,  # noqa: N803
    HAS_BIAS: tl.constexpr,  # noqa: N803
    BLOCK_ROWS: tl.constexpr,  # noqa: N803
    BLOCK_COLUMNS: tl.constexpr,  # noqa: N803
) -> None:
    block = tl.program_id(0)
    expert = tl.load(owners_ptr + block).to(tl.int64)
    if expert >= 0:
        entries = tl.load(entries_ptr + block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)
        columns = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
        is_row, is_column = entries < num_entries, columns < WIDTH
        rows = x_ptr + entries // NUM_CHOSEN * x_stride
        gates = expert * 2 * WIDTH + columns
        ups = gates + WIDTH
        UNITS: tl.constexpr = (INPUTS + UNIT - 1) // UNIT  # noqa: N806
        nothing = tl.zeros((BLOCK_COLUMNS, BLOCK_ROWS), dtype=tl.float32)
        gate = multiply_units(
            rows, is_row, codes_ptr + gates * OUTPUT_STRIDE, scales_ptr + gates,
            zeros_ptr + gates if HAS_ZEROS else gates, is_column, 0, UNITS, nothing,
            NUMBER, INPUTS, OUTPUTS, UNIT, GROUP, UNIT_STRIDE, HAS_ZEROS, HAS_FP8, DOT,
        )  # fmt: skip
        up = multiply_units(
            rows, is_row, codes_ptr + ups * OUTPUT_STRIDE, scales_ptr + ups,
            zeros_ptr + ups if HAS_ZEROS else ups, is_column, 0, UNITS, nothing,
            NUMBER, INPUTS, OUTPUTS, UNIT, GROUP, UNIT_STRIDE, HAS_ZEROS, HAS_FP8, DOT,
        )  # fmt: skip
        if HAS_BIAS:
            gate += tl.load(bias_ptr + gates, mask=is_column, other=0.0).to(tl.float32)[:, None]
            up += tl.load(bias_ptr + ups, mask=is_column, other=0.0).to(tl.float32)[:, None]
        gated = gate_by(gate, up, limit, IS_CLAMPED).to(output_ptr.dtype.element_ty)
        where = output_ptr + entries[None, :] * WIDTH + columns[:, None]
        tl.store(where, gated, mask=is_row[None, :] & is_column[:, None])


@triton.jit(do_not_specialize=["num_entries"])  # type: ignore[untyped-decorator]
def _quantized_multiply_kernel(  # noqa: PLR0917
    h_ptr: tl.tensor,
    codes_ptr: tl.tensor,
    scales_ptr: tl.tensor,
    zeros_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    entries_ptr: tl.tensor,
    owners_ptr: tl.tensor,
    factors_ptr: tl.tensor,
    products_ptr: tl.tensor,
    num_entries: tl.tensor,
    WIDTH: tl.constexpr,  # noqa: N803
    NUMBER: tl.constexpr,  # noqa: N803
    INPUTS: tl.constexpr,  # noqa: N803
    OUTPUTS: tl.constexpr,  # noqa: N803
    UNIT: tl.constexpr,  # noqa: N803
    GROUP: tl.constexpr,  # noqa: N803
    UNIT_STRIDE: tl.constexpr,  # noqa: N803
    OUTPUT_STRIDE: tl.constexpr,  # noqa: N803
    HAS_ZEROS: tl.constexpr,  # noqa: N803
    HAS_FP8: tl.constexpr,  # noqa: N803
    DOT: tl.constexpr,  # noqa: N803
    HAS_BIAS: tl.constexpr,  # noqa: N803
    BLOCK_ROWS: tl.constexpr,  # noqa: N803
    BLOCK_COLUMNS: tl.constexpr,  # noqa: N803
) -> None:
    block = tl.program_id(0)
    expert = tl.load(owners_ptr + block).to(tl.int64)
    if expert >= 0:
        entries = tl.load(entries_ptr + block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)
        columns = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
        is_row, is_column = entries < num_entries, columns < WIDTH
        rows, lines = h_ptr + entries * INPUTS, expert * WIDTH + columns
        UNITS: tl.constexpr = (INPUTS + UNIT - 1) // UNIT  # noqa: N806
        product = multiply_units(
            rows, is_row, codes_ptr + lines * OUTPUT_STRIDE, scales_ptr + lines,
            zeros_ptr + lines if HAS_ZEROS else lines, is_column, 0, UNITS,
            tl.zeros((BLOCK_COLUMNS, BLOCK_ROWS), dtype=tl.float32),
            NUMBER, INPUTS, OUTPUTS, UNIT, GROUP, UNIT_STRIDE, HAS_ZEROS, HAS_FP8, DOT,
        )  # fmt: skip
        if HAS_BIAS:
            product += tl.load(bias_ptr + lines, mask=is_column, other=0.0).to(tl.float32)[:, None]
        product *= tl.load(factors_ptr + entries, mask=is_row, other=0.0)[None, :]
        where = products_ptr + entries[None, :] * WIDTH + columns[:, None]
        tl.store(where, product.to(products_ptr.dtype.element_ty), mask=is_row[None, :] & is_column[:, None])


def quantized_silu_mul(
    x: Tensor, choice: Choice, matrix: GpuMatrix, num_experts: int, limit: float | None = None
) -> Tensor:
    """Launch the kernel; as `experts_silu_mul`, of experts [2 * width, inputs] one below the other."""
    assert isinstance(choice, SortedChoice), "a choice of another path"
    x = matrix.arrange(x)
    num_entries, width = x.shape[0] * choice.num_chosen, matrix.outputs // num_experts // 2
    output = torch.empty((x.shape[0], choice.num_chosen * width), dtype=x.dtype, device=x.device)
    grid, constants = _describe_launch(x.dtype, choice, matrix, width)
    _quantized_silu_mul_kernel[grid](
        x, bytes_of(matrix), matrix.scales, matrix.zeros, _bias_of(matrix), choice.entries, choice.owners,
        output, x.stride(0), limit or 0.0, num_entries, NUM_CHOSEN=choice.num_chosen,
        IS_CLAMPED=limit is not None, **constants,
    )  # fmt: skip
    return output


def quantized_add(h: Tensor, choice: Choice, matrix: GpuMatrix, num_experts: int, residual: Tensor) -> Tensor:
    """Launch the kernels, in place of the residual; as `experts_add`, of experts [outputs, inputs]."""
    assert isinstance(choice, SortedChoice), "a choice of another path"
    h = matrix.arrange(h.view(-1, matrix.inputs))
    width = matrix.outputs // num_experts
    products = torch.empty((len(h), width), dtype=residual.dtype, device=h.device)
    grid, constants = _describe_launch(h.dtype, choice, matrix, width)
    _quantized_multiply_kernel[grid](
        h, bytes_of(matrix), matrix.scales, matrix.zeros, _bias_of(matrix), choice.entries, choice.owners,
        choice.weights, products, len(h), **constants,
    )  # fmt: skip
    return sum_products(products, residual)


def _bias_of(matrix: GpuMatrix) -> Tensor:
    """Return the bias, or any memory where there is none: the kernels read none of it."""
    return matrix.scales if matrix.bias is None else matrix.bias


def _describe_launch(
    dtype: torch.dtype, choice: SortedChoice, matrix: GpuMatrix, width: int
) -> tuple[tuple[int, int], dict[str, Any]]:
    """Return the grid, and the constants of both kernels."""
    columns, warps, stages = choose_tile(dtype, choice.block_rows)
    constants = describe(matrix, dtype, unit_of(matrix.form.group)) | {
        "WIDTH": width,
        "OUTPUTS": matrix.outputs,
        "HAS_BIAS": matrix.bias is not None,
        "BLOCK_ROWS": choice.block_rows,
        "BLOCK_COLUMNS": columns,
        "num_warps": warps,
        "num_stages": stages,
        "enable_fp_fusion": False,
    }
    return (choice.owners.shape[0], triton.cdiv(width, columns)), constants
