"""From a step's rows to logits: what every path's runner is, and the one that computes with tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from millrace_kernels.linear.reference import MIN_GEMM_ROWS
from millrace_kernels.sampling.native import NativeSampler
from millrace_kernels.select import select_kernels
from millrace_kernels.tensor_step import TensorStep
from millrace_runtime.execution.kv_cache import BLOCK_SIZE
from millrace_runtime.execution.slots import SlotTable
from millrace_runtime.models.model import Model


@dataclass(frozen=True, slots=True)
class Span:
    """A row's tokens: positions `begin` to `end` of the sequence in `slot`."""

    slot: int
    begin: int
    end: int


class Runner(Protocol):
    """Owns a model and its KV tensors."""

    @property
    def sampler(self) -> NativeSampler | None:
        """Draws from its logits natively; None: torch draws."""

    def run(self, spans: Sequence[Span], emits: Sequence[int], slots: SlotTable) -> Tensor | None:
        """Compute the spans; return float32 logits [emits, vocabulary] after those that `emits` numbers.

        The logits hold until the next call.
        """


class TensorRunner:
    """Computes a step operation by operation, on whole tensors."""

    sampler = None

    def __init__(self, model: Model, kv_caches: list[Tensor], device: torch.device) -> None:
        self._model, self._device, self._kv_caches = model, device, kv_caches
        self._kernels = select_kernels(device)
        self._num_kv_heads = kv_caches[0].shape[2]
        self._min_tokens = MIN_GEMM_ROWS if device.type == "cpu" else 0

    def run(self, spans: Sequence[Span], emits: Sequence[int], slots: SlotTable) -> Tensor | None:
        """See Runner."""
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
        return TensorStep(
            kernels=self._kernels,
            tokens=self._pad(slots.tokens[owners, positions]),
            positions=self._pad(positions),
            cache_slots=blocks * BLOCK_SIZE + positions % BLOCK_SIZE,
            kv_caches=self._kv_caches,
            attend=self._kernels.plan_attention(starts, contexts, tables, self._num_kv_heads, BLOCK_SIZE),
        )

    def _pad(self, values: Tensor) -> Tensor:
        """Bring a small step to the rows that every product needs, once for all layers."""
        missing = self._min_tokens - values.shape[0]
        return torch.nn.functional.pad(values, (0, missing)) if missing > 0 else values
