"""Computes a step's logits: the Protocol of all runners, and the runner with torch and Triton."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from millrace_kernels.device_kernels import QueryRows, select_kernels
from millrace_kernels.exchange.group import Alone, Group
from millrace_kernels.linear.reference import MIN_GEMM_ROWS
from millrace_kernels.paged_attention.cache import BLOCK_SIZE, KvCache
from millrace_kernels.paged_attention.split_kv import bound_spans, count_spans
from millrace_kernels.sampling.columns import Draws, Sampled
from millrace_kernels.sampling.sampler import Sampler
from millrace_kernels.tensor_step import StepAttention, TensorStep
from millrace_kernels.transfer import upload, upload_all
from millrace_runtime.execution.applied_plan import Spans
from millrace_runtime.execution.errors import is_out_of_memory
from millrace_runtime.execution.graphs import (
    CudaRecorder,
    DecodeInputs,
    Graph,
    Graphs,
    Inputs,
    Recorder,
)
from millrace_runtime.execution.scoring import Scored, Scores, score_tokens
from millrace_runtime.execution.slots import SlotTable
from millrace_runtime.execution.step_inputs import MixedInputs, lay_out_tokens, split_rows
from millrace_runtime.models.model import Model
from millrace_runtime.protocol.step import KvGroup, StepSize


class Computed(NamedTuple):
    """The result of a step's spans. It is valid until the next step is computed."""

    logits: Tensor | None
    """float32 [emits, vocabulary]; None for a step that draws nothing."""
    sampled: Sampled | None = None
    """The draws of a graph; None: nothing is drawn yet."""
    scores: Sequence[Scores] = ()
    """By the wanted number of likely tokens. They stay valid."""


class Runner(Protocol):
    """Owns a model and its KV tensors."""

    kv_caches: list[KvCache]
    """By layer; empty while the executor sleeps."""

    @property
    def progress(self) -> int:
        """A number that grows while a step is computed."""

    def set_caches(self, kv_caches: list[KvCache]) -> None:
        """Replace the KV tensors, one for each layer. Without tensors no step may follow."""

    sampler: Sampler
    """Draws from its logits."""

    def record(self, size: StepSize, slots: SlotTable) -> None:
        """Make the steps of a size faster from now on, if the runner can."""

    def forget(self, size: StepSize) -> None:
        """Remove a recording."""

    @property
    def recorded(self) -> frozenset[StepSize]:
        """The sizes that were recorded."""

    def run(
        self,
        spans: Spans,
        emits: Sequence[int],
        slots: SlotTable,
        draws: Draws | None = None,
        *,
        scored: Sequence[Scored] = (),
        places: NDArray[np.int64] | None = None,
    ) -> Computed:
        """Compute the spans, the logits after the spans with the numbers `emits`, and the scores.

        With `places` the logits are those after the step's tokens with these numbers, in ascending order.
        `draws` has those of a step in which every row draws without a mask. The runner may draw them at once.
        """


SHARING = 2
"""A graph has room for contexts of so many times the pool's tokens: sequences share the blocks of equal
prefixes. More room means more programs without a part, so steps that share more are launched one by one."""


