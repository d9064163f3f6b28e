"""KV write for GPUs: one program a token and KV head."""

import triton
import triton.language as tl
from torch import Tensor


@triton.jit  # type: ignore[untyped-decorator]  # triton ships no types
def _kv_write_kernel(  # noqa: PLR0917
    key_ptr: tl.tensor,
    value_ptr: tl.tensor,
    kv_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    key_stride_token: tl.tensor,
    key_stride_head: tl.tensor,
    value_stride_token: tl.tensor,
    value_stride_head: tl.tensor,
    kv_stride_block: tl.tensor,
    kv_stride_part: tl.tensor,
    kv_stride_head: tl.tensor,
    kv_stride_offset: tl.tensor,
    HEAD_DIM: tl.constexpr,  # noqa: N803
    BLOCK_SIZE: tl.constexpr,  # noqa: N803
    BLOCK_D: tl.constexpr,  # noqa: N803
) -> None:
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slots_ptr + token)
    dims = tl.arange(0, BLOCK_D)
    is_dim = dims < HEAD_DIM
    key = tl.load(key_ptr + token * key_stride_token + head * key_stride_head + dims, mask=is_dim)
    value = tl.load(value_ptr + token * value_stride_token + head * value_stride_head + dims, mask=is_dim)
    line = (slot // BLOCK_SIZE) * kv_stride_block + (slot % BLOCK_SIZE) * kv_stride_offset
    where = kv_ptr + line + head * kv_stride_head + dims
    tl.store(where, key.to(kv_ptr.dtype.element_ty), mask=is_dim)
    tl.store(where + kv_stride_part, value.to(kv_ptr.dtype.element_ty), mask=is_dim)


def kv_write(key: Tensor, value: Tensor, kv_cache: Tensor, slots: Tensor) -> None:
    """Launch the kernel; shapes as in `kv_write_reference`. The last dimensions must be contiguous."""
    kv_heads, block_size, head_dim = kv_cache.shape[2:]
    if slots.shape[0] == 0:
        return
    _kv_write_kernel[(slots.shape[0], kv_heads)](
        key, value, kv_cache, slots, key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        *kv_cache.stride()[:4], HEAD_DIM=head_dim, BLOCK_SIZE=block_size,
        BLOCK_D=triton.next_power_of_2(head_dim),
    )  # fmt: skip
