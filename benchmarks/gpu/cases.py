"""The table of operations that the campaign checks: add, rename or remove one here, and nowhere else.

For each: how the product launches it, what defines it, how to make inputs, and how close both must be.
Launchers are found by name when a step needs them, so one that can't be imported fails alone.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu import experts, inputs, quantized_linear
from benchmarks.gpu.inputs import Call
from millrace_kernels.device_kernels import QueryRows, select_triton
from millrace_kernels.linear.reference import linear_reference
from millrace_kernels.paged_attention.cache import KvCache
from millrace_kernels.paged_attention.reference import paged_attention_reference
from millrace_kernels.rms_norm.reference import rms_norm_reference
from millrace_kernels.rotary_kv_write.reference import rotary_kv_write_reference
from millrace_kernels.sampling.columns import Draws, Sampled
from millrace_kernels.sampling.reference import sample_reference, top_logprobs_reference
from millrace_kernels.sampling.state import SlotState
from millrace_kernels.silu_mul.reference import gelu_mul_reference, silu_mul_reference
from millrace_kernels.transfer import upload

Function = Callable[..., Any]
Shape = Mapping[str, Any]
"""Arguments of an operation's `make`."""
ROUNDING = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
"""Absolute and relative. bfloat16 has 8 bits, and some operations round twice."""
EXACT = {torch.float32: 0.0}
TIMED_TOKENS = (64, 4096)
PLAIN_HEADS: dict[str, Any] = {"heads": 32, "kv_heads": 8, "head_dim": 128}
NORMED_HEADS = PLAIN_HEADS | {"is_normed": True}
TIMED_ROTARY: tuple[Shape, ...] = tuple(
    {"tokens": count, **heads} for heads in (PLAIN_HEADS, NORMED_HEADS) for count in TIMED_TOKENS
)


class Shapes(NamedTuple):
    """The shapes of an operation: those for a GPU, and tiny ones for a dry run."""

    real: tuple[Shape, ...]
    dry: tuple[Shape, ...]


@dataclass(frozen=True)
class Operation:
    """One operation of the product."""

    launch: Callable[[], Function]
    """Returns what the product calls on a GPU."""
    reference: Function
    make: Callable[..., Call]
    """Takes an arena, a type and a shape. The same seed makes the same inputs."""
    shapes: Shapes
    bounds: Mapping[torch.dtype, float] = field(default_factory=lambda: ROUNDING)
    """The types that it is checked in, and how far each number may be off."""
    pick: Callable[[Call, int], Call] | None = None
    """Returns a call for one row alone. None: no row has an output of its own."""
    timed: tuple[Shape, ...] = ()
    """Shapes of a step of a model with eight billion weights, of 64 and of 4096 tokens."""

    @property
    def timed_type(self) -> torch.dtype:
        """The type that it is timed in: a model's, or the only one."""
        return torch.bfloat16 if torch.bfloat16 in self.bounds else torch.float32


def load(operation: str, module: str = "triton_kernel", name: str | None = None) -> Callable[[], Function]:
    """Return a loader of an operation's Triton launcher."""
    found = f"millrace_kernels.{operation}.{module}"
    return lambda: getattr(importlib.import_module(found), name or operation)


