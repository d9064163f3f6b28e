"""The largest step on a GPU, on tensors that only pretend to be on one: what they would take of its memory.

Shapes and calls are those of the real model and the real executor, so their bytes are, too.
"""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import GridExecutor

from millrace_fit.facts import find_facts
from millrace_fit.memory import Weights, step_bytes, tables_bytes
from millrace_fit.module_schemes import ModuleSchemes
from millrace_fit.modules import list_layer
from millrace_fit.quantization.scheme import Kind, Packing, Scheme
from millrace_fit.settings import Settings
from millrace_fit.shard import Cut, Shard
from millrace_kernels import transfer
from millrace_kernels.device_kernels import select_triton
from millrace_kernels.linear.format import Format, Number
from millrace_kernels.linear.gpu.choice import Capability
from millrace_kernels.linear.gpu.matrix import GpuMatrix
from millrace_kernels.paged_attention import triton_kernel
from millrace_kernels.paged_attention.cache import KvCache
from millrace_kernels.tensor_matrices import DenseMatrix, TensorExperts
from millrace_kernels.weights import Experts, Matrix, Shares
from millrace_runtime.execution import device_queue, model_runner
from millrace_runtime.execution.kv_cache import build_largest_plan
from millrace_runtime.execution.local import LocalExecutor
from millrace_runtime.execution.model_runner import TensorRunner
from millrace_runtime.execution.slots import SlotTable
from millrace_runtime.models.decoder import find_architecture
from millrace_runtime.models.model import Rows
from millrace_runtime.protocol.step import KvGroup, Limits, Placement
from testing.checkpoints.models import LLAMA_8B, QWEN_HALF, shape_of, stored_of

GPU = torch.device("cuda", 0)


class FakeWeights:
    """Weights of the right shapes on a GPU, in bfloat16."""

    device = GPU
    names: Collection[str] = ()

    def vector(self, name: str, rows: Rows, *, is_float: bool = False) -> Tensor:  # noqa: ARG002
        return make(rows.cut.size).float() if is_float else make(rows.cut.size)

    def matrix(self, rows: Mapping[str, Rows], inputs: Cut, *, has_bias: bool = False) -> Matrix:
        return dense(sum(one.cut.size for one in rows.values()), inputs.size, has_bias=has_bias)

    def skip(self, name: str) -> None:
        pass

    def skip_copy(self, name: str, original: str) -> None:
        pass

    def table(self, name: str, rows: Cut, inputs: int) -> Matrix:  # noqa: ARG002
        return dense(rows.size, inputs)

    head = table

    def gated_matrix(self, gate: str, up: str, rows: Cut, inputs: int, *, has_bias: bool = False) -> Matrix:  # noqa: ARG002
        return dense(2 * rows.size, inputs, has_bias=has_bias)

    def router(self, name: str, num_experts: int, inputs: int, *, has_bias: bool = False) -> Matrix:  # noqa: ARG002
        return dense(num_experts, inputs, has_bias=has_bias)

    def experts(self, names: Sequence[str], rows: Rows, inputs: Cut, *, has_bias: bool = False) -> Experts:
        packed = dense(len(names) * rows.cut.size, inputs.size, has_bias=has_bias)
        return TensorExperts(packed, len(names))

    def gated_experts(
        self, names: Sequence[tuple[str, str]], rows: Cut, inputs: int, *, has_bias: bool = False
    ) -> Experts:
        return TensorExperts(dense(2 * len(names) * rows.size, inputs, has_bias=has_bias), len(names))


