"""A step computed operation by operation: with torch on CPUs, with torch and Triton on GPUs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from millrace_kernels.device_kernels import Attend, Kernels, QueryRows
from millrace_kernels.exchange.group import Alone, Group
from millrace_kernels.experts.reference import Choice, experts_add_reference, experts_silu_mul_reference
from millrace_kernels.linear.gpu.matrix import GpuMatrix
from millrace_kernels.paged_attention.cache import KvCache
from millrace_kernels.step import Angles, CacheLayer, HeadNorms, Heads, Routes, Routing
from millrace_kernels.tensor_matrices import (
    DenseMatrix,
    TensorExperts,
    look_up,
    multiply,
    multiply_packed,
    multiply_wide,
)
from millrace_kernels.weights import Experts, Matrix, Shares, SideBySide


class StepAttention:
    """A step's attention, planned once for all layers that share block tables, window and heads."""

    def __init__(
        self, kernels: Kernels, rows: Sequence[QueryRows], tables: Sequence[Tensor], block_size: int
    ) -> None:
        """`rows` and block tables [slots, width] are by KV group."""
        self._plan, self._rows, self._tables = kernels.plan_attention, rows, tables
        self._block_size = block_size
        self._planned: dict[tuple[int, int | None, Heads], Attend] = {}

    def __call__(self, layer: CacheLayer, heads: Heads) -> Attend:
        """Return the attention of a layer."""
        key, group = (layer.group, layer.window, heads), layer.group
        if key not in self._planned:
            rows, tables = self._rows[group], self._tables[group]
            self._planned[key] = self._plan(rows, tables, heads.num_kv_heads, self._block_size, layer.window)
        return self._planned[key]


