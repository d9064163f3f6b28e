"""A GPU's step on tensors that only pretend to be on one: what would make the host wait for the device.

Shapes, types, devices and calls are those of a GPU. Numbers are not there, so a call that needs one of them
is found as well.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import GridExecutor

from millrace_fit.shard import Cut
from millrace_kernels import transfer
from millrace_kernels.device_kernels import select_triton
from millrace_kernels.paged_attention import triton_kernel
from millrace_kernels.paged_attention.cache import KvCache
from millrace_kernels.tensor_matrices import DenseMatrix, TensorExperts
from millrace_kernels.weights import Experts, Matrix
from millrace_runtime.execution import device_queue, model_runner
from millrace_runtime.execution.local import LocalExecutor
from millrace_runtime.execution.model_runner import TensorRunner
from millrace_runtime.execution.slots import SlotTable
from millrace_runtime.models.decoder import find_architecture
from millrace_runtime.models.model import Rows
from millrace_runtime.protocol.encoding import pack_tokens
from millrace_runtime.protocol.executor import Record
from millrace_runtime.protocol.sampling import Sampling
from millrace_runtime.protocol.step import (
    BlockAppend,
    KvGroup,
    Limits,
    Placement,
    Row,
    SlotStart,
    StepPlan,
    StepSize,
)
from tests.runtime.execution.conftest import TINY

GPU = torch.device("cuda", 0)
PER_LAYER = Counter(
    {"_rms_norm_kernel": 2, "_rotary_kv_write_kernel": 1, "_decode_kernel": 1, "_merge_kernel": 1}
    | {"_gate_mul_kernel": 1, "aten.mm": 2, "aten.addmm": 2}
)
"""What a layer launches in a decode step that no graph repeats."""
LIMITS = Limits((KvGroup(64),), 16, 8, 2, 256, 199, 64)


class FakeWeights:
    """Weights of the right shapes on a GPU."""

    device = GPU
    names: Collection[str] = ()

    def vector(self, name: str, rows: Rows, *, is_float: bool = False) -> Tensor:  # noqa: ARG002
        return torch.empty(rows.cut.size, device=GPU)

    def matrix(self, rows: Mapping[str, Rows], inputs: Cut, *, has_bias: bool = False) -> Matrix:  # noqa: ARG002
        outputs = sum(one.cut.size for one in rows.values())
        return DenseMatrix(torch.empty(outputs, inputs.size, device=GPU), None)

    def skip(self, name: str) -> None:
        pass

    def skip_copy(self, name: str, original: str) -> None:
        pass

    def table(self, name: str, rows: Cut, inputs: int) -> Matrix:  # noqa: ARG002
        return DenseMatrix(torch.empty(rows.size, inputs, device=GPU), None)

    head = table

    def gated_matrix(
        self,
        gate: str,  # noqa: ARG002
        up: str,  # noqa: ARG002
        rows: Cut,
        inputs: int,
        *,
        has_bias: bool = False,  # noqa: ARG002
    ) -> Matrix:
        return DenseMatrix(torch.empty(2 * rows.size, inputs, device=GPU), None)

    def router(self, name: str, num_experts: int, inputs: int, *, has_bias: bool = False) -> Matrix:  # noqa: ARG002
        return make_matrix(num_experts, inputs, has_bias=has_bias)

    def experts(self, names: Sequence[str], rows: Rows, inputs: Cut, *, has_bias: bool = False) -> Experts:
        packed = make_matrix(len(names) * rows.cut.size, inputs.size, has_bias=has_bias)
        return TensorExperts(packed, len(names))

    def gated_experts(
        self, names: Sequence[tuple[str, str]], rows: Cut, inputs: int, *, has_bias: bool = False
    ) -> Experts:
        packed = make_matrix(2 * len(names) * rows.size, inputs, has_bias=has_bias)
        return TensorExperts(packed, len(names))


def make_matrix(outputs: int, inputs: int, *, has_bias: bool) -> DenseMatrix:
    bias = torch.empty(outputs, device=GPU) if has_bias else None
    return DenseMatrix(torch.empty(outputs, inputs, device=GPU), bias)


class Waits(TorchDispatchMode):
    """Notes the calls that would wait for the device, and counts those that give it work."""

    ALWAYS = ("aten._local_scalar_dense", "aten.nonzero", "aten._unique2", "aten.masked_select")
    COPIES = ("aten._to_copy", "aten.copy_")
    ALLOCATIONS = ("aten.empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.copies: list[str] = []
        """Where each copy from one device to another goes."""
        self.launches: list[str] = []
        """The kernels, Triton's and torch's."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "aten":
            with self:  # in inference mode calls come whole: what they are made of is what counts
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        name = str(func).rpartition(".")[0]
        tensors = [one for one in args if isinstance(one, Tensor)]
        if name in self.ALWAYS and tensors[0].device.type == "cuda":
            self.found.append(name)
        if name in self.COPIES:
            devices = {one.device.type for one in tensors}
            devices |= {torch.device(kwargs["device"]).type} if kwargs.get("device") else set()
            is_async = kwargs.get("non_blocking") or (name == "aten.copy_" and args[2:] == (True,))
            if len(devices) > 1 and not is_async:
                self.found.append(f"{name} {devices}")
            if len(devices) > 1:
                to = args[0].device if name == "aten.copy_" else torch.device(kwargs["device"])
                self.copies.append(to.type)
                return func(*args, **kwargs)
        output = func(*args, **kwargs)
        first = output[0] if isinstance(output, (tuple, list)) else output
        is_there = isinstance(first, Tensor) and first.device.type == "cuda"
        if is_there and not func.is_view and name not in self.ALLOCATIONS:
            self.launches.append(name)
        return output


