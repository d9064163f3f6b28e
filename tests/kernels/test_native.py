"""Each instruction set's library, forced one by one, against the torch path and against itself."""

import ctypes
import math
import platform
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from millrace_kernels.device_kernels import QueryRows, select_kernels
from millrace_kernels.exchange.group import Alone
from millrace_kernels.linear.format import Format
from millrace_kernels.native import abi
from millrace_kernels.native.abi import Library, Pool, Program, Sampling
from millrace_kernels.native.errors import NativeError, RecordError
from millrace_kernels.native.instruction_sets import X86, InstructionSet
from millrace_kernels.native.program import Batch, NativeProgram, Sizes
from millrace_kernels.native.recording.recorder import record
from millrace_kernels.native.selfcheck import (
    BOUNDS,
    Case,
    Layer,
    build_layer,
    check_library,
    measure_error,
    run_native,
)
from millrace_kernels.native.weights.packing import NativePacker
from millrace_kernels.paged_attention.cache import SLACK, KvCache
from millrace_kernels.sampling.native import check_sampler
from millrace_kernels.step import Heads, Step
from millrace_kernels.tensor_packer import TensorPacker
from millrace_kernels.tensor_step import StepAttention, TensorStep
from millrace_kernels.weights import Packer
from tests.kernels.layer_shapes import PRODUCTS, SHAPES
from tests.kernels.libraries import PORTABLE, READS_KERNELS, find_once, load_once

Rows = Any
"""`native_rows` of conftest.py."""
LAYERS = [
    pytest.param(name, *how, marks=() if how[1] == Format.DENSE or name in PRODUCTS else READS_KERNELS)
    for name in SHAPES
    for how in BOUNDS
]
"""Rounded weights in every type meet the shapes that their products depend on, and attention both types."""


@pytest.mark.parametrize(("name", "dtype", "form"), LAYERS)
def test_a_layer_agrees_with_the_torch_path(
    library: Library, name: str, dtype: torch.dtype, form: Format
) -> None:
    assert measure_error(SHAPES[name], library, dtype, form) < BOUNDS[dtype, form]


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 4e-2)])
def test_a_products_norm_is_added(
    library: Library, native_rows: Rows, dtype: torch.dtype, bound: float
) -> None:
    """Threads share the rows. The last sum has float32 on both sides."""
    x, weight, norm = torch.randn(300, 38), torch.randn(38, 38) / 6, torch.randn(38).to(dtype)

    def forward(step: Step, x: torch.Tensor, packer: Packer) -> torch.Tensor:
        matrix = packer.pack([weight.to(dtype)], 38, 38, None)
        product = step.linear_sum(step.rms_norm(x, norm, 1e-5), matrix)
        x = step.add(step.rms_norm(product, norm, 1e-5), x)
        return step.add(step.linear_sum(step.rms_norm(x, norm, 1e-5), matrix), x)

    found = native_rows(library, dtype).run(lambda step, x: forward(step, x, NativePacker(dtype)), x)
    step = TensorStep.without_tokens(select_kernels(torch.device("cpu")), Alone())
    expected = forward(step, x.to(dtype), TensorPacker(dtype, torch.device("cpu"))).float()
    assert ((found - expected).abs().max() / expected.std()).item() < bound


@pytest.mark.parametrize("width", [32, 70, 2048 + 96])
def test_one_row_has_the_bits_that_it_has_among_others(
    library: Library, native_rows: Rows, width: int
) -> None:
    """Numbers of all sizes, also subnormal ones. AMX and the vectors of a single row agree on each."""
    sizes = 10.0 ** torch.randint(-39, 2, (2, 50, width)).float()
    x, weight = torch.randn(50, width) * sizes[0], (torch.randn(50, width) * sizes[1]).to(torch.bfloat16)
    weight[25:] = (torch.randn(25, width) * 1e-38).bfloat16()  # so that no large product hides the small ones
    matrix = NativePacker(torch.bfloat16).pack([weight], 50, width, None)
    ones = torch.ones(width, dtype=torch.bfloat16)

    def forward(step: Step, x: torch.Tensor) -> torch.Tensor:
        return step.linear_sum(step.rms_norm(x, ones, 1e-5), matrix)

    def run(first: int, end: int) -> torch.Tensor:
        return native_rows(library, torch.bfloat16).run(forward, x[first:end])

    whole = run(0, 50)
    for first, end in ((0, 1), (49, 50), (0, 2), (7, 23), (3, 20), (0, 32), (10, 49)):
        assert torch.equal(run(first, end), whole[first:end]), (first, end)


