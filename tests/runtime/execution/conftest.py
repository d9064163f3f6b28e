import importlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported, and at each launch

import pytest
import torch
from safetensors.torch import save_file

from millrace_fit.families.registry import FAMILIES, declare
from millrace_fit.tensors import list_needed
from millrace_kernels.device_kernels import select_triton
from millrace_kernels.sampling.gpu import triton_shape
from millrace_kernels.sampling.gpu.triton_shape import Shape
from millrace_runtime.execution import model_runner
from millrace_runtime.execution.build import build_executor
from millrace_runtime.execution.parallel.executor import ParallelExecutor, start_workers
from millrace_runtime.execution.settings import ExecutionSettings
from millrace_runtime.protocol.encoding import pack_tokens
from millrace_runtime.protocol.executor import Executor
from millrace_runtime.protocol.sampling import Sampling
from millrace_runtime.protocol.step import BlockAppend, Row, RowResult, SlotStart, StepPlan
from tests.runtime.execution.sizes import SIZES
from tests.runtime.forkserver import Forkserver

TINY: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], **SIZES}


SMALL: dict[str, Any] = {
    "device": "cpu", "dtype": "float32", "max_sequences": 12, "max_model_length": 640,
}  # fmt: skip
"""Settings of an executor."""


WRITTEN_HERE = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM"}
"""For others the list of modules is right where the models that transformers writes can be loaded."""


def weight_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    if config["architectures"][0] in FAMILIES.keys() - WRITTEN_HERE:
        return {one.name: one.part.shapes[0] for one in list_needed(declare(config))}
    width, mlp, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    query, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], width)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        for name, size in {"q": query, "k": kv, "v": kv}.items():
            shapes[f"{prefix}.self_attn.{name}_proj.weight"] = (size, width)
            if "Qwen2ForCausalLM" in config["architectures"]:
                shapes[f"{prefix}.self_attn.{name}_proj.bias"] = (size,)
        shapes[f"{prefix}.self_attn.o_proj.weight"] = (width, query)
        shapes[f"{prefix}.mlp.gate_proj.weight"] = shapes[f"{prefix}.mlp.up_proj.weight"] = (mlp, width)
        shapes[f"{prefix}.mlp.down_proj.weight"] = (width, mlp)
        if config.get("attention_bias"):
            shapes[f"{prefix}.self_attn.o_proj.bias"] = (width,)
            for name, size in {"q": query, "k": kv, "v": kv}.items():
                shapes[f"{prefix}.self_attn.{name}_proj.bias"] = (size,)
        if config.get("mlp_bias"):
            shapes[f"{prefix}.mlp.gate_proj.bias"] = shapes[f"{prefix}.mlp.up_proj.bias"] = (mlp,)
            shapes[f"{prefix}.mlp.down_proj.bias"] = (width,)
        shapes[f"{prefix}.input_layernorm.weight"] = (width,)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (width,)
    shapes["model.norm.weight"] = (width,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], width)
    return shapes


def random_weights(config: dict[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator) * 0.2 + (1.0 if "norm" in name else 0.0)
        for name, shape in weight_shapes(config).items()
    }


