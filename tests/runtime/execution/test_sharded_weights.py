"""Workers that hold a model together: what each reads, and that their sums are the whole model's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from millrace_kernels.native.packing import NativePacker, PackedMatrix
from millrace_kernels.paged_attention.tiled import TiledAttention
from millrace_kernels.select import select_kernels
from millrace_kernels.step import Format
from millrace_kernels.tensor_step import TensorPacker, TensorStep
from millrace_runtime.execution.checkpoint import CheckpointWeights, Reader
from millrace_runtime.execution.kv_cache import allocate_cache
from millrace_runtime.execution.loading import read_config
from millrace_runtime.models.config import LLAMA, QWEN2, Family
from millrace_runtime.models.llama import Llama, llama_architecture
from millrace_runtime.models.shard import Cut, Shard, whole

CPU = torch.device("cpu")
LENGTH = 40
"""Tokens of the one sequence, computed at once."""
TOKENS = torch.arange(3, 3 + LENGTH)


class Worker:
    """One shard of a model, with a KV cache for its heads."""

    def __init__(self, path: Path, family: Family, shard: Shard) -> None:
        architecture = llama_architecture(family, read_config(path), shard)
        reader = Reader(path)
        model = architecture.build(CheckpointWeights(reader, TensorPacker(torch.float32, CPU)), LENGTH)
        reader.check_all_read()
        assert isinstance(model, Llama)
        self.model, kv_heads = model, architecture.kv_shapes[0].num_kv_heads
        self.step = TensorStep(
            kernels=select_kernels(CPU),
            tokens=TOKENS,
            positions=torch.arange(LENGTH),
            cache_slots=torch.arange(LENGTH),
            kv_caches=allocate_cache(architecture, 3, torch.float32, CPU),
            attend=TiledAttention([0, LENGTH], [LENGTH], torch.arange(3)[None], kv_heads, 16),
            on_layer=lambda: None,
        )


def reduce(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum(0)


def compute_together(workers: list[Worker]) -> Tensor:
    """Return the logits, each layer's sums added up over the workers."""
    first = workers[0]
    x = first.model.embedding(first.step)
    for number, layer in enumerate(first.model.layers):
        normal, mine = layer.attention_norm(x, first.step), [w.model.layers[number] for w in workers]
        none = torch.zeros_like(x)
        x += reduce([m.attention.add_to(none, normal, w.step) for m, w in zip(mine, workers, strict=True)])
        normal = layer.mlp_norm(x, first.step)
        x += reduce([m.mlp.add_to(none, normal, w.step) for m, w in zip(mine, workers, strict=True)])
    return first.model.logits(x, first.step)


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        (LLAMA, {"num_attention_heads": 12, "num_key_value_heads": 4}),
        (LLAMA, {"num_attention_heads": 12, "num_key_value_heads": 1, "tie_word_embeddings": True}),
        (
            LLAMA,
            {"num_attention_heads": 6, "num_key_value_heads": 6, "attention_bias": True, "mlp_bias": True},
        ),
        (QWEN2, {"num_attention_heads": 5, "num_key_value_heads": 5, "architectures": ["Qwen2ForCausalLM"]}),
    ],
)
def test_workers_sums_are_the_models(
    make_model: Callable[..., Path], family: Family, changes: dict[str, Any], count: int
) -> None:
    path = make_model(intermediate_size=136, **changes)  # units of 32: 4 whole ones, and a quarter
    alone = Worker(path, family, Shard())
    expected = alone.model.logits(alone.model.forward(alone.step), alone.step)
    together = compute_together([Worker(path, family, Shard(index, count)) for index in range(count)])
    torch.testing.assert_close(together, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", list(Format))
def test_a_part_is_packed_as_if_it_were_all(make_model: Callable[..., Path], form: Format) -> None:
    """Inputs are cut where rounding begins a group anew, so that a shard of INT4 has the model's numbers."""
    path = make_model(intermediate_size=160)
    name = "model.layers.1.mlp.down_proj"
    stored = load_file(path / "model.safetensors")[f"{name}.weight"]
    weights = CheckpointWeights(Reader(path), NativePacker(torch.float32, form))
    part = weights.matrix({name: whole(48)}, Cut(160, 64, 160))
    expected = NativePacker(torch.float32, form).pack([stored[:, 64:].contiguous()], 48, 96, None)
    assert isinstance(part, PackedMatrix)
    assert (part.outputs, part.inputs) == (48, 96)
    assert torch.equal(part.data, expected.data)
