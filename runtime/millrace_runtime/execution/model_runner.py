"""From a step's rows to logits: gathers tokens, plans attention, runs the model."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from millrace_kernels.select import select_kernels
from millrace_runtime.execution.kv_cache import BLOCK_SIZE
from millrace_runtime.execution.slots import SlotTable, Span
from millrace_runtime.layers.attention import StepContext
from millrace_runtime.layers.linear import MIN_GEMM_ROWS
from millrace_runtime.layers.rotary import Rotary
from millrace_runtime.models.config import LlamaConfig
from millrace_runtime.models.llama import Llama


class ModelRunner:
    """Owns the model and its KV tensors."""

    def __init__(
        self,
        model: Llama,
        config: LlamaConfig,
        kv_caches: list[Tensor],
        max_length: int,
        device: torch.device,
        *,
        on_layer: Callable[[], None],
    ) -> None:
        """`on_layer` is called before each layer, so that a long step is seen to come forward."""
        self._on_layer = on_layer
        self._model, self._config, self._device = model, config, device
        self._kv_caches = kv_caches
        self._plan_attention = select_kernels(device).plan_attention
        self._rotary = Rotary(config.head_dim, config.theta, max_length, device, config.scaling)
        self._min_tokens = MIN_GEMM_ROWS if device.type == "cpu" else 0

    def run(self, spans: Sequence[Span], emits: Sequence[int], slots: SlotTable) -> Tensor | None:
        """Compute the spans; return float32 logits [emits, vocabulary] after those that `emits` numbers."""
        sizes = [span.end - span.begin for span in spans]
        ends = torch.tensor(sizes).cumsum(0)
        owners = torch.repeat_interleave(torch.tensor([span.slot for span in spans]), torch.tensor(sizes))
        shift = torch.tensor([span.begin for span in spans]) - (ends - torch.tensor(sizes))
        positions = torch.arange(owners.shape[0]) + shift.repeat_interleave(torch.tensor(sizes))
        owners, positions = owners.to(self._device), positions.to(self._device)
        context = self._step_context(spans, sizes, owners, positions, slots)
        tokens = self._pad(slots.tokens[owners, positions])
        hidden = self._model.forward(tokens, context, self._on_layer)
        if not emits:
            return None
        last = (ends - 1)[list(emits)].to(self._device)
        return self._model.logits(hidden.index_select(0, last))

    def _step_context(
        self, spans: Sequence[Span], sizes: list[int], owners: Tensor, positions: Tensor, slots: SlotTable
    ) -> StepContext:
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + size)
        contexts = [span.end for span in spans]
        width = -(-max(contexts) // BLOCK_SIZE)
        tables = slots.blocks[[span.slot for span in spans], :width]
        blocks = slots.blocks[owners, positions // BLOCK_SIZE]
        cos, sin = self._rotary(self._pad(positions))
        return StepContext(
            attend=self._plan_attention(starts, contexts, tables, self._config.num_kv_heads, BLOCK_SIZE),
            cache_slots=blocks * BLOCK_SIZE + positions % BLOCK_SIZE,
            cos=cos,
            sin=sin,
            kv_caches=self._kv_caches,
        )

    def _pad(self, values: Tensor) -> Tensor:
        """Bring a small step to the rows that every product needs, once for all layers."""
        missing = self._min_tokens - values.shape[0]
        return torch.nn.functional.pad(values, (0, missing)) if missing > 0 else values
