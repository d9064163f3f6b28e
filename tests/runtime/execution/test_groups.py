"""Layers in several KV groups, with other heads in each: a model like none of ours, on every path."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import pytest
import torch
from torch import Tensor

from millrace_fit.quantization.rules import NOT_QUANTIZED
from millrace_kernels.device_kernels import select_kernels
from millrace_kernels.native.program import Sizes
from millrace_kernels.native.selection import select_cpu_path
from millrace_kernels.native.weights.packing import NativePacker
from millrace_kernels.paged_attention.cache import KvFormat
from millrace_kernels.paged_attention.reference import paged_attention_reference
from millrace_kernels.step import Angles, CacheLayer, Heads, Step
from millrace_kernels.tensor_packer import TensorPacker
from millrace_kernels.tensor_step import TensorStep
from millrace_kernels.weights import Matrix, Packer
from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.execution.kv_cache import allocate_cache
from millrace_runtime.execution.local import LocalExecutor
from millrace_runtime.execution.model_runner import Runner, TensorRunner
from millrace_runtime.execution.native_runner import NativeRunner
from millrace_runtime.execution.slots import SlotTable
from millrace_runtime.models.model import Architecture, KvShape, Weights
from millrace_runtime.protocol.encoding import pack_tokens
from millrace_runtime.protocol.executor import Record
from millrace_runtime.protocol.messages import Generate, NewSequence, Stats
from millrace_runtime.protocol.sampling import Sampling
from millrace_runtime.protocol.step import KvGroup, Limits, Placement, StepSize
from tests.runtime.execution.tape import CountingRecorder

CPU = torch.device("cpu")
VOCABULARY, WIDTH, LENGTH = 199, 48, 96
WINDOWS = (None, 21)
LAYERS = (
    (CacheLayer(0, 0, WINDOWS[0]), Heads(6, 2, 8)),
    (CacheLayer(1, 1, WINDOWS[1]), Heads(4, 4, 12)),
    (CacheLayer(2, 1, WINDOWS[1]), Heads(4, 1, 20)),
)


class Block(NamedTuple):
    """Attention of one layer."""

    cache: CacheLayer
    heads: Heads
    qkv: Matrix
    output: Matrix
    angles: Angles


class Alternating:
    """Attention alone, in layers that alternate between groups."""

    def __init__(self, packer: Packer) -> None:
        """The weights are the same for every packer."""
        generator = torch.Generator().manual_seed(0)

        def pack(rows: int, columns: int) -> Matrix:
            weight = torch.randn(rows, columns, generator=generator) * (1.5 * columns**-0.5)
            return packer.pack([weight], rows, columns, None)

        self.table = packer.pack_table(torch.randn(VOCABULARY, WIDTH, generator=generator))
        self.norm, self.blocks = torch.ones(WIDTH), []
        for cache, heads in LAYERS:
            query, kv = heads.num_heads * heads.head_dim, heads.num_kv_heads * heads.head_dim
            turns = torch.rand(LENGTH, heads.head_dim // 2, generator=generator) * 6
            angles = Angles(torch.stack((turns.cos(), turns.sin())))
            self.blocks.append(Block(cache, heads, pack(query + 2 * kv, WIDTH), pack(WIDTH, query), angles))

    def forward(self, step: Step) -> Tensor:
        x = step.embed(self.table)
        for cache, heads, qkv, output, angles in self.blocks:
            parts = step.linear(step.rms_norm(x, self.norm, 1e-5), qkv)
            query = step.rotary_kv_write(parts, cache, heads, angles)
            x = step.linear_add(step.attention(query, cache, heads, heads.head_dim**-0.5), output, x)
        return x

    def logits(self, hidden: Tensor, step: Step) -> Tensor:
        return step.logits(step.rms_norm(hidden, self.norm, 1e-5), self.table)


def build(_weights: Weights, _length: int) -> Alternating:
    raise NotImplementedError


ARCHITECTURE = Architecture(
    quantization=NOT_QUANTIZED,
    vocabulary_size=VOCABULARY,
    max_length=LENGTH,
    kv_shapes=tuple(KvShape(heads.num_kv_heads, heads.head_dim, cache.group) for cache, heads in LAYERS),
    groups=WINDOWS,
    beside=(),
    build=build,
)


def open_executor(
    runner: Runner, num_blocks: Sequence[int], num_slots: int = 4, form: KvFormat = KvFormat.MODEL
) -> LocalExecutor:
    groups = tuple(map(KvGroup, num_blocks, ARCHITECTURE.groups))
    limits = Limits(groups, 16, num_slots, 1, LENGTH, VOCABULARY, max_batched_tokens=24)
    allocate = partial(allocate_cache, ARCHITECTURE, num_blocks, torch.float32, CPU, form)
    placement = Placement("cpu", "a test's", "float32", "FromCheckpoint", 1)
    return LocalExecutor(runner, SlotTable(limits, CPU), limits, CPU, allocate, placement=placement)


def run_natively() -> Runner:
    library = select_cpu_path("auto").library
    assert library is not None
    return NativeRunner(library, Alternating(NativePacker(torch.float32)), torch.float32, Sizes(24, 12, 2))


def run_with_torch() -> Runner:
    return TensorRunner(Alternating(TensorPacker(torch.float32, CPU)), CPU)


@torch.inference_mode()
def poison_free_blocks(scheduler: Scheduler, executor: LocalExecutor) -> None:
    """Fill each block that nobody holds or can find with NaN, as another sequence might."""
    pools = [group.pool for group in scheduler._residency._groups]
    free = [[*pool._free, *range(pool._num_touched, pool.num_blocks)] for pool in pools]
    for cache, shape in zip(executor._runner.kv_caches, ARCHITECTURE.kv_shapes, strict=True):
        cache.poison(free[shape.group])


class Text(NamedTuple):
    tokens: list[int]
    logprobs: list[float]


def serve(
    executor: LocalExecutor, prompts: Sequence[Sequence[int]], max_tokens: int = 25, *, shares: bool = False
) -> tuple[list[Text], Stats]:
    """Run the real scheduler. Return the texts, and the scheduler's counts at the end.

    Unless it shares prefixes each sequence computes all of its own tokens, but after a preemption.
    """
    scheduler, texts = Scheduler(executor.limits), [Text([], []) for _ in prompts]
    for number, tokens in enumerate(prompts):
        sampling = Sampling(temperature=0.9, seed=number, num_logprobs=0)
        scheduler.add(
            Generate(
                sequences=[NewSequence(number, sampling)],
                prompt=pack_tokens(tokens),
                max_tokens=max_tokens,
                stop_token_ids=[],
                salt=b"" if shares else b"%d" % number,
            )
        )
    while scheduler.has_work:
        while (plan := scheduler.schedule()) is not None:
            poison_free_blocks(scheduler, executor)
            executor.submit(plan)
        for output in scheduler.commit(executor.collect()).outputs:
            assert output.error is None
            texts[output.sequence_id].tokens.extend(output.tokens)
            texts[output.sequence_id].logprobs.extend(one.drawn for one in output.logprobs)
        scheduler.check_integrity()
    return texts, scheduler.stats()


PROMPTS = [
    torch.randint(0, VOCABULARY, (3 + 9 * number,), generator=torch.Generator().manual_seed(number)).tolist()
    for number in range(8)
]


def explain(tokens: Sequence[int]) -> Tensor:
    """Return the definition's log-probabilities after each token of a sequence, alone in one step."""
    count, table = len(tokens), torch.arange(-(-len(tokens) // 16))[None]
    rows = (torch.tensor([0, count]), torch.tensor([count]), table)
    model = Alternating(TensorPacker(torch.float32, CPU))
    step = TensorStep(
        kernels=select_kernels(CPU),
        tokens=torch.tensor(tokens),
        positions=torch.arange(count),
        cache_slots=[torch.arange(count)] * 2,
        kv_caches=allocate_cache(ARCHITECTURE, [table.shape[1]] * 2, torch.float32, CPU),
        attention_of=lambda layer, _: (
            lambda query, cache, scale, _: paged_attention_reference(query, cache, *rows, scale, layer.window)
        ),
        on_layer=lambda: None,
    )
    return model.logits(model.forward(step), step).log_softmax(-1)


@pytest.mark.parametrize("run", [run_natively, run_with_torch])
def test_sequences_of_two_groups_have_their_own_text_whatever_they_share(run: Callable[[], Runner]) -> None:
    """Few blocks of one group or of the other: sequences are preempted, and blocks change their holders."""
    expected, _ = serve(open_executor(run(), [64, 64], num_slots=12), PROMPTS)
    for tokens, text in zip(PROMPTS, expected, strict=True):
        logprobs = explain([*tokens, *text.tokens])[len(tokens) - 1 : -1]
        drawn = logprobs[range(len(text.tokens)), text.tokens]
        torch.testing.assert_close(torch.tensor(text.logprobs), drawn, atol=2e-4, rtol=0)
    for num_blocks in ([9, 64], [64, 9], [11, 10]):
        found, stats = serve(open_executor(run(), num_blocks), PROMPTS)
        assert stats.num_preemptions
        assert found == expected


@pytest.mark.parametrize("form", [KvFormat.MODEL, KvFormat.INT8])
@pytest.mark.parametrize("run", [run_natively, run_with_torch])
def test_a_text_has_the_same_bits_with_a_cached_prefix(run: Callable[[], Runner], form: KvFormat) -> None:
    """Prefixes within the window and beyond it, with room for all and with preemptions."""
    shared = [*PROMPTS[7], *PROMPTS[1]][:60]
    prompts = [[*shared[: 17 + 9 * number], *own] for number, own in enumerate(PROMPTS[:3])] * 2
    prompts += [shared, shared]
    expected, _ = serve(open_executor(run(), [64, 64], num_slots=12, form=form), prompts)
    for num_blocks in ([64, 64], [11, 10]):
        found, stats = serve(open_executor(run(), num_blocks, form=form), prompts, shares=True)
        assert found == expected
        assert stats.num_prefix_hits > 100


@pytest.mark.reads("kernels", "tests/runtime")
def test_recorded_steps_of_two_groups_give_the_same_texts(graphs: CountingRecorder) -> None:
    expected, _ = serve(open_executor(run_with_torch(), [8, 8]), PROMPTS[:2], 3)
    executor = open_executor(run_with_torch(), [8, 8])
    sizes = StepSize(2), StepSize(16, is_mixed=True)
    executor.limits = msgspec.structs.replace(executor.limits, recordable=sizes)
    for size in sizes:
        executor.control(Record(size))
    found, _ = serve(executor, PROMPTS[:2], 3)
    assert graphs.num_repeated == 3
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.tokens == theirs.tokens
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


@pytest.mark.reads("kernels", "tests/runtime")
@pytest.mark.parametrize(("num_blocks", "num_repeated"), [(16, 2), (12, 1)])
def test_a_step_that_shares_more_blocks_than_its_recording_has_room_for_is_computed_without_it(
    graphs: CountingRecorder, num_blocks: int, num_repeated: int
) -> None:
    """Eight sequences share four blocks, and then seven: 16 and 14 spans. With 12 blocks 14 have room."""
    prompts = [[*(PROMPTS[7] * 2)[:64], number] for number in range(8)]
    texts = []
    for sizes in ((), (StepSize(8),)):
        executor = open_executor(run_with_torch(), [num_blocks, 64], num_slots=8)
        executor.limits = msgspec.structs.replace(executor.limits, recordable=sizes)
        for size in sizes:
            executor.control(Record(size))
        found, stats = serve(executor, prompts, 2, shares=True)
        assert stats.num_prefix_hits == 7 * 64
        texts.append([text.tokens for text in found])
    assert texts[0] == texts[1]
    assert graphs.num_repeated == num_repeated
