"""The operations on tensors of one device, and their choice: Triton kernels on CUDA, torch on CPUs.

The native path has none of them: native/selection.py chooses between it and torch. Triton is imported only
where it is used.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from millrace_kernels.experts.reference import (
    Choice,
    experts_add_reference,
    experts_silu_mul_reference,
    multiply_dense,
    route_reference,
)
from millrace_kernels.linear.gpu.matrix import GpuMatrix
from millrace_kernels.linear.reference import linear_reference
from millrace_kernels.paged_attention.cache import KvCache
from millrace_kernels.paged_attention.split_kv import count_spans
from millrace_kernels.paged_attention.tiled import TiledAttention
from millrace_kernels.rms_norm.reference import rms_norm_reference
from millrace_kernels.rotary_kv_write.reference import rotary_kv_write_reference
from millrace_kernels.sampling.reference import sample_reference, top_logprobs_reference
from millrace_kernels.sampling.sampler import RecordedSampler, Sampler, store_drawn
from millrace_kernels.silu_mul.reference import gelu_mul_reference, silu_mul_reference
from millrace_kernels.step import HeadNorms, Heads, Routing


class Attend(Protocol):
    """The planned attention of layers that are alike."""

    def __call__(self, query: Tensor, kv_cache: KvCache, scale: float, sinks: Tensor | None = None) -> Tensor:
        """Return the output; shapes as in `paged_attention_reference`."""


class Bounds(NamedTuple):
    """The size of attention's launches: of a step, or of every step that a graph repeats."""

    num_tokens: int
    num_spans: int
    """Of the rows with one query (`split_kv.py`), within the window that attention is planned for."""
    has_prefill: bool
    """Whether a row may have several queries."""


class QueryRows(NamedTuple):
    """A step's rows for the planning of attention: on the host, and int64 on the device."""

    starts: Sequence[int]
    """[rows + 1]: each row's first token in the step. Unused where `bounds` are given."""
    contexts: Sequence[int]
    """[rows]: the length of each row's sequence after the step. Unused where `bounds` are given."""
    device_starts: Tensor
    device_contexts: Tensor
    device_slots: Tensor
    """[rows]: the row's line in the block tables."""
    bounds: Bounds | None = None
    """For a graph, whose rows change on the device and whose launches do not. A row without queries pads."""


class PlanAttention(Protocol):
    """Plans the attention of the layers that share block tables and window."""

    def __call__(
        self,
        rows: QueryRows,
        tables: Tensor,
        num_kv_heads: int,
        block_size: int,
        window: int | None = None,
    ) -> Attend:
        """Return an Attend over block tables [lines, width].

        With a window a query sees its own key and the `window` - 1 before it. Entries of the tables before
        the first key of a row's first query are not used.
        """


