"""Refuses to record operands that no kernel can read: a step would misread them."""

import torch
from torch import Tensor

from millrace_kernels.native.errors import RecordError
from millrace_kernels.native.recording.record import RecordedRoutes, Register
from millrace_kernels.native.weights.packing import PackedExperts, PackedMatrix
from millrace_kernels.step import HeadNorms, Heads, Routes, Routing
from millrace_kernels.weights import Experts, Matrix

OF_RESIDUALS = "pass the result of embed, linear_add, linear_sum, experts_add or add"
OF_PRODUCTS = "pass the result of rms_norm, linear, linear_silu_mul, linear_gelu_mul or attention"
OF_EXPERTS = "pass the result of experts_silu_mul"


def find_packed(matrix: Matrix, *, is_gated: bool) -> PackedMatrix:
    """Return a matrix of the native path, for gated products or for the others."""
    assert isinstance(matrix, PackedMatrix), "a matrix packed for another path"
    if matrix.is_gated != is_gated:
        raise RecordError(
            "linear_silu_mul and linear_gelu_mul multiply matrices of pack_gated, and nothing else does: "
            "pack it the other way"
        )
    return matrix


def find_experts(experts: Experts, routes: Routes, *, is_gated: bool) -> PackedExperts:
    """Return the experts of the native path that the router has scored, for gated products or for others."""
    assert isinstance(experts, PackedExperts), "experts packed for another path"
    assert isinstance(routes, RecordedRoutes), "routes of another path"
    if experts.matrix.is_gated != is_gated:
        raise RecordError("experts_silu_mul multiplies experts of pack_gated_experts, and experts_add others")
    if experts.num_experts != routes.num_experts:
        raise RecordError(f"{experts.num_experts} experts, but their router scores {routes.num_experts}")
    return experts


def require_choice(routing: Routing, router: Matrix) -> None:
    """Raise RecordError for more experts than there are, or none."""
    if not 0 < routing.num_chosen <= router.outputs:
        raise RecordError(f"a choice of {routing.num_chosen} among {router.outputs} experts")


def require_rows(register: Register, dtype: torch.dtype, width: int, advice: str) -> None:
    """Raise RecordError for rows of another type or width than the kernel reads."""
    if (register.dtype, register.width) != (dtype, width):
        wanted, given = f"{dtype} of {width}", f"{register.dtype} of {register.width}"
        raise RecordError(f"rows of {wanted} are needed, not of {given}, in {advice}")


def require_angles(table: Tensor, head_dim: int) -> None:
    """Raise RecordError for other angles than the kernel reads."""
    if (table.dtype, table.shape[0], table.shape[2]) != (torch.float32, 2, head_dim / 2):
        wanted, given = f"float32 [2, positions, {head_dim // 2}]", f"{table.dtype} {list(table.shape)}"
        raise RecordError(f"angles of {wanted} are needed, not of {given}")
    if not table.is_contiguous():
        raise RecordError("angles must be contiguous: make their table contiguous")


def require_norms(norms: HeadNorms, head_dim: int, dtype: torch.dtype) -> None:
    """Raise RecordError for other weights than the kernel reads."""
    for weight in (norms.query, norms.key):
        if (weight.dtype, weight.shape) != (dtype, (head_dim,)):
            given = f"{weight.dtype} {list(weight.shape)}"
            raise RecordError(f"norms of {dtype} [{head_dim}] are needed, not of {given}")
        if not weight.is_contiguous():
            raise RecordError("norms must be contiguous: make their weights contiguous")


def require_sinks(sinks: Tensor | None, heads: Heads) -> None:
    """Raise RecordError for other sinks than the kernel reads."""
    if sinks is None:
        return
    if (sinks.dtype, sinks.shape) != (torch.float32, (heads.num_heads,)) or not sinks.is_contiguous():
        given = f"{sinks.dtype} {list(sinks.shape)}"
        raise RecordError(f"contiguous sinks of float32 [{heads.num_heads}] are needed, not of {given}")
