"""A small case that a library must pass before use: one layer, compared with the torch path."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from millrace_kernels.device_kernels import select_kernels
from millrace_kernels.linear.format import Format, Number
from millrace_kernels.linear.stored_rounding import RoundingPacker
from millrace_kernels.native.abi import Library
from millrace_kernels.native.errors import NativeError
from millrace_kernels.native.program import Batch, NativeProgram, Sizes
from millrace_kernels.native.recording.recorder import record
from millrace_kernels.native.weights.packing import NativePacker
from millrace_kernels.paged_attention.cache import BLOCK_SIZE, SCALE_TYPE, SLACK, KvCache, KvFormat
from millrace_kernels.paged_attention.tiled import TiledAttention
from millrace_kernels.sampling.native import check_sampler
from millrace_kernels.step import Angles, CacheLayer, HeadNorms, Heads, Routing, Step
from millrace_kernels.tensor_packer import TensorPacker
from millrace_kernels.tensor_step import TensorStep
from millrace_kernels.weights import Experts, Matrix, Packer

BOUNDS = {
    (torch.float32, Format.DENSE): 1e-4,
    (torch.bfloat16, Format.DENSE): 6e-2,
    (torch.float32, Format.INT8): 0.1,
    (torch.float32, Format.INT4): 0.1,
    (torch.bfloat16, Format.INT8): 0.18,
    (torch.bfloat16, Format.INT4): 0.18,
    (torch.float32, Format(Number.INT4, 32, has_zeros=True)): 0.1,
    (torch.bfloat16, Format(Number.INT4, 128)): 0.18,
    (torch.float32, Format(Number.FP8, 16)): 1e-4,
    (torch.bfloat16, Format(Number.FP8)): 6e-2,
}
"""The largest allowed error, relative to the logits' spread.

In float32, rounded weights agree to 1e-6 unless a number is rounded differently. On an Intel CPU with
AVX-512 torch's library sums in another order, and one number was: an error of 0.057, and of 0.000 with
MKL_ENABLE_INSTRUCTIONS=AVX2. In bfloat16, in which only the torch path keeps residuals, the largest
difference of the tests' shapes was 0.041, and 0.127 with rounded weights, with AVX2 and without. A wrong lane
or block causes an error of the whole spread.
"""

CACHE_BOUNDS = {torch.float32: 0.02, torch.bfloat16: 0.12}
"""The same with a cache in INT8. The largest difference of the tests' shapes was 0.000 in float32, where a
number may be rounded differently, and 0.073 in bfloat16."""


@dataclass(frozen=True, slots=True)
class Case:
    """A layer's shape, and the sequences of the steps."""

    width: int = 48
    mlp_width: int = 40
    vocabulary: int = 50
    num_experts: int = 2
    """Each as wide as the MLP. A row chooses all: paths that round differently might choose others."""
    heads: Heads = Heads(num_heads=6, num_kv_heads=2, head_dim=8)  # noqa: RUF009  frozen
    is_normed: bool = True
    """Whether queries and keys are normalised."""
    is_turned: bool = True
    """Whether they are rotated."""
    lengths: tuple[int, ...] = (19, 1, 33)
    """The lengths of the sequences after the last step."""
    steps: tuple[tuple[int, ...], ...] = ((19, 1, 33),)
    """The number of tokens of each sequence, by step."""
    window: int | None = None
    """The keys that a token sees at most."""
    kv: KvFormat = KvFormat.MODEL
    """The form of the cache."""
    has_sinks: bool = False
    """Whether attention has sinks."""
    limit: float | None = None
    """Of the experts' clamped gates; then router and experts have biases, too."""


