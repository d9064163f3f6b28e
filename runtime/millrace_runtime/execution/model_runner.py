"""Computes a step's logits: the Protocol of every path's runner, and the runner that uses tensors."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from millrace_kernels.exchange.group import Alone, Group
from millrace_kernels.linear.reference import MIN_GEMM_ROWS
from millrace_kernels.paged_attention.cache import BLOCK_SIZE
from millrace_kernels.sampling.native import NativeSampler
from millrace_kernels.select import QueryRows, select_kernels
from millrace_kernels.tensor_step import TensorStep
from millrace_kernels.transfer import upload_all
from millrace_runtime.execution.slots import SlotTable, Span
from millrace_runtime.models.model import Model


class Runner(Protocol):
    """Owns a model and its KV tensors."""

    kv_caches: list[Tensor]
    """By layer; none while the executor sleeps."""

    @property
    def progress(self) -> int:
        """A number that grows while a step is computed."""

    def set_caches(self, kv_caches: list[Tensor]) -> None:
        """Replace the KV tensors by these, one for each layer. With none, no step may follow."""

    @property
    def sampler(self) -> NativeSampler | None:
        """Draws from its logits natively; None: torch draws."""

    def run(self, spans: Sequence[Span], emits: Sequence[int], slots: SlotTable) -> Tensor | None:
        """Compute the spans. Return float32 logits [emits, vocabulary] behind those that `emits` numbers.

        The logits hold until the next call.
        """


class TensorRunner:
    """Computes a step operation by operation, on whole tensors."""

    sampler = None

    def __init__(self, model: Model, device: torch.device, group: Group | None = None) -> None:
        """`group` is for a model that several workers hold together."""
        self._model, self._device = model, device
        self._group = group or Alone()
        self.kv_caches: list[Tensor] = []
        self._kernels = select_kernels(device)
        self._min_tokens = MIN_GEMM_ROWS if device.type == "cpu" else 0
        self._num_layers_done = 0

    @property
    def progress(self) -> int:
        """Layers computed so far, their attention at least."""
        return self._num_layers_done

    def set_caches(self, kv_caches: list[Tensor]) -> None:
        """Replace the KV tensors."""
        self.kv_caches = kv_caches

    def run(self, spans: Sequence[Span], emits: Sequence[int], slots: SlotTable) -> Tensor | None:
        """Compute the spans with whole tensors, operation by operation."""
        slot, begin, contexts = np.array(spans, dtype=np.int64).T
        sizes = contexts - begin
        starts = np.concatenate(([0], sizes.cumsum()))
        owners = slot.repeat(sizes)
        positions = np.arange(len(owners)) + (begin - starts[:-1]).repeat(sizes)
        last = starts[1:][list(emits)] - 1
        # One copy for all that the device has to know.
        *numbers, last_on_device = upload_all((slot, owners, positions, starts, contexts, last), self._device)
        step = self._step(starts.tolist(), contexts.tolist(), numbers, slots)
        hidden = self._model.forward(step)
        if not emits:
            return None
        return self._model.logits(hidden.index_select(0, last_on_device), step)

    def _step(
        self, starts: list[int], contexts: list[int], numbers: Sequence[Tensor], slots: SlotTable
    ) -> TensorStep:
        slot, owners, positions, device_starts, device_contexts = numbers
        rows = QueryRows(starts, contexts, device_starts, device_contexts)
        width = -(-max(contexts) // BLOCK_SIZE)
        tables = slots.blocks.index_select(0, slot)[:, :width]
        blocks = slots.blocks[owners, positions // BLOCK_SIZE]
        num_kv_heads = self.kv_caches[0].shape[2]
        return TensorStep(
            kernels=self._kernels,
            tokens=self._pad(slots.tokens[owners, positions]),
            positions=self._pad(positions),
            cache_slots=blocks * BLOCK_SIZE + positions % BLOCK_SIZE,
            kv_caches=self.kv_caches,
            attend=self._kernels.plan_attention(rows, tables, num_kv_heads, BLOCK_SIZE),
            on_layer=self._count_layer,
            group=self._group,
        )

    def _count_layer(self) -> None:
        self._num_layers_done += 1

    def _pad(self, values: Tensor) -> Tensor:
        """Pad a small step to the rows that every product needs, once for all layers."""
        missing = self._min_tokens - values.shape[0]
        return torch.nn.functional.pad(values, (0, missing)) if missing > 0 else values
