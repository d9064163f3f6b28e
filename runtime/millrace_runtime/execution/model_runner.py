"""Computes a step's logits: the Protocol of every path's runner, and the runner that uses tensors."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from millrace_kernels.exchange.group import Alone, Group
from millrace_kernels.linear.reference import MIN_GEMM_ROWS
from millrace_kernels.paged_attention.cache import BLOCK_SIZE
from millrace_kernels.sampling.native import NativeSampler
from millrace_kernels.select import select_kernels
from millrace_kernels.tensor_step import TensorStep
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
        sizes = torch.tensor([span.end - span.begin for span in spans])
        ends = sizes.cumsum(0)
        owners = torch.repeat_interleave(torch.tensor([span.slot for span in spans]), sizes)
        shift = torch.tensor([span.begin for span in spans]) - (ends - sizes)
        positions = torch.arange(owners.shape[0]) + shift.repeat_interleave(sizes)
        step = self._step(spans, owners.to(self._device), positions.to(self._device), slots)
        hidden = self._model.forward(step)
        if not emits:
            return None
        last = (ends - 1)[list(emits)].to(self._device)
        return self._model.logits(hidden.index_select(0, last), step)

    def _step(self, spans: Sequence[Span], owners: Tensor, positions: Tensor, slots: SlotTable) -> TensorStep:
        starts = [0]
        for span in spans:
            starts.append(starts[-1] + span.end - span.begin)
        contexts = [span.end for span in spans]
        width = -(-max(contexts) // BLOCK_SIZE)
        tables = slots.blocks[[span.slot for span in spans], :width]
        blocks = slots.blocks[owners, positions // BLOCK_SIZE]
        num_kv_heads = self.kv_caches[0].shape[2]
        return TensorStep(
            kernels=self._kernels,
            tokens=self._pad(slots.tokens[owners, positions]),
            positions=self._pad(positions),
            cache_slots=blocks * BLOCK_SIZE + positions % BLOCK_SIZE,
            kv_caches=self.kv_caches,
            attend=self._kernels.plan_attention(starts, contexts, tables, num_kv_heads, BLOCK_SIZE),
            on_layer=self._count_layer,
            group=self._group,
        )

    def _count_layer(self) -> None:
        self._num_layers_done += 1

    def _pad(self, values: Tensor) -> Tensor:
        """Pad a small step to the rows that every product needs, once for all layers."""
        missing = self._min_tokens - values.shape[0]
        return torch.nn.functional.pad(values, (0, missing)) if missing > 0 else values