class TensorRunner:
    """Computes a step operation by operation, on whole tensors, or as a graph if it was recorded."""

    def __init__(
        self, model: Model, device: torch.device, group: Group | None = None, recorder: Recorder | None = None
    ) -> None:
        """`group` is for a model that several workers share. Without a `recorder`, CUDA records."""
        self._model, self._device = model, device
        self._group = group or Alone()
        self.kv_caches: list[KvCache] = []
        self._kernels = select_kernels(device)
        self.sampler = self._kernels.sampler
        self._min_tokens = MIN_GEMM_ROWS if device.type == "cpu" else 0
        self._num_layers_done = 0
        self._graphs, self._recorder = Graphs(), recorder or CudaRecorder()
        self._head = TensorStep.without_tokens(self._kernels, self._group)

    @property
    def progress(self) -> int:
        """The layers that were computed, or at least their attention."""
        return self._num_layers_done

    def set_caches(self, kv_caches: list[KvCache]) -> None:
        """Replace the KV tensors, and forget the graphs of the old ones."""
        self._graphs.clear()
        self._recorder.forget()
        self.kv_caches = kv_caches

    @property
    def recorded(self) -> frozenset[StepSize]:
        """The sizes that were recorded."""
        return self._graphs.sizes

    def forget(self, size: StepSize) -> None:
        """Remove the graph of a size."""
        self._graphs.replace(size, None)
        if not self._graphs.sizes:
            self._recorder.forget()

    def record(self, size: StepSize, slots: SlotTable) -> None:
        """Record the steps of a size, if there is memory."""
        try:
            graph = self._record(size, slots)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        else:
            self._graphs.replace(size, graph)

    def _record(self, size: StepSize, slots: SlotTable) -> Graph:
        sampler = self.sampler.recorded
        assert sampler is not None, "this device records no draws"
        inputs: Inputs
        if size.is_mixed:
            num_rows = min(size.num_tokens, slots.most_draws)
            inputs = MixedInputs(size.num_tokens, num_rows, sampler, self._device)
        else:
            inputs = DecodeInputs(size.num_tokens, sampler, self._device)
        num_rows = inputs.num_rows
        num_spans = tuple(
            bound_spans(num_rows, _bound_contexts(num_rows, group, slots), group.window)
            for group in slots.groups
        )
        head = TensorStep.without_tokens(self._kernels, self._group, self._graphs.put)
        sampled = torch.zeros((2, num_rows), dtype=torch.int64, device=self._device)

        def compute() -> None:
            logits = self._model.logits(self._forward(inputs, num_spans, slots), head)
            sampler.draw(logits, inputs.draws, slots.state, sampled)

        repeat = self._recorder(compute)
        return Graph(inputs, num_spans, repeat, self._graphs.place(num_rows), sampled)

    def run(
        self,
        spans: Spans,
        emits: Sequence[int],
        slots: SlotTable,
        draws: Draws | None = None,
        *,
        scored: Sequence[Scored] = (),
        places: NDArray[np.int64] | None = None,
    ) -> Computed:
        """Compute the spans. A graph also draws, and has no hidden states to score with.

        A row that draws in several places is computed as several rows, so that it has the decode kernel and
        the graphs of decode.
        """
        if places is not None:
            spans, emits = split_rows(spans, places)
        if not scored and (graph := self._find_graph(spans, slots)) is not None:
            self._num_layers_done += 1
            return self._repeat(graph, spans, emits, draws)
        step, last = self._lay_out(spans, emits, slots)
        hidden = self._model.forward(step)
        scores = [self._score(one, hidden, slots) for one in scored]
        hidden = hidden.index_select(0, last)
        return Computed(self._model.logits(hidden, self._head) if emits else None, scores=scores)

    def _score(self, scored: Scored, hidden: Tensor, slots: SlotTable) -> Scores:
        def compute_logits(places: Tensor) -> Tensor:
            self._num_layers_done += 1
            return self._model.logits(hidden.index_select(0, places), self._head)

        return score_tokens(scored, compute_logits, slots.tokens, self.sampler, max_rows=slots.num_slots)

    def _repeat(self, graph: Graph, spans: Spans, emits: Sequence[int], draws: Draws | None) -> Computed:
        graph.inputs.write(spans, draws)
        graph.repeat()
        logits = graph.logits[: len(spans.slots)]
        if draws is not None:
            return Computed(logits, Sampled(graph.sampled))
        return Computed(self._choose(logits, emits) if emits else None)

    def _lay_out(self, spans: Spans, emits: Sequence[int], slots: SlotTable) -> tuple[TensorStep, Tensor]:
        """Return the step of the spans, and the numbers of the last tokens of rows that draw."""
        layout = lay_out_tokens(spans)
        last = layout.starts[1:][list(emits)] - 1
        # One copy to the device for all numbers.
        columns = (*layout, spans.ends, spans.slots, last)
        owners, positions, *there, last_there = upload_all(columns, self._device)
        rows = QueryRows(layout.starts.tolist(), spans.ends.tolist(), there[0], there[1], there[2])
        blocks = slots.blocks[:, owners, positions // BLOCK_SIZE]
        cache_slots = blocks * BLOCK_SIZE + positions % BLOCK_SIZE
        return self._step(owners, positions, cache_slots, [rows] * len(blocks), slots), last_there

    def _forward(self, inputs: Inputs, num_spans: Sequence[int], slots: SlotTable) -> Tensor:
        """Return the hidden state of each row's last token, of a graph."""
        owners, positions = inputs.owners, inputs.positions
        known = positions.clamp(min=0)
        blocks = slots.blocks[:, owners, known // BLOCK_SIZE]
        cache_slots = torch.where(positions < 0, -1, blocks * BLOCK_SIZE + known % BLOCK_SIZE)
        step = self._step(owners, known, cache_slots, inputs.list_rows(num_spans), slots)
        return inputs.choose_last(self._model.forward(step))

    def _step(
        self,
        owners: Tensor,
        positions: Tensor,
        cache_slots: Tensor,
        rows: Sequence[QueryRows],
        slots: SlotTable,
    ) -> TensorStep:
        return TensorStep(
            kernels=self._kernels,
            tokens=self._pad(slots.tokens[owners, positions]),
            positions=self._pad(positions),
            cache_slots=cache_slots.unbind(),
            kv_caches=self.kv_caches,
            attention_of=StepAttention(self._kernels, rows, slots.blocks.unbind(), BLOCK_SIZE),
            on_layer=self._count_layer,
            group=self._group,
        )

    def _find_graph(self, spans: Spans, slots: SlotTable) -> Graph | None:
        """Return the graph for a step; None without one."""
        sizes, num_rows = spans.ends - spans.begins, len(spans.slots)
        num_tokens = int(sizes.sum())
        graphs = self._graphs.decode if num_tokens == num_rows else self._graphs.mixed
        if (graph := graphs.find(num_tokens)) is None or graph.inputs.num_rows < num_rows:
            return None
        rooms = list(zip(graph.num_spans, (group.window for group in slots.groups), strict=True))
        num_seen = int(spans.ends.sum())
        if all(bound_spans(num_rows, num_seen, window) <= most for most, window in rooms):
            return graph  # quick, and nearly always so
        starts, ends = [0, *sizes.cumsum().tolist()], spans.ends.tolist()
        has_room = all(count_spans(starts, ends, window) <= most for most, window in rooms)
        return graph if has_room else None

    def _choose(self, logits: Tensor, emits: Sequence[int]) -> Tensor:
        """Return the rows that draw, which are nearly always all."""
        if len(emits) == len(logits):
            return logits
        return logits.index_select(0, upload(np.array(emits, dtype=np.int64), self._device))

    def _count_layer(self) -> None:
        self._num_layers_done += 1

    def _pad(self, values: Tensor) -> Tensor:
        """Pad a small step to the minimum rows of a matrix product, once for all layers."""
        missing = self._min_tokens - values.shape[0]
        return torch.nn.functional.pad(values, (0, missing)) if missing > 0 else values


def _bound_contexts(num_rows: int, group: KvGroup, slots: SlotTable) -> int:
    """Return the most tokens, of all contexts together, that a graph of so many rows is for."""
    return min(num_rows * slots.tokens.shape[1], SHARING * group.num_blocks * BLOCK_SIZE)