SINGLE_ROW = Case(heads=Heads(2, 1, 32), lengths=(70,), steps=((69,), (1,)))
"""A prompt whose heads fill AMX's tiles, and its next token alone."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of random weights, with embedding and head."""

    heads: Heads
    cache: CacheLayer
    table: Matrix
    norm: Tensor
    qkv: Matrix
    output: Matrix
    gate_up: Matrix
    down: Matrix
    router: Matrix
    expert_gates: Experts
    expert_downs: Experts
    angles: Angles | None
    norms: HeadNorms | None
    sinks: Tensor | None
    limit: float | None

    def forward(self, step: Step) -> Tensor:
        """Return hidden states."""
        return self.compute(step.embed(self.table), step)

    def compute(self, x: Tensor, step: Step) -> Tensor:
        """Return the residuals x with the sums of attention, MLP and experts."""
        qkv = step.linear(step.rms_norm(x, self.norm, 1e-5), self.qkv)
        query = step.rotary_kv_write(qkv, self.cache, self.heads, self.angles, self.norms)
        mixed = step.attention(query, self.cache, self.heads, self.heads.head_dim**-0.5, self.sinks)
        x = step.linear_add(mixed, self.output, x)
        gated = step.linear_silu_mul(step.rms_norm(x, self.norm, 1e-5), self.gate_up)
        x = step.linear_add(gated, self.down, x)
        normal = step.rms_norm(x, self.norm, 1e-5)
        routes = step.route(normal, self.router, Routing(self.router.outputs))
        gated = step.experts_silu_mul(normal, routes, self.expert_gates, self.limit)
        return step.experts_add(gated, routes, self.expert_downs, x)

    def logits(self, hidden: Tensor, step: Step) -> Tensor:
        """Return logits, with the table as the head."""
        return step.logits(step.rms_norm(hidden, self.norm, 1e-5), self.table)


