"""Rotary position embedding for GPUs: one program a token and head."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit  # type: ignore[untyped-decorator]  # triton ships no types
def _rotary_kernel(  # noqa: PLR0917
    x_ptr: tl.tensor,
    cos_ptr: tl.tensor,
    sin_ptr: tl.tensor,
    output_ptr: tl.tensor,
    x_stride_token: tl.tensor,
    x_stride_head: tl.tensor,
    output_stride_token: tl.tensor,
    output_stride_head: tl.tensor,
    HALF: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dims = tl.arange(0, BLOCK)
    is_dim = dims < HALF
    cos = tl.load(cos_ptr + token * HALF + dims, mask=is_dim)
    sin = tl.load(sin_ptr + token * HALF + dims, mask=is_dim)
    line = x_ptr + token * x_stride_token + head * x_stride_head + dims
    first = tl.load(line, mask=is_dim).to(tl.float32)
    second = tl.load(line + HALF, mask=is_dim).to(tl.float32)
    out = output_ptr + token * output_stride_token + head * output_stride_head + dims
    tl.store(out, (first * cos - second * sin).to(output_ptr.dtype.element_ty), mask=is_dim)
    tl.store(out + HALF, (second * cos + first * sin).to(output_ptr.dtype.element_ty), mask=is_dim)


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Launch the kernel; shapes as in `rotary_reference`, cos and sin contiguous."""
    num_tokens, num_heads, head_dim = x.shape
    output = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _rotary_kernel[(num_tokens, num_heads)](
        x, cos, sin, output, x.stride(0), x.stride(1), output.stride(0), output.stride(1),
        HALF=head_dim // 2, BLOCK=triton.next_power_of_2(head_dim // 2),
    )  # fmt: skip
    return output