def test_matrices_of_odd_inputs_are_for_all_but_bfloat16(library: Library) -> None:
    case = Case(width=37, mlp_width=21, vocabulary=33)
    for form in Format.OF_PACKERS:
        assert measure_error(case, library, torch.float32, form) < BOUNDS[torch.float32, form]
    with pytest.raises(
        RecordError, match="37 inputs in bfloat16, but native products read pairs: use float32"
    ):
        measure_error(case, library, torch.bfloat16)


def in_steps(lengths: tuple[int, ...], chunk: int) -> tuple[tuple[int, ...], ...]:
    """Prefill the first sequence in chunks, the others at once beside its first."""
    chunks = [min(chunk, lengths[0] - begin) for begin in range(0, lengths[0], chunk)]
    return tuple((size, *((length if number == 0 else 0) for length in lengths[1:]))
                 for number, size in enumerate(chunks))  # fmt: skip


ROWS = [
    pytest.param(*how, num_threads, marks=() if num_threads == alone else READS_KERNELS)
    for how, alone in zip(BOUNDS, (1, 3, 3, 1, 2, 3, 1, 3, 2, 3), strict=True)
    for num_threads in (1, 2, 3)
]


@pytest.mark.parametrize(("dtype", "form", "num_threads"), ROWS)
def test_a_rows_bits_depend_on_nothing_but_the_row(
    library: Library, dtype: torch.dtype, form: Format, num_threads: int
) -> None:
    lengths = (530, 41, 7)
    expected = run_native(Case(lengths=lengths, steps=(lengths,)), library, dtype, 2, form)[0]
    for chunk in (530, 128, 33):
        case = Case(lengths=lengths, steps=in_steps(lengths, chunk))
        assert torch.equal(run_native(case, library, dtype, num_threads, form)[0], expected), chunk
    decoded = Case(lengths=lengths, steps=((500, 0, 0), *((1, 1, 0),) * 30))
    assert torch.equal(run_native(decoded, library, dtype, num_threads, form)[0], expected)


@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize("heads", [Heads(4, 2, 64), Heads(3, 1, 96), Heads(34, 2, 32)], ids=str)
def test_heads_of_whole_tiles_agree_with_torch_and_with_themselves(
    library: Library, heads: Heads, window: int | None
) -> None:
    """AMX has them in tiles. Memory that no token has written, or before the window, holds NaNs."""
    lengths = (530, 41, 7)
    case = Case(heads=heads, lengths=lengths, steps=(lengths,), window=window)
    assert measure_error(case, library, torch.bfloat16) < BOUNDS[torch.bfloat16, Format.DENSE]
    expected = run_native(case, library, torch.bfloat16, 2)[0]
    for steps in (in_steps(lengths, 33), ((500, 40, 0), *((1, 0, 0),) * 29, (1, 1, 7))):
        assert torch.equal(run_native(replace(case, steps=steps), library, torch.bfloat16, 3)[0], expected)


