"""The products of experts on GPUs: each program multiplies a block of rows that chose the same expert."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from millrace_kernels.experts.reference import SLOPE, Choice
from millrace_kernels.experts.triton_route import MIN_BLOCK_ROWS, SortedChoice

SUM_COLUMNS = 1024
CLAMPED_SLOPE = tl.constexpr(SLOPE)


class Tile(NamedTuple):
    """The outputs and inputs that a program has in shared memory at once."""

    columns: int
    inputs: int
    warps: int
    stages: int


def choose_tile(dtype: torch.dtype, block_rows: int) -> Tile:
    """Return the tile of blocks. Few rows wait for memory, so narrow tiles keep more processors reading."""
    columns, inputs = (32, 128) if block_rows == MIN_BLOCK_ROWS else (64, 64)
    return Tile(columns, inputs * 2 // dtype.itemsize, 4, 3)


@triton.jit  # type: ignore[untyped-decorator]  # triton ships no types
def _load_rows(where: tl.tensor, inputs: tl.tensor, is_row: tl.tensor, INPUTS: tl.constexpr) -> tl.tensor:  # noqa: N803
    wanted = is_row[:, None] & (inputs < INPUTS)[None, :]
    return tl.load(where[:, None] + inputs[None, :], mask=wanted, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _add_product(  # noqa: PLR0917
    total: tl.tensor,
    x: tl.tensor,
    where: tl.tensor,
    inputs: tl.tensor,
    is_column: tl.tensor,
    INPUTS: tl.constexpr,  # noqa: N803
    DOT_IN_FLOAT32: tl.constexpr,  # noqa: N803
) -> tl.tensor:
    weight = _load_rows(where, inputs, is_column, INPUTS)
    if DOT_IN_FLOAT32:
        weight, x = weight.to(tl.float32), x.to(tl.float32)
    return tl.dot(x, tl.trans(weight), total, input_precision="ieee")


@triton.jit  # type: ignore[untyped-decorator]
def gate_by(gate: tl.tensor, up: tl.tensor, limit: tl.tensor, IS_CLAMPED: tl.constexpr) -> tl.tensor:  # noqa: N803
    """Return silu(gate) * up, or that of clamped gates."""
    strength = gate
    if IS_CLAMPED:
        # As comparisons, so that a NaN stays one.
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up)) + 1.0
        strength = gate * CLAMPED_SLOPE
    return gate / (1.0 + tl.exp(-strength)) * up


@triton.jit(do_not_specialize=["num_entries"])  # type: ignore[untyped-decorator]
def _experts_silu_mul_kernel(  # noqa: PLR0917
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    entries_ptr: tl.tensor,
    owners_ptr: tl.tensor,
    output_ptr: tl.tensor,
    x_stride: tl.tensor,
    limit: tl.tensor,
    num_entries: tl.tensor,
    NUM_CHOSEN: tl.constexpr,  # noqa: N803
    INPUTS: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    HAS_BIAS: tl.constexpr,  # noqa: N803
    IS_CLAMPED: tl.constexpr,  # noqa: N803
    BLOCK_ROWS: tl.constexpr,  # noqa: N803
    BLOCK_COLUMNS: tl.constexpr,  # noqa: N803
    BLOCK_INPUTS: tl.constexpr,  # noqa: N803
    DOT_IN_FLOAT32: tl.constexpr,  # noqa: N803
) -> None:
    block = tl.program_id(0)
    expert = tl.load(owners_ptr + block).to(tl.int64)
    if expert >= 0:
        entries = tl.load(entries_ptr + block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)
        columns = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
        is_row, is_column = entries < num_entries, columns < WIDTH
        rows = x_ptr + entries // NUM_CHOSEN * x_stride
        gates = weight_ptr + (expert * 2 * WIDTH + columns) * INPUTS
        gate = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), dtype=tl.float32)
        up = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), dtype=tl.float32)
        for begin in range(0, INPUTS, BLOCK_INPUTS):
            inputs = begin + tl.arange(0, BLOCK_INPUTS)
            x = _load_rows(rows, inputs, is_row, INPUTS)
            gate = _add_product(gate, x, gates, inputs, is_column, INPUTS, DOT_IN_FLOAT32)
            up = _add_product(up, x, gates + WIDTH * INPUTS, inputs, is_column, INPUTS, DOT_IN_FLOAT32)
        if HAS_BIAS:
            biases = bias_ptr + expert * 2 * WIDTH + columns
            gate += tl.load(biases, mask=is_column, other=0.0).to(tl.float32)[None, :]
            up += tl.load(biases + WIDTH, mask=is_column, other=0.0).to(tl.float32)[None, :]
        gated = gate_by(gate, up, limit, IS_CLAMPED).to(output_ptr.dtype.element_ty)
        where = output_ptr + entries[:, None] * WIDTH + columns[None, :]
        tl.store(where, gated, mask=is_row[:, None] & is_column[None, :])


@triton.jit(do_not_specialize=["num_entries"])  # type: ignore[untyped-decorator]
def _experts_multiply_kernel(  # noqa: PLR0917
    h_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    entries_ptr: tl.tensor,
    owners_ptr: tl.tensor,
    factors_ptr: tl.tensor,
    products_ptr: tl.tensor,
    num_entries: tl.tensor,
    INPUTS: tl.constexpr,  # noqa: N803
    OUTPUTS: tl.constexpr,  # noqa: N803
    HAS_BIAS: tl.constexpr,  # noqa: N803
    BLOCK_ROWS: tl.constexpr,  # noqa: N803
    BLOCK_COLUMNS: tl.constexpr,  # noqa: N803
    BLOCK_INPUTS: tl.constexpr,  # noqa: N803
    DOT_IN_FLOAT32: tl.constexpr,  # noqa: N803
) -> None:
    block = tl.program_id(0)
    expert = tl.load(owners_ptr + block).to(tl.int64)
    if expert >= 0:
        entries = tl.load(entries_ptr + block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)
        columns = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
        is_row, is_column = entries < num_entries, columns < OUTPUTS
        weights = weight_ptr + (expert * OUTPUTS + columns) * INPUTS
        product = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), dtype=tl.float32)
        for begin in range(0, INPUTS, BLOCK_INPUTS):
            inputs = begin + tl.arange(0, BLOCK_INPUTS)
            x = _load_rows(h_ptr + entries * INPUTS, inputs, is_row, INPUTS)
            product = _add_product(product, x, weights, inputs, is_column, INPUTS, DOT_IN_FLOAT32)
        if HAS_BIAS:
            bias = tl.load(bias_ptr + expert * OUTPUTS + columns, mask=is_column, other=0.0)
            product += bias.to(tl.float32)[None, :]
        product *= tl.load(factors_ptr + entries, mask=is_row, other=0.0)[:, None]
        where = products_ptr + entries[:, None] * OUTPUTS + columns[None, :]
        tl.store(where, product.to(products_ptr.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _experts_sum_kernel(  # noqa: PLR0917
    products_ptr: tl.tensor,
    residual_ptr: tl.tensor,
    stride: tl.tensor,
    NUM_CHOSEN: tl.constexpr,  # noqa: N803
    OUTPUTS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < OUTPUTS
    where = residual_ptr + row * stride + columns
    total = tl.load(where, mask=is_column, other=0.0).to(tl.float32)
    for rank in range(NUM_CHOSEN):
        product = products_ptr + (row * NUM_CHOSEN + rank) * OUTPUTS + columns
        total += tl.load(product, mask=is_column, other=0.0).to(tl.float32)
    tl.store(where, total.to(residual_ptr.dtype.element_ty), mask=is_column)


def experts_silu_mul(
    x: Tensor, choice: Choice, weight: Tensor, bias: Tensor | None = None, limit: float | None = None
) -> Tensor:
    """Launch the kernel; x [rows, inputs], rows contiguous, and weight [experts, 2 * width, inputs].

    bias [experts, 2 * width]; with a limit gates are clamped.
    """
    assert isinstance(choice, SortedChoice), "a choice of another path"
    num_rows, num_chosen, width = x.shape[0], choice.num_chosen, weight.shape[1] // 2
    tile = choose_tile(x.dtype, choice.block_rows)
    output = torch.empty((num_rows, num_chosen * width), dtype=x.dtype, device=x.device)
    _experts_silu_mul_kernel[(choice.owners.shape[0], triton.cdiv(width, tile.columns))](
        x, weight, weight if bias is None else bias, choice.entries, choice.owners, output, x.stride(0),
        limit or 0.0, num_rows * num_chosen, NUM_CHOSEN=num_chosen, INPUTS=x.shape[1], WIDTH=width,
        HAS_BIAS=bias is not None, IS_CLAMPED=limit is not None, BLOCK_ROWS=choice.block_rows,
        BLOCK_COLUMNS=tile.columns, BLOCK_INPUTS=tile.inputs, DOT_IN_FLOAT32=_is_interpreted(),
        num_warps=tile.warps, num_stages=tile.stages, enable_fp_fusion=False,
    )  # fmt: skip
    return output


def experts_add(h: Tensor, choice: Choice, weight: Tensor, bias: Tensor | None, residual: Tensor) -> Tensor:
    """Launch the kernels, in place of the residual [rows, outputs]; weight [experts, outputs, inputs].

    bias [experts, outputs].
    h is the result of `experts_silu_mul`. Products have the residual's type, and their sum is float32.
    """
    assert isinstance(choice, SortedChoice), "a choice of another path"
    num_rows, num_chosen, (_, outputs, inputs) = h.shape[0], choice.num_chosen, weight.shape
    tile = choose_tile(h.dtype, choice.block_rows)
    products = torch.empty((num_rows * num_chosen, outputs), dtype=residual.dtype, device=h.device)
    _experts_multiply_kernel[(choice.owners.shape[0], triton.cdiv(outputs, tile.columns))](
        h, weight, weight if bias is None else bias, choice.entries, choice.owners, choice.weights, products,
        num_rows * num_chosen, INPUTS=inputs, OUTPUTS=outputs, HAS_BIAS=bias is not None,
        BLOCK_ROWS=choice.block_rows, BLOCK_COLUMNS=tile.columns, BLOCK_INPUTS=tile.inputs,
        DOT_IN_FLOAT32=_is_interpreted(), num_warps=tile.warps, num_stages=tile.stages,
        enable_fp_fusion=False,
    )  # fmt: skip
    return sum_products(products, residual)


def sum_products(products: Tensor, residual: Tensor) -> Tensor:
    """Launch the kernel: add the products of each row's experts [rows * num_chosen, outputs], one by one."""
    num_rows, outputs = residual.shape
    _experts_sum_kernel[(num_rows, triton.cdiv(outputs, SUM_COLUMNS))](
        products, residual, residual.stride(0),
        NUM_CHOSEN=len(products) // num_rows, OUTPUTS=outputs, BLOCK=SUM_COLUMNS, enable_fp_fusion=False,
    )  # fmt: skip
    return residual


def _is_interpreted() -> bool:
    """Whether Triton interprets: it keeps bfloat16 as raw bits then, and its dot would multiply these."""
    return bool(triton.knobs.runtime.interpret)
