"""Workers that hold a model together: what each reads, and that together they compute what the model does."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from millrace_fit.errors import ArchitectureError
from millrace_fit.shard import Cut, Shard, whole
from millrace_kernels.device_kernels import select_kernels
from millrace_kernels.exchange.group import Alone, Group, gather_columns, sum_in_order
from millrace_kernels.linear.format import Format
from millrace_kernels.native.weights.packing import NativePacker, PackedMatrix
from millrace_kernels.paged_attention.tiled import TiledAttention
from millrace_kernels.tensor_matrices import TensorExperts
from millrace_kernels.tensor_packer import TensorPacker
from millrace_kernels.tensor_step import TensorStep
from millrace_kernels.weights import Shares
from millrace_runtime.execution.kv_cache import allocate_cache
from millrace_runtime.execution.loading import read_config
from millrace_runtime.execution.weights.checkpoint import CheckpointWeights
from millrace_runtime.execution.weights.safetensors_files import Reader
from millrace_runtime.models.decoder import find_architecture
from millrace_runtime.models.model import Rows

CPU = torch.device("cpu")
LENGTH = 40
"""Tokens of the one sequence, computed at once."""
TOKENS = torch.arange(3, 3 + LENGTH)


class Threads:
    """A group whose workers are threads of this process."""

    def __init__(self, count: int) -> None:
        self.barrier = threading.Barrier(count, timeout=60)
        self.parts: list[Tensor] = [torch.empty(0)] * count


class OneOfThreads:
    """One of them."""

    def __init__(self, threads: Threads, index: int) -> None:
        self._threads, self._index = threads, index

    def sum(self, part: Tensor) -> Tensor:
        return sum_in_order(self._exchange(part))

    def gather(self, part: Tensor, shares: Shares) -> Tensor:
        assert part.shape[1] == shares.size
        return gather_columns(self._exchange(part))

    def _exchange(self, part: Tensor) -> list[Tensor]:
        self._threads.parts[self._index] = part
        self._threads.barrier.wait()
        parts = list(self._threads.parts)
        self._threads.barrier.wait()
        return parts


def compute(path: Path, shard: Shard, group: Group) -> Tensor:
    """Return the logits of every token, as one shard's worker has them at the end."""
    architecture = find_architecture(read_config(path), shard)
    reader = Reader(path)
    model = architecture.build(CheckpointWeights(reader, TensorPacker(torch.float32, CPU)), LENGTH)
    reader.check_all_read()
    step = TensorStep(
        kernels=select_kernels(CPU),
        tokens=TOKENS,
        positions=torch.arange(LENGTH),
        cache_slots=[torch.arange(LENGTH)],
        kv_caches=allocate_cache(architecture, [3], torch.float32, CPU),
        attention_of=lambda _, heads: TiledAttention(
            [0, LENGTH], [LENGTH], torch.arange(3)[None], heads.num_kv_heads, 16
        ),
        on_layer=lambda: None,
        group=group,
    )
    return model.logits(model.forward(step), step)


def compute_together(path: Path, count: int) -> list[Tensor]:
    """Return every worker's logits."""
    threads = Threads(count)
    with ThreadPoolExecutor(count) as pool:
        jobs = [
            pool.submit(compute, path, Shard(index, count), OneOfThreads(threads, index))
            for index in range(count)
        ]
    return [job.result() for job in jobs]


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize(
    "changes",
    [
        {"num_attention_heads": 12, "num_key_value_heads": 4},
        {"num_attention_heads": 12, "num_key_value_heads": 1, "tie_word_embeddings": True},
        {"num_attention_heads": 6, "num_key_value_heads": 6, "attention_bias": True, "mlp_bias": True},
        {"num_attention_heads": 5, "num_key_value_heads": 5, "architectures": ["Qwen2ForCausalLM"]},
    ],
)
def test_workers_together_compute_what_the_model_does(
    make_model: Callable[..., Path], changes: dict[str, Any], count: int
) -> None:
    path = make_model(intermediate_size=136, **changes)  # units of 32: 4 whole ones, and a quarter
    expected = compute(path, Shard(), Alone())
    found = compute_together(path, count)
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-4)
    for other in found[1:]:
        assert torch.equal(other, found[0])


def test_workers_that_would_have_no_tokens_are_refused(make_model: Callable[..., Path]) -> None:
    path = make_model(vocab_size=2, num_attention_heads=4, num_key_value_heads=4)
    with pytest.raises(ArchitectureError, match="can't be shared by 3 workers"):
        compute(path, Shard(2, 3), Alone())


@pytest.mark.parametrize("form", Format.OF_PACKERS, ids=str)
def test_a_part_is_packed_as_if_it_were_all(make_model: Callable[..., Path], form: Format) -> None:
    """Inputs are cut where rounding begins a new group, so that a shard of INT4 has the model's numbers."""
    path = make_model(intermediate_size=160)
    name = "model.layers.1.mlp.down_proj"
    stored = load_file(path / "model.safetensors")[f"{name}.weight"]
    weights = CheckpointWeights(Reader(path), NativePacker(torch.float32, form))
    part = weights.matrix({name: Rows(whole(48))}, Cut(160, 64, 160))
    expected = NativePacker(torch.float32, form).pack([stored[:, 64:].contiguous()], 48, 96, None)
    assert isinstance(part, PackedMatrix)
    assert (part.outputs, part.inputs) == (48, 96)
    assert torch.equal(part.data, expected.data)


def test_each_experts_width_is_cut_and_every_tensor_is_read(tmp_path: Path) -> None:
    router, gate, up, down = (
        torch.randn(3, 48),
        *(torch.randn(3, 80, 48) for _ in "gu"),
        torch.randn(3, 48, 80),
    )
    names = [tuple(f"experts.{number}.{part}" for part in ("gate", "up", "down")) for number in range(3)]
    stored = {"router.weight": router}
    for number, keys in enumerate(names):
        parts = (gate[number], up[number], down[number])
        stored |= {f"{key}.weight": part.contiguous() for key, part in zip(keys, parts, strict=True)}
    save_file(stored, tmp_path / "model.safetensors")
    reader = Reader(tmp_path)
    weights, mine = CheckpointWeights(reader, TensorPacker(torch.float32, CPU)), Cut(80, 32, 80)
    gated = weights.gated_experts([(gate_key, up_key) for gate_key, up_key, _ in names], mine, 48)
    plain = weights.experts([key for *_, key in names], Rows(whole(48)), mine)
    assert isinstance(gated, TensorExperts)
    assert isinstance(plain, TensorExperts)
    assert torch.equal(gated.stacked, torch.cat((gate[:, 32:], up[:, 32:]), dim=1))
    assert torch.equal(plain.stacked, down[:, :, 32:])
    assert (weights.router("router", 3, 48).outputs, gated.num_experts, plain.inputs) == (3, 3, 48)
    reader.check_all_read()