@pytest.mark.parametrize(
    ("dtype", "num_threads"),
    [
        (torch.float32, 3),
        (torch.bfloat16, 2),
        *(pytest.param(torch.float32, number, marks=READS_KERNELS) for number in (1, 2)),
        *(pytest.param(torch.bfloat16, number, marks=READS_KERNELS) for number in (1, 3)),
    ],
)
def test_threads_that_share_long_sequences_change_no_bit(
    library: Library, dtype: torch.dtype, num_threads: int
) -> None:
    """Room for shared spans is for as many longest sequences as threads: the last ones have none."""
    lengths = (1100, 1090, 1080, 1070, 530)
    expected = run_native(Case(lengths=lengths, steps=(lengths,)), library, dtype, 2)
    for last in (1, 3):  # one token, and a token with drafts
        steps = (tuple(length - last for length in lengths), (last,) * len(lengths))
        decoded = run_native(Case(lengths=lengths, steps=steps), library, dtype, num_threads)
        assert torch.equal(decoded, expected), last


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_of_a_model_may_differ_in_all_of_attention(library: Library, dtype: torch.dtype) -> None:
    """The last layers need more of the memory that threads share than the first."""
    cases = [
        Case(heads=Heads(4, 2, 6), is_turned=False),
        Case(heads=Heads(6, 3, 80), lengths=(600,)),
        Case(heads=Heads(9, 3, 16), is_normed=False, is_turned=False, window=70),
    ]
    blocks, tokens = torch.randperm(38)[None], torch.randint(0, 50, (1, 600))

    def stack(packer: Packer) -> list[Layer]:
        layers = [build_layer(packer, case) for case in cases]
        return [replace(layer, cache=replace(layer.cache, number=at)) for at, layer in enumerate(layers)]

    def forward(step: Step, layers: list[Layer]) -> torch.Tensor:
        x = step.embed(layers[0].table)
        for layer in layers:
            x = layer.compute(x, step)
        return x

    layers = stack(NativePacker(dtype))
    recorded = record(partial(forward, layers=layers), layers[0].logits, dtype)
    program = NativeProgram(library, recorded, Sizes(599, 1, 2))
    program.poison()
    program.set_caches([KvCache(poisoned(38, case.heads, dtype)) for case in cases])
    for begin, count in ((0, 599), (599, 1)):
        batch = Batch(*(np.array([number], dtype=np.int32) for number in (0, begin, count)))
        found = program.run(batch, [0], tokens, [blocks])
    layers, positions = stack(TensorPacker(dtype, torch.device("cpu"))), torch.arange(600)
    kernels, row = select_kernels(torch.device("cpu")), torch.zeros(1, dtype=torch.int64)
    rows = QueryRows([0, 600], [600], torch.tensor([0, 600]), torch.tensor([600]), row)
    step = TensorStep(
        kernels=kernels,
        tokens=tokens[0],
        positions=positions,
        cache_slots=[blocks[0, positions // 16] * 16 + positions % 16],
        kv_caches=[KvCache(poisoned(38, case.heads, dtype)) for case in cases],
        attention_of=StepAttention(kernels, [rows], [blocks], 16),
        on_layer=lambda: None,
    )
    expected = layers[0].logits(forward(step, layers)[-1:], step)
    assert ((found - expected).abs().max() / expected.std()).item() < BOUNDS[dtype, Format.DENSE] * 2


def poisoned(num_blocks: int, heads: Heads, dtype: torch.dtype) -> torch.Tensor:
    """Return a layer's cache, full of NaN."""
    shape = (num_blocks, 2, heads.num_kv_heads, 16, heads.head_dim)
    return torch.full((math.prod(shape) + SLACK,), float("nan"), dtype=dtype)[:-SLACK].view(shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_writes_the_keys_and_values_of_its_own_positions_alone(
    library: Library, dtype: torch.dtype
) -> None:
    case = Case(heads=Heads(6, 2, 16), lengths=(16,))
    layer = build_layer(NativePacker(dtype), case)
    program = NativeProgram(library, record(layer.forward, layer.logits, dtype), Sizes(16, 1, 2))
    cache = poisoned(1, case.heads, dtype)
    program.set_caches([KvCache(cache)])
    tokens, blocks = torch.arange(16)[None], torch.zeros(1, 1, dtype=torch.int64)

    def compute(begin: int, count: int) -> None:
        batch = Batch(*(np.array([number], dtype=np.int32) for number in (0, begin, count)))
        program.run(batch, [0], tokens, [blocks])

    for count in range(1, 17):
        compute(count - 1, 1)
        assert int(cache.isnan().sum()) == cache.numel() * (16 - count) // 16
    whole = cache.clone()
    for position in range(16):
        compute(position, 1)
        assert torch.equal(cache, whole), position


def test_a_library_that_takes_nan_for_a_number_is_refused(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample: Callable[..., None] = Library.sample

    def find_no_fault(self: Library, pool: Pool | None, asked: Sampling) -> None:
        sample(self, pool, asked)
        ctypes.memset(asked.faults, 0, asked.num_rows)

    monkeypatch.setattr(Library, "sample", find_no_fault)
    with pytest.raises(NativeError, match="faults"):
        check_sampler(library)


def test_a_wrong_library_is_refused(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    check_library(library)
    run: Callable[..., None] = Library.run

    def run_all_but_the_last(self: Library, pool: Pool, program: Program, step: abi.Step) -> None:
        program.num_ops -= 1
        run(self, pool, program, step)

    monkeypatch.setattr(Library, "run", run_all_but_the_last)
    with pytest.raises(Exception, match="have an error of"):
        check_library(library)


@pytest.mark.parametrize(
    ("instruction_set", "function"),
    [
        (PORTABLE, "compute<portable::Bfloat16, 1,"),
        (InstructionSet.AMX, "multiply_single"),
        (InstructionSet.AMX, "score_tiled"),
        (InstructionSet.AMX, "mix_tiled"),
    ],
)
def test_a_library_whose_single_row_or_tiled_attention_is_broken_is_refused(
    tmp_path: Path, instruction_set: InstructionSet, function: str
) -> None:
    """In a copy the function returns at once."""
    if platform.machine() not in X86:
        pytest.skip("another CPU's instruction returns")
    load_once(instruction_set)
    library = find_once(instruction_set)
    code, broken = bytearray(library.read_bytes()), tmp_path / "broken.so"
    symbols = subprocess.check_output(["nm", "-C", "--defined-only", str(library)], text=True).splitlines()
    places = [int(line.split()[0], 16) for line in symbols if function in line]
    assert places
    for place in places:  # code lies in the file as in memory
        code[place] = 0xC3
    broken.write_bytes(code)
    with pytest.raises(NativeError, match="have an error of"):
        check_library(Library(broken))