def linear_exact(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the product, computed in float64."""
    product = x.double() @ weight.double().T
    return (product if bias is None else product + bias.double()).to(x.dtype)


def linear_add_exact(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor) -> Tensor:
    """Add the product to the residual in float64, and round once."""
    product = x.double() @ weight.double().T + residual.double()
    return residual.copy_(product if bias is None else product + bias.double())


def plan_attention(  # noqa: PLR0917  as the definition has it
    query: Tensor,
    kv_cache: KvCache,
    starts: Tensor,
    contexts: Tensor,
    tables: Tensor,
    scale: float,
    window: int | None,
    sinks: Tensor | None = None,
) -> Callable[[], Tensor]:
    """Plan a step's attention as the product does, once for all layers. Return what one layer calls.

    Rows with equal tables are of one slot, as those of a draft are.
    """
    numbers = torch.arange(contexts.shape[0], device=query.device)
    is_same = (tables[:, None] == tables).all(dim=2)
    slots = torch.where(is_same, numbers, len(numbers)).amin(dim=1)
    rows = QueryRows(starts.tolist(), contexts.tolist(), starts, contexts, slots)
    shape = (kv_cache.num_kv_heads, kv_cache.block_size)
    attend_layer = select_triton().plan_attention(rows, tables, *shape, window)
    return partial(attend_layer, query, kv_cache, scale, sinks)


def attend(*arguments: Any) -> Tensor:
    """Plan and attend; arguments as those of `paged_attention_reference`."""
    return plan_attention(*arguments)()


def sample_on_cpu(logits: Tensor, draws: Any, state: SlotState, masks: Tensor | None) -> Any:
    """Draw with the definition on the CPU: each device has to draw the very same tokens."""
    there = SlotState(*(table.cpu() for table in state))
    return sample_reference(logits.cpu(), draws, there, None if masks is None else masks.cpu())


def sample_as_recorded(logits: Tensor, draws: Draws, state: SlotState, _masks: Tensor | None) -> Sampled:
    """Draw as a recorded step does."""
    recorded = select_triton().sampler.recorded
    assert recorded is not None
    table = np.empty((len(logits), recorded.num_columns), dtype=np.int64)
    recorded.lay_out(draws, table)
    sampled = torch.empty((2, len(logits)), dtype=torch.int64, device=logits.device)
    recorded.draw(logits, upload(table, logits.device), state, sampled)
    return Sampled(sampled)


DRAWS: tuple[Shape, ...] = tuple(
    {"rows": rows, "vocabulary": 128256, "asks": asks} for rows in (1, 64) for asks in inputs.ASKED
)
"""The times of draws."""
LARGE: Shape = {"heads": 32, "kv_heads": 8, "head_dim": 128}
WINDOWED: Shape = {"queries": [1, 300, 1, 1, 40], "contexts": [8192, 2000, 700, 1, 40], **LARGE}
KV = ("Int8", "Fp8")
SHORT: Shape = {"queries": [1, 9], "contexts": [35, 40], "heads": 4, "kv_heads": 2, "head_dim": 8}
ROUNDED: Shape = {"queries": [1, 300, 1, 40], "contexts": [33, 4000, 9000, 40], **LARGE}
PAGED = Shapes(
    real=(
        {"queries": [1] * 3, "contexts": [1, 16, 35], **LARGE},
        {"queries": [1] * 64, "contexts": [1 + 67 * i for i in range(64)], **LARGE},
        {"queries": [1], "contexts": [32768], **LARGE},
        {"queries": [2048], "contexts": [2048], **LARGE},
        {"queries": [512, 1, 1, 130], "contexts": [4096, 700, 1, 131], **LARGE},
        *({**WINDOWED, "window": window} for window in (1024, 100, 5)),
        {"queries": [1, 7, 1, 40], "contexts": [33, 40, 2, 700], "heads": 14, "kv_heads": 2, "head_dim": 64},
        {"queries": [3, 1, 17], "contexts": [3, 20, 300], "heads": 3, "kv_heads": 3, "head_dim": 80},
        {"queries": [2, 1], "contexts": [19, 4], "heads": 8, "kv_heads": 1, "head_dim": 256},
        {"queries": [3, 1], "contexts": [3, 20], "heads": 3, "kv_heads": 3, "head_dim": 20},
        *({**shape, "kv": kv} for shape in (ROUNDED, {**WINDOWED, "window": 1024}) for kv in KV),
        *({**WINDOWED, "window": window, "has_sinks": True} for window in (None, 128)),
        {"queries": [1] * 8, "contexts": [*range(1022, 1027), 33, 700, 4000], **LARGE, "draft": 4},
    ),
    dry=(
        {"queries": [1, 1], "contexts": [1, 35], "heads": 4, "kv_heads": 2, "head_dim": 8},
        {"queries": [3, 1], "contexts": [3, 20], "heads": 3, "kv_heads": 3, "head_dim": 20},
        {**SHORT, "window": 7},
        {**SHORT, "window": 7, "has_sinks": True},
        *({**SHORT, "kv": kv} for kv in KV),
        {**SHORT, "queries": [1] * 4, "contexts": [15, 16, 17, 9], "draft": 2},
    ),
)

LINEAR = Shapes(
    real=(
        {"rows": 1, "inputs": 4096, "outputs": 6144, "has_bias": False},
        {"rows": 1, "inputs": 4096, "outputs": 4096, "has_bias": False},
        {"rows": 64, "inputs": 14336, "outputs": 4096, "has_bias": False},
        {"rows": 64, "inputs": 14336, "outputs": 4096, "has_bias": True},
        {"rows": 513, "inputs": 4096, "outputs": 4096, "has_bias": True},
    ),
    dry=({"rows": 3, "inputs": 20, "outputs": 12, "has_bias": True},),
)

OPERATIONS: dict[str, Operation] = {
    "paged_attention": Operation(
        lambda: attend,
        paged_attention_reference,
        inputs.make_attention,
        PAGED,
        pick=inputs.pick_attention,
    ),
    "rotary_kv_write": Operation(
        load("rotary_kv_write"),
        rotary_kv_write_reference,
        inputs.make_rotary_kv_write,
        Shapes(
            real=(
                {"tokens": 1, **PLAIN_HEADS},
                *TIMED_ROTARY,
                {"tokens": 257, "heads": 14, "kv_heads": 2, "head_dim": 64},
                {"tokens": 33, "heads": 3, "kv_heads": 3, "head_dim": 80, "is_normed": True},
                {"tokens": 64, **NORMED_HEADS, "is_turned": False},
                {"tokens": 64, **PLAIN_HEADS, "is_turned": False},
                # Not turned: such numbers may be rounded the other way, to the next integer.
                *({"tokens": 64, **PLAIN_HEADS, "is_turned": False, "kv": kv} for kv in KV),
            ),
            dry=tuple(
                {"tokens": 5, "heads": 3, "kv_heads": 1, "head_dim": 10} | kind
                for kind in ({}, {"is_normed": True}, {"is_turned": False})
            ),
        ),
        timed=TIMED_ROTARY,
    ),
    "rms_norm": Operation(
        load("rms_norm"),
        rms_norm_reference,
        inputs.make_rms_norm,
        Shapes(
            real=(
                {"rows": 1, "width": 4096},
                {"rows": 64, "width": 4096},
                {"rows": 4096, "width": 4096},
                {"rows": 7, "width": 8192},
                {"rows": 3, "width": 37},
                {"rows": 1, "width": 1},
            ),
            dry=({"rows": 3, "width": 37}, {"rows": 1, "width": 1}),
        ),
        pick=inputs.pick_rms_norm,
        timed=tuple({"rows": count, "width": 4096} for count in TIMED_TOKENS),
    ),
    "silu_mul": Operation(
        load("silu_mul"),
        silu_mul_reference,
        inputs.make_silu_mul,
        Shapes(
            real=(
                {"rows": 1, "width": 14336},
                {"rows": 64, "width": 14336},
                {"rows": 4096, "width": 14336},
                {"rows": 3, "width": 37},
            ),
            dry=({"rows": 3, "width": 37},),
        ),
        timed=tuple({"rows": count, "width": 14336} for count in TIMED_TOKENS),
        pick=inputs.pick_first_axis,
    ),
    "gelu_mul": Operation(
        load("silu_mul", name="gelu_mul"),
        gelu_mul_reference,
        inputs.make_silu_mul,
        Shapes(
            real=({"rows": 1, "width": 9216}, {"rows": 4096, "width": 9216}), dry=({"rows": 3, "width": 37},)
        ),
        timed=tuple({"rows": count, "width": 9216} for count in TIMED_TOKENS),
        pick=inputs.pick_first_axis,
    ),
    "linear": Operation(
        lambda: linear_reference,
        linear_exact,
        inputs.make_linear,
        LINEAR,
        # cuBLAS may choose another algorithm for another number of rows, so bits are not compared.
    ),
    "linear_add": Operation(
        load("linear", "gpu.product", "linear_add"),
        linear_add_exact,
        inputs.make_linear_add,
        LINEAR,
    ),
    "quantized_linear": Operation(
        lambda: quantized_linear.multiply,
        quantized_linear.multiply_reference,
        quantized_linear.make_quantized,
        Shapes(quantized_linear.REAL, quantized_linear.DRY),
        pick=quantized_linear.pick_quantized,
    ),
    "experts": Operation(
        lambda: experts.mix, experts.mix_reference, experts.make_experts, Shapes(experts.REAL, experts.DRY)
    ),
    "sampling": Operation(
        load("sampling", "gpu.triton_kernel", "sample"),
        sample_on_cpu,
        inputs.make_sampling,
        Shapes(
            real=(
                {"rows": 64, "vocabulary": 128256},
                {"rows": 9, "vocabulary": 151936},
                {"rows": 7, "vocabulary": 199},
                {"rows": 3, "vocabulary": 128256, "asks": "flat"},
            ),
            dry=({"rows": 7, "vocabulary": 199},),
        ),
        bounds=EXACT,
        pick=inputs.pick_sampling,
        timed=DRAWS,
    ),
    "recorded_sampling": Operation(
        lambda: sample_as_recorded,
        sample_on_cpu,
        partial(inputs.make_sampling, is_masked=False),
        Shapes(
            real=({"rows": 64, "vocabulary": 128256}, {"rows": 7, "vocabulary": 199}),
            dry=({"rows": 7, "vocabulary": 199},),
        ),
        bounds=EXACT,
        pick=inputs.pick_sampling,
        timed=DRAWS,
    ),
    "top_logprobs": Operation(
        load("sampling", "gpu.triton_logprobs", "top_logprobs"),
        top_logprobs_reference,
        inputs.make_logprobs,
        Shapes(
            real=(
                {"rows": 64, "vocabulary": 128256, "number": 5},
                {"rows": 3, "vocabulary": 151936, "number": 20},
                {"rows": 7, "vocabulary": 199, "number": 0},
            ),
            dry=({"rows": 7, "vocabulary": 199, "number": 3},),
        ),
        bounds={torch.float32: ROUNDING[torch.float32]},
        pick=inputs.pick_logprobs,
        timed=({"rows": 64, "vocabulary": 128256, "number": 5},),
    ),
}
