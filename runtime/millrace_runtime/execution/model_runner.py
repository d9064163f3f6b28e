"""Computes a step's logits: the Protocol of every path's runner, and the runner that uses tensors."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from millrace_kernels.exchange.group import Alone, Group
from millrace_kernels.linear.reference import MIN_GEMM_ROWS
from millrace_kernels.paged_attention.cache import BLOCK_SIZE
from millrace_kernels.paged_attention.spans import bound_spans, count_spans
from millrace_kernels.sampling.sampler import Sampler
from millrace_kernels.select import QueryRows, select_kernels
from millrace_kernels.tensor_step import TensorStep
from millrace_kernels.transfer import upload, upload_all
from millrace_runtime.execution.exhaustion import is_out_of_memory
from millrace_runtime.execution.graphs import (
    CudaRecorder,
    DecodeGraph,
    DecodeGraphs,
    Recorder,
    record_decode,
)
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

    sampler: Sampler
    """Draws from its logits."""

    def record(self, num_rows: int, slots: SlotTable) -> None:
        """Make steps of up to so many rows of one token faster from now on, where the path can."""

    def forget(self, num_rows: int) -> None:
        """Compute steps as if these had not been recorded."""

    @property
    def recorded(self) -> frozenset[int]:
        """The numbers of rows that were recorded."""

    def run(self, spans: Sequence[Span], emits: Sequence[int], slots: SlotTable) -> Tensor | None:
        """Compute the spans. Return float32 logits [emits, vocabulary] behind those that `emits` numbers.

        The logits hold until the next call.
        """


class TensorRunner:
    """Computes a step operation by operation, on whole tensors; or all at once, where it was recorded."""

    def __init__(
        self, model: Model, device: torch.device, group: Group | None = None, recorder: Recorder | None = None
    ) -> None:
        """`group` is for a model that several workers hold together; without a `recorder`, CUDA records."""
        self._model, self._device = model, device
        self._group = group or Alone()
        self.kv_caches: list[Tensor] = []
        self._kernels = select_kernels(device)
        self.sampler = self._kernels.sampler
        self._min_tokens = MIN_GEMM_ROWS if device.type == "cpu" else 0
        self._num_layers_done = 0
        self._graphs, self._recorder = DecodeGraphs(), recorder or CudaRecorder()
        self._head = TensorStep.without_tokens(self._kernels, self._group)

    @property
    def progress(self) -> int:
        """Layers computed so far, their attention at least."""
        return self._num_layers_done

    def set_caches(self, kv_caches: list[Tensor]) -> None:
        """Replace the KV tensors. Graphs of the old ones are gone."""
        self._graphs.clear()
        self._recorder.forget()
        self.kv_caches = kv_caches

    @property
    def recorded(self) -> frozenset[int]:
        """The numbers of rows that were recorded."""
        return self._graphs.sizes

    def forget(self, num_rows: int) -> None:
        """Compute such steps as before."""
        self._graphs.remove(num_rows)
        if not self._graphs.sizes:
            self._recorder.forget()

    def record(self, num_rows: int, slots: SlotTable) -> None:
        """Record the steps of up to so many rows of one token, if there is memory for it."""
        num_spans = bound_spans(num_rows, self.kv_caches[0].shape[0] * BLOCK_SIZE)

        def compute(numbers: Tensor) -> Tensor:
            return self._graphs.put(self._decode(numbers, num_spans, slots))

        try:
            graph = record_decode(num_rows, num_spans, compute, self._recorder, self._device)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        else:
            self._graphs.add(num_rows, graph)

    def run(self, spans: Sequence[Span], emits: Sequence[int], slots: SlotTable) -> Tensor | None:
        """Compute the spans. Return the logits behind those that `emits` numbers."""
        if (graph := self._find_graph(spans)) is not None:
            self._num_layers_done += 1
            slot, begin, _ = zip(*spans, strict=True)
            hidden = self._choose(graph.run(slot, begin), emits)
        else:
            step, last = self._lay_out(np.array(spans, dtype=np.int64), emits, slots)
            hidden = self._model.forward(step).index_select(0, last)
        return self._model.logits(hidden, self._head) if emits else None

    def _lay_out(
        self, spans: NDArray[np.int64], emits: Sequence[int], slots: SlotTable
    ) -> tuple[TensorStep, Tensor]:
        """Return the step of spans [rows, 3], and which of its tokens are the last of rows that draw."""
        slot, begin, contexts = spans.T
        sizes = contexts - begin
        starts = np.concatenate(([0], sizes.cumsum()))
        in_row = np.arange(starts[-1]) - starts[:-1].repeat(sizes)
        columns = (slot.repeat(sizes), begin.repeat(sizes) + in_row, starts, contexts, slot)
        last = starts[1:][list(emits)] - 1
        # One copy for all that the device has to know.
        owners, positions, *there, last_there = upload_all((*columns, last), self._device)
        rows = QueryRows(starts.tolist(), contexts.tolist(), there[0], there[1], there[2])
        blocks = slots.blocks[owners, positions // BLOCK_SIZE]
        cache_slots = blocks * BLOCK_SIZE + positions % BLOCK_SIZE
        return self._step(owners, positions, cache_slots, rows, slots), last_there

    def _decode(self, numbers: Tensor, num_spans: int, slots: SlotTable) -> Tensor:
        """Return hidden states of rows of one token: slots and positions [2, rows], -1 where one pads."""
        owners, positions = numbers
        num_rows, known = numbers.shape[1], positions.clamp(min=0)
        blocks = slots.blocks[owners, known // BLOCK_SIZE]
        cache_slots = torch.where(positions < 0, -1, blocks * BLOCK_SIZE + known % BLOCK_SIZE)
        starts = torch.arange(num_rows + 1, device=self._device)
        rows = QueryRows(range(num_rows + 1), [1] * num_rows, starts, positions + 1, owners, num_spans)
        step = self._step(owners, known, cache_slots, rows, slots)
        return self._model.forward(step)

    def _step(
        self, owners: Tensor, positions: Tensor, cache_slots: Tensor, rows: QueryRows, slots: SlotTable
    ) -> TensorStep:
        num_kv_heads = self.kv_caches[0].shape[2]
        return TensorStep(
            kernels=self._kernels,
            tokens=self._pad(slots.tokens[owners, positions]),
            positions=self._pad(positions),
            cache_slots=cache_slots,
            kv_caches=self.kv_caches,
            attend=self._kernels.plan_attention(rows, slots.blocks, num_kv_heads, BLOCK_SIZE),
            on_layer=self._count_layer,
            group=self._group,
        )

    def _find_graph(self, spans: Sequence[Span]) -> DecodeGraph | None:
        """Return the graph of a step of one token a row; None where it was not recorded."""
        if any(span.end - span.begin > 1 for span in spans):
            return None
        num_spans = count_spans(range(len(spans) + 1), [span.end for span in spans])
        return self._graphs.find(len(spans), num_spans)

    def _choose(self, hidden: Tensor, emits: Sequence[int]) -> Tensor:
        """Return the rows that draw: nearly always all."""
        if len(emits) == len(hidden):
            return hidden
        return hidden.index_select(0, upload(np.array(emits, dtype=np.int64), self._device))

    def _count_layer(self) -> None:
        self._num_layers_done += 1

    def _pad(self, values: Tensor) -> Tensor:
        """Pad a small step to the rows that every product needs, once for all layers."""
        missing = self._min_tokens - values.shape[0]
        return torch.nn.functional.pad(values, (0, missing)) if missing > 0 else values