@pytest.fixture
def make_model(tmp_path: Path) -> Callable[..., Path]:
    """Write a random-weight model in the Hugging Face layout; keywords change its config."""

    def make(name: str = "model", **changes: Any) -> Path:
        config = TINY | changes
        folder = tmp_path / name
        folder.mkdir()
        family = FAMILIES.get(config["architectures"][0])
        named = {"model_type": family.model_type} if family else {}  # transformers needs it
        (folder / "config.json").write_text(json.dumps(named | config))
        save_file(random_weights(config), folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    return make


class Driver:
    """A minimal scheduler: gives each sequence its own blocks and runs what the test asks for.

    Blocks that a group's window has passed go to other sequences, as the real scheduler gives them.
    """

    def __init__(self, executor: Executor, *, is_shuffled: bool = True) -> None:
        self.executor = executor
        self.free = [
            torch.randperm(group.num_blocks, generator=torch.Generator().manual_seed(1)).tolist()
            if is_shuffled
            else list(range(group.num_blocks))
            for group in executor.limits.groups
        ]
        """By KV group."""
        self.held: dict[int, list[list[int]]] = {}
        """By slot and KV group; a block that is passed is -1."""
        self.known: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}
        self.step = 0
        self.starts: list[SlotStart] = []
        self.released: list[int] = []

    def start(
        self,
        slot: int,
        tokens: list[int],
        num_prompt: int | None = None,
        num_scored: int = 0,
        **sampling: Any,
    ) -> None:
        self.held[slot] = [[] for _ in self.free]
        self.known[slot], self.computed[slot] = list(tokens), 0
        parameters = Sampling(**({"temperature": 0.0} | sampling))
        self.starts.append(
            SlotStart(
                slot,
                self.step,
                pack_tokens(tokens),
                0,
                [[] for _ in self.free],
                parameters,
                num_prompt or len(tokens),
                num_scored,
            )
        )

    def release(self, slot: int) -> list[int]:
        for free, held in zip(self.free, self.held.pop(slot), strict=True):
            free += [block for block in held if block >= 0]
        self.released.append(slot)
        return self.known.pop(slot)

    def run(self, counts: dict[int, int]) -> list[RowResult]:
        """Compute so many tokens of each slot, drawing one where these are all that is known."""
        appends: list[BlockAppend] = []
        rows = []
        for slot, count in counts.items():
            end = self.computed[slot] + count
            for group, (free, held) in enumerate(zip(self.free, self.held[slot], strict=True)):
                more = [free.pop() for _ in range(-(-end // 16) - len(held))]
                held.extend(more)
                appends += [BlockAppend(slot, group, more)] if more else []
            rows.append(Row(slot, count, end == len(self.known[slot])))
            self.computed[slot] = end
        plan = StepPlan(self.step, self.released, self.starts, appends, rows)
        self.released, self.starts, self.step = [], [], self.step + 1
        self.executor.submit(plan)
        results = self.executor.collect().rows
        for result in results:
            self.known[result.slot] += result.tokens
            self._free_passed(result.slot)
        return results

    def _free_passed(self, slot: int) -> None:
        for group, free, held in zip(self.executor.limits.groups, self.free, self.held[slot], strict=True):
            if group.window is None:
                continue
            for number in range(max(0, self.computed[slot] + 1 - group.window) // 16):
                if held[number] >= 0:
                    free.append(held[number])
                held[number] = -1

    def advance(self, chunk: int) -> list[RowResult]:
        """One step of every sequence, prefill in chunks."""
        left = {slot: len(known) - self.computed[slot] for slot, known in self.known.items()}
        return self.run({slot: min(chunk, count) for slot, count in left.items()})


@pytest.fixture
def start_pool(request: pytest.FixtureRequest) -> Iterator[Callable[..., ParallelExecutor]]:
    """Start workers that hold a model together; they end with the test."""
    started: list[ParallelExecutor] = []

    def start(
        path: Path,
        count: int = 2,
        log: Callable[[str], None] = print,
        *,
        is_forked: bool = True,
        **settings: Any,
    ) -> ParallelExecutor:
        # Here and not above: most drivers have no workers.
        forkserver: Forkserver = request.getfixturevalue("forkserver")
        with forkserver.used() if is_forked else nullcontext():
            executor = start_workers(ExecutionSettings(path, **(SMALL | settings)), count, log)
        started.append(executor)
        return executor

    yield start
    for executor in started:
        executor.end()


@pytest.fixture
def make_driver(start_pool: Callable[..., ParallelExecutor]) -> Callable[..., Driver]:
    def make(path: Path, workers: int = 1, **settings: Any) -> Driver:
        if workers > 1:
            return Driver(start_pool(path, workers, **settings))
        return Driver(build_executor(ExecutionSettings(path, **(SMALL | settings))))

    return make


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A CountingRecorder, the GPU's operations, and no padding to the rows that CPUs' products need."""
    # Imported here: the tape needs Triton, and most users of this file do not.
    counting = importlib.import_module("tests.runtime.execution.tape").CountingRecorder(SMALL)
    for module in ("split_kv", "triton_kernel"):
        monkeypatch.setattr(f"millrace_kernels.paged_attention.{module}.LEAST_KEYS", 64)
    small = Shape(chunk=256, room=256, candidates=64, marked=64, markers=1)
    monkeypatch.setattr(triton_shape, "SHAPE", small)
    monkeypatch.setattr(model_runner, "select_kernels", lambda _: select_triton())
    monkeypatch.setattr(model_runner, "MIN_GEMM_ROWS", 0)
    monkeypatch.setattr(model_runner, "CudaRecorder", lambda: counting)
    return counting


@pytest.fixture
def open_driver(graphs: Any) -> Callable[..., Driver]:
    """Drive an executor that can record steps of some sizes, which keywords and numbers name."""

    def open_one(path: Path, *sizes: int, mixed: Sequence[int] = ()) -> Driver:
        return Driver(graphs.open(path, *sizes, mixed=mixed))

    return open_one