@dataclass(frozen=True, slots=True)
class TensorStep:
    """A `Step` whose operations compute at once, with the data that its layers share."""

    kernels: Kernels
    tokens: Tensor
    """int64 [tokens]"""
    positions: Tensor
    """int64 [tokens], each in its sequence"""
    cache_slots: Sequence[Tensor]
    """By KV group, int64 [real tokens]: block * block_size + offset of each token's KV."""
    kv_caches: Sequence[KvCache]
    """By layer."""
    attention_of: Callable[[CacheLayer, Heads], Attend]
    """The step's attention, planned over its rows' block tables."""
    on_layer: Callable[[], None]
    """Called in every layer, to show the progress of a long step."""
    group: Group = field(default_factory=Alone)
    """The workers that hold the model together."""
    store: Callable[[Tensor], Tensor] | None = None
    """Copies the logits to a recorded step's place for them."""

    @classmethod
    def without_tokens(
        cls, kernels: Kernels, group: Group, store: Callable[[Tensor], Tensor] | None = None
    ) -> "TensorStep":
        """Return a step for operations on hidden states alone, as those of a head."""
        nothing = torch.empty(0, dtype=torch.int64)
        return cls(
            kernels,
            tokens=nothing,
            positions=nothing,
            cache_slots=(),
            kv_caches=(),
            attention_of=_attend_to_nothing,
            on_layer=_note_nothing,
            group=group,
            store=store,
        )

    def embed(self, table: Matrix, shares: Shares | None = None) -> Tensor:
        """Gather the tokens' rows of the table, zeros for other workers' rows, and sum over the workers."""
        if isinstance(table, SideBySide):
            raise TypeError("an embedding is one matrix: pack it as a table")
        if shares is None:
            return look_up(table, self.tokens)
        rows = self.tokens - shares.begin
        is_mine = (rows >= 0) & (rows < shares.size)
        return self.group.sum(look_up(table, rows * is_mine) * is_mine[:, None])

    def rms_norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """Normalise with the device's kernel."""
        return self.kernels.rms_norm(x, weight, epsilon)

    def linear(self, x: Tensor, weight: Matrix) -> Tensor:
        """Multiply, and return the product in x's type."""
        return multiply(x, weight).to(x.dtype)

    def linear_add(self, x: Tensor, weight: Matrix, residual: Tensor) -> Tensor:
        """Add within the device's product if this worker has the whole product."""
        if isinstance(self.group, Alone) and isinstance(weight, DenseMatrix):
            return self.kernels.linear_add(x, weight.weight, weight.bias, residual)
        if isinstance(self.group, Alone) and isinstance(weight, GpuMatrix):
            return multiply_packed(x, weight, residual)
        return residual + self.group.sum(self.linear(x, weight))

    def linear_sum(self, x: Tensor, weight: Matrix) -> Tensor:
        """Multiply, and sum over the workers."""
        return self.group.sum(self.linear(x, weight))

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """Add in place by torch, which needs one launch for it like a kernel of ours."""
        return residual.add_(x)

    def linear_silu_mul(self, x: Tensor, weight: Matrix) -> Tensor:
        """Multiply, and then gate with the device's kernel."""
        return self.kernels.silu_mul(self.linear(x, weight))

    def linear_gelu_mul(self, x: Tensor, weight: Matrix) -> Tensor:
        """Multiply, and then gate with the device's kernel."""
        return self.kernels.gelu_mul(self.linear(x, weight))

    def route(self, x: Tensor, router: Matrix, routing: Routing) -> Routes:
        """Score the experts in float32, and choose with the device's kernel."""
        return self.kernels.experts.route(multiply_wide(x, router), routing)

    def experts_silu_mul(
        self, x: Tensor, routes: Routes, weight: Experts, limit: float | None = None
    ) -> Tensor:
        """Multiply with the device's kernel, or the reference for experts neither plain nor packed for it."""
        choice, experts = _own(routes, weight)
        if isinstance(experts.matrix, DenseMatrix):
            return self.kernels.experts.silu_mul(x, choice, experts.stacked, experts.biases, limit)
        if isinstance(experts.matrix, GpuMatrix):
            multiply = self.kernels.experts.quantized_silu_mul
            return multiply(x, choice, experts.matrix, experts.num_experts, limit)
        return experts_silu_mul_reference(x, choice, experts.multiply, limit)

    def experts_add(self, h: Tensor, routes: Routes, weight: Experts, residual: Tensor) -> Tensor:
        """Add within the device's kernel, with several workers to zeros, which they then sum."""
        if isinstance(self.group, Alone):
            return self._add_experts(h, routes, weight, residual)
        return residual + self.group.sum(self._add_experts(h, routes, weight, torch.zeros_like(residual)))

    def _add_experts(self, h: Tensor, routes: Routes, weight: Experts, residual: Tensor) -> Tensor:
        choice, experts = _own(routes, weight)
        if isinstance(experts.matrix, DenseMatrix):
            return self.kernels.experts.add(h, choice, experts.stacked, experts.biases, residual)
        if isinstance(experts.matrix, GpuMatrix):
            add = self.kernels.experts.quantized_add
            return add(h, choice, experts.matrix, experts.num_experts, residual)
        return experts_add_reference(h, choice, experts.multiply, residual)

    def rotary_kv_write(
        self,
        qkv: Tensor,
        layer: CacheLayer,
        heads: Heads,
        angles: Angles | None,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        """Normalise, rotate and write with the device's kernel."""
        table, cache = None if angles is None else angles.table, self.kv_caches[layer.number]
        return self.kernels.rotary_kv_write(
            qkv,
            heads,
            self.positions,
            table,
            kv_cache=cache,
            cache_slots=self.cache_slots[layer.group],
            norms=norms,
        )

    def attention(
        self,
        query: Tensor,
        layer: CacheLayer,
        heads: Heads,
        scale: float,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Count the layer, and attend as planned for the step."""
        self.on_layer()
        rows = query.view(query.shape[0], heads.num_heads, heads.head_dim)
        attend = self.attention_of(layer, heads)
        return attend(rows, self.kv_caches[layer.number], scale, sinks).flatten(1)

    def logits(self, x: Tensor, weight: Matrix, shares: Shares | None = None) -> Tensor:
        """Multiply, and return the products in float32, never rounded to x's type."""
        mine = multiply_wide(x, weight)
        logits = mine if shares is None else self.group.gather(mine, shares)
        return logits if self.store is None else self.store(logits)


def _attend_to_nothing(layer: CacheLayer, heads: Heads) -> Attend:  # noqa: ARG001
    raise AssertionError("a step without tokens attends to nothing")


def _note_nothing() -> None:
    pass


def _own(routes: Routes, weight: Experts) -> tuple[Choice, TensorExperts]:
    assert isinstance(routes, Choice), "routes of another path"
    assert isinstance(weight, TensorExperts), "experts packed for another path"
    return routes, weight
