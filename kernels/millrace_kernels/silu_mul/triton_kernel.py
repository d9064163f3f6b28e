"""Activation and product for GPUs."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from millrace_kernels.silu_mul.reference import GELU_CUBE, GELU_FACTOR

BLOCK_COLUMNS = 1024


@triton.jit  # type: ignore[untyped-decorator]  # triton ships no types
def _gate_mul_kernel(  # noqa: PLR0917
    gate_up_ptr: tl.tensor,
    output_ptr: tl.tensor,
    stride: tl.tensor,
    WIDTH: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    FACTOR: tl.constexpr,  # noqa: N803  of GELU; 0: SiLU
    CUBE: tl.constexpr,  # noqa: N803
) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < WIDTH
    gate = tl.load(gate_up_ptr + row * stride + columns, mask=is_column, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * stride + WIDTH + columns, mask=is_column, other=0.0).to(tl.float32)
    strength = gate
    if FACTOR != 0.0:
        # A cube soon exceeds what exp can take. At -80 its result has no digit that counts.
        strength = tl.maximum((gate * FACTOR) * (gate * gate * CUBE + 1.0), -80.0)
    product = gate / (1.0 + tl.exp(-strength)) * up
    tl.store(output_ptr + row * WIDTH + columns, product.to(output_ptr.dtype.element_ty), mask=is_column)


def silu_mul(gate_up: Tensor) -> Tensor:
    """Launch the kernel; shapes as in `silu_mul_reference`, rows contiguous."""
    return _launch(gate_up, 0.0)


def gelu_mul(gate_up: Tensor) -> Tensor:
    """Launch the kernel for GELU; as `silu_mul`."""
    return _launch(gate_up, GELU_FACTOR)


def _launch(gate_up: Tensor, factor: float) -> Tensor:
    num_tokens, double = gate_up.shape
    width = double // 2
    output = torch.empty((num_tokens, width), dtype=gate_up.dtype, device=gate_up.device)
    _gate_mul_kernel[(num_tokens, triton.cdiv(width, BLOCK_COLUMNS))](
        gate_up,
        output,
        gate_up.stride(0),
        WIDTH=width,
        BLOCK=BLOCK_COLUMNS,
        FACTOR=factor,
        CUBE=GELU_CUBE,
        enable_fp_fusion=False,
    )
    return output