class Event:
    def synchronize(self) -> None:
        raise AssertionError("a submission waited for an event")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[Waits]:
    """Every tensor is a fake one meanwhile."""
    noted = Waits()

    def launch(executor: GridExecutor, *_: Any, **__: Any) -> None:
        noted.launches.append(executor.fn.__name__)

    monkeypatch.setattr(transfer, "pin", lambda host: host)
    monkeypatch.setattr(transfer, "allocate_pinned", lambda like: torch.empty(like.shape, dtype=like.dtype))
    monkeypatch.setattr(device_queue, "_cuda_mark", Event)
    monkeypatch.setattr(GridExecutor, "__call__", launch)  # it waits for nothing
    monkeypatch.setattr(triton_kernel, "_count_programs", lambda *_: 264)
    monkeypatch.setattr(model_runner, "select_kernels", lambda _: select_triton())
    with FakeTensorMode(allow_non_fake_inputs=True), noted:
        yield noted


@pytest.fixture
def executor(waits: Waits) -> LocalExecutor:
    return open_executor(waits, 2)


def open_executor(waits: Waits, num_layers: int) -> LocalExecutor:
    with torch.inference_mode():
        model = find_architecture(TINY | {"num_hidden_layers": num_layers}).build(FakeWeights(), 256)
        slots = SlotTable(LIMITS, GPU)
    made = LocalExecutor(
        TensorRunner(model, GPU),
        slots,
        LIMITS,
        GPU,
        lambda: [KvCache(torch.empty((64, 2, 2, 16, 8), device=GPU))] * num_layers,
        placement=Placement("cuda", "NVIDIA H100 80GB HBM3", "bfloat16", "FromCheckpoint", 1),
    )
    waits.found.clear()
    return made