class FakeQuantized(FakeWeights):
    """Such, with quantised matrices in layers."""

    def __init__(self, scheme: Scheme) -> None:
        self._form = Format(Number(scheme.kind.value), scheme.group)

    def matrix(self, rows: Mapping[str, Rows], inputs: Cut, *, has_bias: bool = False) -> Matrix:
        assert not has_bias
        return self._make(sum(one.cut.size for one in rows.values()), inputs.size)

    def gated_matrix(self, gate: str, up: str, rows: Cut, inputs: int, *, has_bias: bool = False) -> Matrix:  # noqa: ARG002
        return self._make(2 * rows.size, inputs)

    def _make(self, outputs: int, inputs: int) -> GpuMatrix:
        group, is_int4 = self._form.group, self._form.number is Number.INT4
        shape = (inputs // 128, outputs, 64) if is_int4 else (outputs, inputs)
        dtype = torch.float8_e4m3fn if self._form.number is Number.FP8 else torch.int8
        codes = torch.empty(shape, dtype=dtype, device=GPU)
        scales = torch.empty((1 if group is None else inputs // group, outputs), device=GPU)
        ampere = Capability(8, 0)  # widens FP8, which takes more than rounding inputs
        return GpuMatrix(self._form, codes, scales, None, None, None, inputs, ampere, may_round_inputs=True)


def make(*shape: int) -> Tensor:
    return torch.empty(shape, device=GPU, dtype=torch.bfloat16)


def dense(rows: int, columns: int, *, has_bias: bool = False) -> DenseMatrix:
    return DenseMatrix(make(rows, columns), make(rows) if has_bias else None)


class OneOfMany:
    """A group's worker without the others, with the memory that NCCL's calls take (`collective.py`)."""

    def __init__(self, count: int) -> None:
        self._count = count

    def sum(self, part: Tensor) -> Tensor:
        return part

    def gather(self, part: Tensor, shares: Shares) -> Tensor:
        mine = torch.nn.functional.pad(part, (0, shares.widest - part.shape[1])).contiguous()
        parts = mine.new_empty((self._count, *mine.shape))
        sizes = [end - begin for begin, end in zip(shares.bounds, shares.bounds[1:], strict=False)]
        return torch.cat([one[:, :size] for one, size in zip(parts, sizes, strict=True)], dim=1)


class Peak(TorchDispatchMode):
    """Counts the bytes of tensors on the GPU that are alive, and the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "aten":
            with self:  # in inference mode calls come whole: what they are made of is what counts
                parts = func.decompose(*args, **(kwargs or {}))
            if parts is not NotImplemented:
                return parts
        output = func(*args, **(kwargs or {}))
        for one in output if isinstance(output, tuple | list) else [output]:
            if isinstance(one, Tensor) and one.device.type == "cuda":
                storage = one.untyped_storage()
                self._alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.most = max(self.most, self.now)
        return output

    @property
    def now(self) -> int:
        self._alive = {key: one for key, one in self._alive.items() if not one[0].expired()}
        return sum(num_bytes for _, num_bytes in self._alive.values())


class Event:
    def synchronize(self) -> None:
        pass


@pytest.fixture
def peak(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peak]:
    """Every tensor is a fake one meanwhile."""
    monkeypatch.setattr(transfer, "pin", lambda host: host)
    monkeypatch.setattr(transfer, "allocate_pinned", lambda like: torch.empty(like.shape, dtype=like.dtype))
    monkeypatch.setattr(device_queue, "_cuda_mark", Event)
    monkeypatch.setattr(GridExecutor, "__call__", lambda *_, **__: None)
    monkeypatch.setattr(triton_kernel, "_count_programs", lambda *_: 264)
    monkeypatch.setattr(model_runner, "select_kernels", lambda _: select_triton())
    with FakeTensorMode(allow_non_fake_inputs=True), Peak() as found:
        yield found


GLM_9B: dict[str, Any] = LLAMA_8B | {
    "architectures": ["Glm4ForCausalLM"], "num_hidden_layers": 4, "intermediate_size": 13696,
    "num_key_value_heads": 2, "rope_scaling": None, "attention_bias": False,
}  # fmt: skip
GPT_OSS: dict[str, Any] = LLAMA_8B | {
    "architectures": ["GptOssForCausalLM"], "hidden_size": 2880, "intermediate_size": 2880, "head_dim": 64,
    "num_attention_heads": 64, "num_local_experts": 8, "num_experts_per_tok": 4, "num_hidden_layers": 2,
    "rope_scaling": None, "layer_types": ["full_attention"] * 2,
}  # fmt: skip
CASES = [
    pytest.param(LLAMA_8B, Settings(), 8192, id="draws take the most"),
    pytest.param(LLAMA_8B, Settings(max_batched_tokens=16384), 131072, id="a layer takes the most"),
    pytest.param(LLAMA_8B, Settings(tensor_parallel=8), 8192, id="eight workers"),
    pytest.param(LLAMA_8B, Settings(tensor_parallel=2, max_sequences=16), 8192, id="two workers"),
    pytest.param(
        LLAMA_8B, Settings(tensor_parallel=8, max_sequences=8, max_batched_tokens=8192), 8192, id="sums"
    ),
    pytest.param(QWEN_HALF, Settings(), 4096, id="qwen 2"),
    pytest.param(LLAMA_8B, Settings(max_sequences=4), 8192, id="few sequences"),
    pytest.param(GLM_9B, Settings(max_sequences=4, max_batched_tokens=16384), 8192, id="norms after"),
    pytest.param(
        GLM_9B,
        Settings(max_sequences=4, max_batched_tokens=16384, tensor_parallel=2),
        8192,
        id="norms after, two workers",
    ),
    pytest.param(
        GPT_OSS, Settings(max_sequences=4, max_batched_tokens=16384), 8192, id="experts with biases"
    ),
    pytest.param(
        GPT_OSS,
        Settings(max_sequences=4, max_batched_tokens=16384, tensor_parallel=2),
        8192,
        id="experts with biases, two workers",
    ),
]


@pytest.mark.parametrize(("raw", "settings", "length"), CASES)
def test_weights_and_the_largest_step_take_what_was_told(
    raw: dict[str, Any], settings: Settings, length: int, peak: Peak
) -> None:
    told = find_facts(raw, stored_of(raw)).weigh(settings)
    taken = run_steps(raw, told, FakeWeights(), length, peak)
    assert taken == pytest.approx(step_bytes(told, Shard(0, settings.tensor_parallel), length), rel=0.03)


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.MXFP4])  # it is widened
def test_a_quantised_models_step_takes_about_what_was_told(kind: Kind, peak: Peak) -> None:
    plain = find_facts(LLAMA_8B, stored_of(LLAMA_8B))
    scheme = Scheme(kind, Packing.PLAIN, group=128 if kind is Kind.INT4 else None)
    layer, count = next(iter(shape_of(plain).counted))
    modules = [one for one in list_layer(shape_of(plain), layer) if one.is_linear]
    quantized = (ModuleSchemes(0, one.role, (scheme,) * len(one.parts), count) for one in modules)
    told = replace(plain, quantized=tuple(quantized)).weigh(Settings())
    step = step_bytes(told, Shard(0, 1), 8192)
    assert step >= step_bytes(plain.weigh(Settings()), Shard(0, 1), 8192)
    with torch.inference_mode():
        taken = run_steps(LLAMA_8B, told, FakeQuantized(scheme), 8192, peak)
    assert taken == pytest.approx(step, rel=0.05)
    assert taken <= step


def run_steps(raw: dict[str, Any], told: Weights, weights: FakeWeights, length: int, peak: Peak) -> int:
    """Return the most bytes that two of the largest steps take beside weights, KV cache and tables."""
    shape, settings = told.shape, told.settings
    count = settings.tensor_parallel
    with torch.inference_mode():
        shard = Shard(0, count)
        architecture = find_architecture(raw, shard)
        model = architecture.build(weights, length)
        angles = 4 * length * shape.kinds[0].attention.head_dim
        assert peak.now == told.count_bytes(shard) + angles
        blocks = KvGroup(-(-settings.num_batched_tokens // 16))
        limits = Limits(
            (blocks,),
            16,
            settings.num_sequences,
            2,
            length,
            shape.vocabulary_size,
            settings.num_batched_tokens,
        )
        before = peak.now
        slots = SlotTable(limits, GPU)
        kv = architecture.kv_shapes[0]
        caches = [KvCache(make(1, 2, kv.num_kv_heads, 16, kv.head_dim))] * len(architecture.kv_shapes)
        executor = LocalExecutor(
            TensorRunner(model, GPU, OneOfMany(count) if count > 1 else None),
            slots,
            limits,
            GPU,
            lambda: caches,
            placement=Placement("cuda", "a GPU", "bfloat16", "FromCheckpoint", count),
        )
        first = build_largest_plan(limits)
        executor.submit(first)
        launch(executor)
        released = [start.slot for start in first.starts]
        executor.submit(type(first)(1, released, first.starts, [], first.rows))
        launch(executor)
    tables = tables_bytes(shape, settings, length) - angles
    return peak.most - before - tables


def launch(executor: LocalExecutor) -> None:
    launched = executor._in_flight[-1].launched
    assert launched is not None
    launched.result()