def build_layer(packer: Packer, case: Case) -> Layer:
    """Return the same weights for every packer of one type."""
    generator = torch.Generator().manual_seed(0)

    def random(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator).mul_(columns**-0.5).to(packer.dtype)

    def bias(*shape: int) -> Tensor | None:
        return None if case.limit is None else torch.randn(shape, generator=generator).to(packer.dtype)

    heads, width, mlp, dim = case.heads, case.width, case.mlp_width, case.heads.head_dim
    experts = case.num_experts
    query, kv = heads.num_heads * dim, heads.num_kv_heads * dim
    turns = torch.rand(max(case.lengths), dim // 2, generator=generator) * 6
    return Layer(
        heads=heads,
        cache=CacheLayer(0, window=case.window),
        table=packer.pack_table(random(case.vocabulary, width)),
        norm=random(1, width)[0] + 1,
        qkv=packer.pack([random(query, width), random(2 * kv, width)], query + 2 * kv, width, None),
        output=packer.pack([random(width, query)], width, query, random(1, width)[0]),
        gate_up=packer.pack_gated([random(mlp, width) for _ in "gu"], 2 * mlp, width, random(1, 2 * mlp)[0]),
        down=packer.pack([random(width, mlp)], width, mlp, None),
        router=packer.pack_router(random(experts, width), bias(experts)),
        expert_gates=packer.pack_gated_experts(
            (random(mlp, width) for _ in range(2 * experts)),
            experts,
            2 * mlp,
            width,
            bias=bias(experts, 2 * mlp),
        ),
        expert_downs=packer.pack_experts(
            (random(width, mlp) for _ in range(experts)), experts, width, mlp, bias=bias(experts, width)
        ),
        angles=Angles(torch.stack((turns.cos(), turns.sin()))) if case.is_turned else None,
        norms=HeadNorms(random(1, dim)[0] + 1, random(1, dim)[0] + 1, 1e-5) if case.is_normed else None,
        sinks=torch.randn(heads.num_heads, generator=generator) * 2 if case.has_sinks else None,
        limit=case.limit,
    )


def rounding(packer: Callable[[Format], Packer], form: Format) -> Packer:
    """Return a packer of plain numbers in any format, of packers or of checkpoints."""
    return packer(form) if form in Format.OF_PACKERS else RoundingPacker(packer(Format.DENSE), form)


def check_library(library: Library) -> None:
    """Compare small cases: both types and every format, rounded caches, a single row. Raises NativeError."""
    for (dtype, form), bound in BOUNDS.items():
        _require(measure_error(Case(), library, dtype, form), bound, f"in a small {form} {dtype} case")
    for dtype, bound in CACHE_BOUNDS.items():
        worst = measure_error(Case(kv=KvFormat.INT8), library, dtype)
        _require(worst, bound, f"with a cache in Int8, {dtype}")
    worst = measure_error(SINGLE_ROW, library, torch.bfloat16)
    _require(worst, BOUNDS[torch.bfloat16, Format.DENSE], "in a single row after a prompt")
    check_sampler(library)


def _require(worst: float, bound: float, where: str) -> None:
    if not worst < bound:
        raise NativeError(f"the native kernels have an error of {worst:.2g} {where}")


def measure_error(case: Case, library: Library, dtype: torch.dtype, form: Format = Format.DENSE) -> float:
    """Return the largest difference of the last step's logits from the torch path's, in their spread."""
    expected = run_torch(case, dtype, form)
    return ((run_native(case, library, dtype, form=form) - expected).abs().max() / expected.std()).item()


@dataclass(frozen=True, slots=True)
class Tables:
    """Tokens and blocks of the sequences. Their slots are in reverse order."""

    tokens: Tensor
    blocks: Tensor
    slots: list[int]


def _tables(case: Case) -> Tables:
    generator = torch.Generator().manual_seed(1)
    count, longest = len(case.lengths), max(case.lengths)
    blocks = -(-longest // BLOCK_SIZE)
    return Tables(
        torch.randint(0, case.vocabulary, (count, longest), generator=generator),
        torch.randperm(count * blocks, generator=generator).view(count, blocks),
        list(reversed(range(count))),
    )


def _caches(case: Case, dtype: torch.dtype) -> list[KvCache]:
    """Return one layer's cache, poisoned where nothing was written."""
    return [allocate_poisoned_cache(_tables(case).blocks.numel(), case.heads, dtype, case.kv)]


def allocate_poisoned_cache(num_blocks: int, heads: Heads, dtype: torch.dtype, form: KvFormat) -> KvCache:
    """Return a layer's cache that no token has written yet, for a model of a type."""
    shape = (num_blocks, 2, heads.num_kv_heads, BLOCK_SIZE, heads.head_dim)
    flat = torch.zeros((math.prod(shape) + SLACK,), dtype=form.stored_type(dtype))
    scales = None if form is KvFormat.MODEL else torch.zeros(shape[:-1], dtype=SCALE_TYPE)
    cache = KvCache(flat[:-SLACK].view(shape), scales, form)
    cache.poison()
    return cache


def run_native(
    case: Case, library: Library, dtype: torch.dtype, num_threads: int = 2, form: Format = Format.DENSE
) -> Tensor:
    """Return the last step's logits, float32 [sequences that it computes, vocabulary]."""
    layer = build_layer(rounding(partial(NativePacker, dtype), form), case)
    sizes = Sizes(max(sum(step) for step in case.steps), len(case.lengths), num_threads)
    recorded = record(layer.forward, layer.logits, dtype)
    program = NativeProgram(library, recorded, sizes)
    program.poison()
    caches, tables = _caches(case, dtype), _tables(case)
    program.set_caches(caches)
    begin = np.zeros(len(case.lengths), dtype=np.int32)
    slots, logits = np.array(tables.slots, dtype=np.int32), torch.empty(0)
    for counts in case.steps:
        batch = Batch(slots, begin.copy(), np.array(counts, dtype=np.int32))
        emits = np.flatnonzero(counts).tolist()
        logits = program.run(batch, emits, tables.tokens, [tables.blocks]).clone()
        begin += batch.count
        for slot, position in zip(tables.slots, begin.tolist(), strict=True):
            caches[0].poison(tables.blocks[slot, : _count_unseen(case, position)])
    return logits


def _count_unseen(case: Case, position: int) -> int:
    """Return how many blocks a token at this position does not see, nor any after it."""
    return 0 if case.window is None else max(0, position + 1 - case.window) // BLOCK_SIZE


def run_torch(case: Case, dtype: torch.dtype, form: Format = Format.DENSE) -> Tensor:
    """Return the same logits by the torch path, with all sequences complete in one step."""
    layer = build_layer(rounding(partial(TensorPacker, dtype, torch.device("cpu")), form), case)
    tables, counts = _tables(case), torch.tensor(case.lengths)
    owners = torch.tensor(tables.slots).repeat_interleave(counts)
    positions = torch.cat([torch.arange(count) for count in case.lengths])
    ends = counts.cumsum(0)
    blocks = tables.blocks[owners, positions // BLOCK_SIZE]
    step = TensorStep(
        kernels=select_kernels(torch.device("cpu")),
        tokens=tables.tokens[owners, positions],
        positions=positions,
        cache_slots=[blocks * BLOCK_SIZE + positions % BLOCK_SIZE],
        kv_caches=_caches(case, dtype),
        attention_of=lambda layer, heads: TiledAttention(
            [0, *ends.tolist()],
            case.lengths,
            tables.blocks[tables.slots],
            heads.num_kv_heads,
            BLOCK_SIZE,
            window=layer.window,
        ),
        on_layer=lambda: None,
    )
    return layer.logits(layer.forward(step)[ends - 1], step)