def start(slot: int, count: int, **sampling: Any) -> SlotStart:
    blocks = [slot * 4 + number for number in range(-(-count // 16))]
    return SlotStart(slot, 0, pack_tokens(list(range(count))), 0, [blocks], Sampling(**sampling), count)


SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "seed": 3},
    "cut": {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.05},
    "penalised": {"temperature": 0.0, "frequency_penalty": 0.5, "presence_penalty": 0.1},
    "changed": {
        "temperature": 0.0, "repetition_penalty": 1.1, "bias": {3: 1.0}, "allowed": bytes(28),
        "min_tokens": 2, "held_back": (4,),
    },
    "with log-probabilities": {"temperature": 1.0, "num_logprobs": 3, "num_prompt_logprobs": 5},
}  # fmt: skip


@pytest.mark.parametrize("name", list(SAMPLINGS))
def test_no_submission_waits_for_the_device(executor: LocalExecutor, waits: Waits, name: str) -> None:
    """Two steps are put in line: prompts of two sequences and a part of a third, then a token of each."""
    starts = [start(0, 20, **SAMPLINGS[name]), start(1, 16, **SAMPLINGS[name]), start(2, 33, temperature=0.0)]
    rows = [Row(0, 20, emit=True), Row(1, 16, emit=True), Row(2, 10, emit=False)]
    executor.submit(StepPlan(0, [], starts, [], rows))
    decode = [Row(0, 1, emit=True), Row(1, 1, emit=True), Row(2, 23, emit=True)]
    executor.submit(StepPlan(1, [], [], [BlockAppend(1, 0, [40])], decode))
    check_launched(executor)
    assert waits.found == []


def test_a_masked_submission_does_not_either(executor: LocalExecutor, waits: Waits) -> None:
    plan = StepPlan(0, [], [start(0, 20, temperature=0.5)], [], [Row(0, 20, emit=True, is_masked=True)])
    executor.submit(plan)
    executor.provide_masks(0, memoryview(bytes(28)))
    check_launched(executor)
    assert waits.found == []


def check_launched(executor: LocalExecutor) -> None:
    for submitted in executor._in_flight:
        assert submitted.launched is not None
        submitted.launched.result()


def test_a_step_of_many_rows_has_no_more_copies_than_one_of_few(
    executor: LocalExecutor, waits: Waits
) -> None:
    """Its numbers, the blocks and tokens that are new, and what draws ask for.

    And back the tokens with the faults.
    """
    copies = []
    for step, slots in enumerate(([0], [1, 2, 3, 4])):
        waits.copies.clear()
        starts = [start(slot, 5, temperature=0.0) for slot in slots]
        executor.submit(StepPlan(step, [], starts, [], [Row(slot, 5, emit=True) for slot in slots]))
        copies.append(len(waits.copies))
    check_launched(executor)
    assert copies == [5, 5]


@pytest.mark.parametrize("size", [StepSize(4), StepSize(16, is_mixed=True)])
def test_a_graph_has_one_copy_for_all_numbers_and_waits_for_nothing(
    executor: LocalExecutor, waits: Waits, monkeypatch: pytest.MonkeyPatch, size: StepSize
) -> None:
    """The other copies are of new tokens, of new blocks, and of the result."""
    computed, count = record(executor, size, monkeypatch), 5 if size.is_mixed else 1
    waits.found.clear()  # a recording may wait
    waits.copies.clear()
    starts = [start(slot, count, temperature=0.5) for slot in range(3)]
    executor.submit(StepPlan(0, [], starts, [], [Row(slot, count, emit=True) for slot in range(3)]))
    check_launched(executor)
    assert (waits.copies, waits.found, computed) == (["cuda"] * 3 + ["cpu"], [], [size])


def record(executor: LocalExecutor, size: StepSize, monkeypatch: pytest.MonkeyPatch) -> list[StepSize]:
    """Record a size, and return the list that its repetitions are noted in: they launch nothing here."""
    computed: list[StepSize] = []

    def launch_once(compute: Callable[[], None]) -> Callable[[], None]:
        compute()
        return lambda: computed.append(size)

    monkeypatch.setattr(executor._runner, "_recorder", launch_once)
    executor.limits = msgspec.structs.replace(LIMITS, recordable=(size,))
    executor.control(Record(size))
    return computed


def decode(executor: LocalExecutor, step: int, *slots: int) -> None:
    executor.submit(StepPlan(step, [], [], [], [Row(slot, 1, emit=True) for slot in slots]))


def prefill(executor: LocalExecutor, *slots: int, **sampling: Any) -> None:
    starts = [start(slot, 5, **sampling) for slot in slots]
    executor.submit(StepPlan(0, [], starts, [], [Row(slot, 5, emit=True) for slot in slots]))


@pytest.mark.parametrize("name", ["greedy", "sampled", "cut", "penalised", "changed"])
def test_a_repeated_decode_step_is_an_upload_a_replay_and_a_download(
    executor: LocalExecutor, waits: Waits, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It launches nothing beside the replay."""
    computed = record(executor, StepSize(4), monkeypatch)
    prefill(executor, 0, 1, 2, **SAMPLINGS[name])
    waits.copies.clear()
    waits.launches.clear()
    decode(executor, 1, 0, 1, 2)
    check_launched(executor)
    assert (waits.copies, len(computed), waits.launches) == (["cuda", "cpu"], 1, [])


def test_a_decode_step_by_itself_launches_as_much_for_each_layer(waits: Waits) -> None:
    """Whatever its rows are."""
    counts = []
    for num_layers, slots in ((1, [0]), (2, [0, 1, 2]), (4, [3, 1])):
        executor = open_executor(waits, num_layers)
        prefill(executor, *slots, temperature=0.0)
        waits.launches.clear()
        decode(executor, 1, *slots)
        check_launched(executor)
        counts.append(Counter(waits.launches))
    one, two, four = counts
    assert two - one == PER_LAYER
    assert four - two == PER_LAYER + PER_LAYER


@torch.inference_mode()
def test_what_would_wait_is_found(waits: Waits) -> None:
    table = torch.zeros((4, 4), device=GPU)
    table[[0, 1]]
    torch.tensor([1, 2]).to(GPU)
    table.cpu()
    assert len(waits.found) == 3
