"""Runs a recorded model on CPUs by the native kernels."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from millrace_kernels.exchange.memory import Exchange
from millrace_kernels.native.abi import Library
from millrace_kernels.native.program import Batch, NativeProgram, Sizes
from millrace_kernels.native.recording.recorder import record
from millrace_kernels.paged_attention.cache import KvCache
from millrace_kernels.sampling.columns import Draws
from millrace_kernels.sampling.native import NativeSampler
from millrace_kernels.sampling.reference import top_logprobs_reference
from millrace_kernels.sampling.sampler import Sampler, store_drawn
from millrace_runtime.execution.applied_plan import Spans
from millrace_runtime.execution.model_runner import Computed
from millrace_runtime.execution.scoring import Scored, score_tokens
from millrace_runtime.execution.slots import SlotTable
from millrace_runtime.models.model import Model
from millrace_runtime.protocol.step import StepSize


class NativeRunner:
    """Records a model once, and runs each step in one native call."""

    def __init__(
        self,
        library: Library,
        model: Model,
        dtype: torch.dtype,
        sizes: Sizes,
        exchange: Exchange | None = None,
    ) -> None:
        """`exchange` is for a model that several workers share."""
        num_workers = 1 if exchange is None else exchange.count
        recorded = record(model.forward, model.logits, dtype, num_workers)
        self.kv_caches: list[KvCache] = []
        self._program = NativeProgram(library, recorded, sizes, exchange)
        native = NativeSampler(library, recorded.logits.width, self._program.pool)
        self.sampler = Sampler(store_drawn(native.sample), top_logprobs_reference)

    @property
    def progress(self) -> int:
        """The operations that were run."""
        return self._program.progress

    def set_caches(self, kv_caches: list[KvCache]) -> None:
        """Hand the caches to the recorded program."""
        self.kv_caches = kv_caches
        self._program.set_caches(kv_caches)

    def record(self, size: StepSize, slots: SlotTable) -> None:
        """Do nothing: every step is already one call."""

    def forget(self, size: StepSize) -> None:
        """Do nothing."""

    @property
    def recorded(self) -> frozenset[StepSize]:
        """Always empty."""
        return frozenset()

    def run(
        self,
        spans: Spans,
        emits: Sequence[int],
        slots: SlotTable,
        draws: Draws | None = None,  # noqa: ARG002  its draws are one call too
        *,
        scored: Sequence[Scored] = (),
        places: NDArray[np.int64] | None = None,
    ) -> Computed:
        """Run the recorded program on the spans, and its head for drafts and for each slice of scored tokens.

        There is room for one result of the head, so the drawing rows come last.
        """
        slot, begin, count = (
            column.astype(np.int32) for column in (spans.slots, spans.begins, spans.ends - spans.begins)
        )
        batch, program = Batch(slot, begin, count), self._program
        tables = slots.blocks.unbind()
        if not scored and places is None:
            logits = program.run(batch, emits, slots.tokens, tables)
            return Computed(logits if emits else None)
        program.run(batch, (), slots.tokens, tables)
        scores = [
            score_tokens(one, self._compute_logits, slots.tokens, self.sampler, max_rows=program.most_rows)
            for one in scored
        ]
        last = (count.cumsum(dtype=np.int32) - 1)[list(emits)] if places is None else places.astype(np.int32)
        return Computed(program.run_head(last) if emits else None, scores=scores)

    def _compute_logits(self, places: Tensor) -> Tensor:
        return self._program.run_head(places.numpy().astype(np.int32))