class RotaryKvWrite(Protocol):
    """Normalises and rotates queries and keys, and stores keys and values in a layer's cache."""

    def __call__(  # noqa: PLR0917  as its reference
        self,
        qkv: Tensor,
        heads: Heads,
        positions: Tensor,
        table: Tensor | None,
        kv_cache: KvCache,
        cache_slots: Tensor,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        """Return the queries; shapes as in `rotary_kv_write_reference`."""


class Kernels(NamedTuple):
    """The operations of one kind of device that torch lacks, or that are faster in Triton."""

    plan_attention: PlanAttention
    rotary_kv_write: RotaryKvWrite
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    silu_mul: Callable[[Tensor], Tensor]
    gelu_mul: Callable[[Tensor], Tensor]
    linear_add: Callable[[Tensor, Tensor, Tensor | None, Tensor], Tensor]
    """Takes x, weight, bias and residual; may compute the sum in place of the residual."""
    sampler: Sampler
    experts: "ExpertKernels"


class ExpertKernels(NamedTuple):
    """The operations of mixtures of experts. Dense weights are [experts, outputs, inputs], with biases."""

    route: Callable[[Tensor, Routing], Choice]
    """Takes float32 scores [rows, experts]."""
    silu_mul: Callable[[Tensor, Choice, Tensor, Tensor | None, float | None], Tensor]
    """Takes x, choice, weight, biases and the limit of clamped gates."""
    add: Callable[[Tensor, Choice, Tensor, Tensor | None, Tensor], Tensor]
    """Takes h, choice, weight, biases and residual; may compute the sum in place of the residual."""
    quantized_silu_mul: Callable[[Tensor, Choice, GpuMatrix, int, float | None], Tensor]
    """`silu_mul` with experts one below the other, and their number."""
    quantized_add: Callable[[Tensor, Choice, GpuMatrix, int, Tensor], Tensor]
    """`add` with experts one below the other, and their number."""


def select_kernels(device: torch.device) -> Kernels:
    """Return the operations for a device."""
    return select_triton() if device.type == "cuda" else _CPU


def _plan_tiled_attention(
    rows: QueryRows, tables: Tensor, num_kv_heads: int, block_size: int, window: int | None = None
) -> Attend:
    width = -(-max(rows.contexts) // block_size)
    mine = tables.index_select(0, rows.device_slots)[:, :width]
    return TiledAttention(rows.starts, rows.contexts, mine, num_kv_heads, block_size, window=window)


def _add_linear(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor) -> Tensor:
    return residual + linear_reference(x, weight, bias)


def _multiply_experts(
    x: Tensor, choice: Choice, weight: Tensor, bias: Tensor | None, limit: float | None
) -> Tensor:
    return experts_silu_mul_reference(x, choice, multiply_dense(weight, bias), limit)


def _add_experts(h: Tensor, choice: Choice, weight: Tensor, bias: Tensor | None, residual: Tensor) -> Tensor:
    return experts_add_reference(h, choice, multiply_dense(weight, bias), residual)


def _refuse(*_: object) -> Tensor:
    raise TypeError("experts packed for GPUs")


_CPU = Kernels(
    plan_attention=_plan_tiled_attention,
    rotary_kv_write=rotary_kv_write_reference,
    rms_norm=rms_norm_reference,
    silu_mul=silu_mul_reference,
    gelu_mul=gelu_mul_reference,
    linear_add=_add_linear,
    sampler=Sampler(store_drawn(sample_reference), top_logprobs_reference),
    experts=ExpertKernels(route_reference, _multiply_experts, _add_experts, _refuse, _refuse),
)


def select_triton() -> Kernels:
    """Return the operations for GPUs. With Triton's interpreter they run on CPUs too."""
    from millrace_kernels.experts.triton_kernel import experts_add, experts_silu_mul  # noqa: PLC0415
    from millrace_kernels.experts.triton_quantized import quantized_add, quantized_silu_mul  # noqa: PLC0415
    from millrace_kernels.experts.triton_route import route  # noqa: PLC0415
    from millrace_kernels.linear.gpu.product import keep_sums_in_float32, linear_add  # noqa: PLC0415  triton: only on GPUs
    from millrace_kernels.rms_norm.triton_kernel import rms_norm  # noqa: PLC0415
    from millrace_kernels.rotary_kv_write.triton_kernel import rotary_kv_write  # noqa: PLC0415
    from millrace_kernels.sampling.gpu.triton_kernel import sample, sample_recorded  # noqa: PLC0415
    from millrace_kernels.sampling.gpu.triton_logprobs import top_logprobs  # noqa: PLC0415
    from millrace_kernels.sampling.gpu.triton_table import COLUMNS, lay_out  # noqa: PLC0415
    from millrace_kernels.silu_mul.triton_kernel import gelu_mul, silu_mul  # noqa: PLC0415

    recorded = RecordedSampler(COLUMNS.value, lay_out, sample_recorded)
    sampler = Sampler(sample, top_logprobs, recorded)
    keep_sums_in_float32()
    return Kernels(
        plan_attention=_plan_triton_attention,
        rotary_kv_write=rotary_kv_write,
        rms_norm=rms_norm,
        silu_mul=silu_mul,
        gelu_mul=gelu_mul,
        linear_add=linear_add,
        sampler=sampler,
        experts=ExpertKernels(route, experts_silu_mul, experts_add, quantized_silu_mul, quantized_add),
    )


def _plan_triton_attention(
    rows: QueryRows,
    tables: Tensor,
    num_kv_heads: int,  # noqa: ARG001  the kernels read both from the cache's shape
    block_size: int,  # noqa: ARG001
    window: int | None = None,
) -> Attend:
    from millrace_kernels.paged_attention.triton_kernel import StepRows, TritonAttention  # noqa: PLC0415

    starts, contexts = rows.device_starts.to(torch.int32), rows.device_contexts.to(torch.int32)
    bounds = _count_launched(rows, window) if rows.bounds is None else rows.bounds
    return TritonAttention(
        StepRows(starts, contexts, rows.device_slots, tables),
        bounds.num_tokens,
        bounds.num_spans,
        has_prefill=bounds.has_prefill,
        has_padding=bounds.has_prefill and rows.bounds is not None,
        window=window,
    )


def _count_launched(rows: QueryRows, window: int | None) -> Bounds:
    num_tokens, num_spans = rows.starts[-1], count_spans(rows.starts, rows.contexts, window)
    return Bounds(num_tokens, num_spans, num_tokens > len(rows.contexts))
