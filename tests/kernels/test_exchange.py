"""Workers of one machine that hold a model together: their steps agree with the model's and each other's."""

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor

from millrace_kernels.exchange.group import gather_columns, sum_in_order
from millrace_kernels.exchange.memory import Exchange
from millrace_kernels.linear.format import Format
from millrace_kernels.native.abi import Library
from millrace_kernels.native.program import Batch, NativeProgram, Sizes
from millrace_kernels.native.recording.recorder import record
from millrace_kernels.native.weights.packing import NativePacker
from millrace_kernels.step import Step
from millrace_kernels.weights import Matrix, Shares
from tests.kernels.libraries import READS_KERNELS

Result = TypeVar("Result")
VOCABULARY, WIDTH, INNER, LAYERS = 37, 40, 96, 3
NUM_TOKENS, NUM_ROWS = 40, 4
BOUNDS = {1: (0, 37), 2: (0, 18, 37), 3: (0, 12, 24, 37), 4: (0, 9, 18, 27, 37)}
COLUMNS = {1: (0, 96), 2: (0, 32, 96), 3: (0, 32, 64, 96), 4: (0, 24, 48, 72, 96)}
"""How the inner width is shared: evenly or not."""


@dataclass(frozen=True)
class Part:
    """One worker's part of a small model without attention. Its last layer normalises its output."""

    table: Matrix
    norm: Tensor
    up: list[Matrix]
    down: list[Matrix]
    shares: Shares | None

    def forward(self, step: Step) -> Tensor:
        x = step.embed(self.table, self.shares)
        for up, down in zip(self.up[:-1], self.down[:-1], strict=True):
            x = step.linear_add(step.linear(step.rms_norm(x, self.norm, 1e-5), up), down, x)
        inner = step.linear(step.rms_norm(x, self.norm, 1e-5), self.up[-1])
        return step.add(step.rms_norm(step.linear_sum(inner, self.down[-1]), self.norm, 1e-5), x)

    def logits(self, hidden: Tensor, step: Step) -> Tensor:
        return step.logits(step.rms_norm(hidden, self.norm, 1e-5), self.table, self.shares)


def build(packer: NativePacker, index: int, count: int) -> Part:
    generator = torch.Generator().manual_seed(0)

    def random_matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator).mul_(columns**-0.5).to(packer.dtype)

    table = random_matrix(VOCABULARY, WIDTH)
    bias = torch.randn(WIDTH, generator=generator)
    first, last = COLUMNS[count][index : index + 2]
    begin, end = BOUNDS[count][index : index + 2]
    up, down = [], []
    for _ in range(LAYERS):
        rows, columns = random_matrix(INNER, WIDTH)[first:last], random_matrix(WIDTH, INNER)[:, first:last]
        up.append(packer.pack([rows], last - first, WIDTH, None))
        down.append(packer.pack([columns.contiguous()], WIDTH, last - first, bias if index == 0 else None))
    shares = Shares(index, BOUNDS[count]) if count > 1 else None
    norm = torch.ones(WIDTH, dtype=packer.dtype)
    return Part(packer.pack_table(table[begin:end].contiguous()), norm, up, down, shares)


@contextmanager
def exchanges(count: int) -> Iterator[list[Exchange | None]]:
    if count == 1:
        yield [None]
        return
    fd = os.memfd_create("test-exchange")
    yield [Exchange(fd, index, count) for index in range(count)]
    os.close(fd)


@contextmanager
def make_programs(
    library: Library, count: int, form: Format = Format.DENSE, num_threads: int = 1
) -> Iterator[list[NativeProgram]]:
    with exchanges(count) as shared:
        programs = []
        for index, exchange in enumerate(shared):
            part = build(NativePacker(torch.float32, form), index, count)
            recorded = record(part.forward, part.logits, torch.float32, count)
            sizes = Sizes(NUM_TOKENS, NUM_ROWS, num_threads)
            programs.append(NativeProgram(library, recorded, sizes, exchange))
            programs[-1].poison()
        yield programs


def run_all(programs: list[NativeProgram], work: Callable[[NativeProgram], Result]) -> list[Result]:
    """Let each worker do the same at the same time, as processes of their own would."""
    with ThreadPoolExecutor(len(programs)) as pool:
        return list(pool.map(work, programs))


TOKENS = torch.randint(0, VOCABULARY, (NUM_ROWS, 48), generator=torch.Generator().manual_seed(1))
BLOCKS = torch.zeros((NUM_ROWS, 3), dtype=torch.int64)


def run(program: NativeProgram, counts: list[int], emits: list[int]) -> Tensor:
    slots, begin = np.arange(len(counts), dtype=np.int32), np.zeros(len(counts), dtype=np.int32)
    batch = Batch(slots, begin, np.array(counts, dtype=np.int32))
    return program.run(batch, emits, TOKENS, [BLOCKS]).clone()


QUICK = ((2, 2, Format.DENSE), (2, 1, Format.INT8), (3, 1, Format.DENSE), (4, 2, Format.INT8))
WORKERS = [
    pytest.param(*how, marks=() if how in QUICK else READS_KERNELS)
    for how in product((2, 3, 4), (1, 2), (Format.DENSE, Format.INT8))
]


@pytest.mark.parametrize(("count", "num_threads", "form"), WORKERS)
def test_workers_together_compute_what_one_does(
    library: Library, count: int, num_threads: int, form: Format
) -> None:
    with make_programs(library, 1, form) as (alone,):
        expected = run(alone, [7, 1, 12], [0, 1, 2])
    with make_programs(library, count, form, num_threads) as programs:
        found = run_all(programs, lambda program: run(program, [7, 1, 12], [0, 1, 2]))
    spread = expected.std().item()
    assert ((found[0] - expected).abs().max() / spread).item() < (1e-5 if form == Format.DENSE else 4e-2)
    for other in found[1:]:
        assert torch.equal(other, found[0])


def test_a_rows_bits_depend_on_nothing_but_the_row_and_the_number_of_workers(library: Library) -> None:
    with make_programs(library, 3) as programs:
        crowded = run_all(programs, lambda program: run(program, [7, 1, 12], [0, 1, 2]))[0]
        for number, counts in enumerate(([7, 0, 0], [0, 1, 0], [0, 0, 12])):
            alone = run_all(programs, lambda program: run(program, counts, [number]))[0]  # noqa: B023
            assert torch.equal(alone[0], crowded[number])


@pytest.mark.parametrize("num_steps", [50, pytest.param(200, marks=READS_KERNELS)])
def test_steps_that_draw_and_others_may_follow_each_other_in_any_order(
    library: Library, num_steps: int
) -> None:
    """A worker that is ahead must not write where another still reads."""
    plans = [([random.Random(n).randrange(1, 10)] * 3, [0, 2] if n % 3 else []) for n in range(num_steps)]

    def run_each(program: NativeProgram) -> list[Tensor]:
        chance, results = random.Random(threading.get_ident()), []
        for counts, emits in plans:
            if chance.random() < 0.2:
                time.sleep(chance.random() * 1e-3)
            results.append(run(program, counts, emits))
        return results

    with make_programs(library, 1) as (alone,):
        expected = run_each(alone)
    with make_programs(library, 3) as programs:
        for found in run_all(programs, run_each):
            for mine, theirs in zip(found, expected, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_the_sum_is_in_the_order_of_the_workers() -> None:
    parts = [torch.tensor([1e8]), torch.tensor([1.0]), torch.tensor([-1e8])]
    assert sum_in_order(parts).item() == 0.0
    assert sum_in_order([parts[0], parts[2], parts[1]]).item() == 1.0
    assert parts[0].item() == 1e8, "a part stays as it was"


def test_columns_may_differ_in_number() -> None:
    assert gather_columns([torch.zeros(2, 1), torch.ones(2, 3)]).tolist() == [[0, 1, 1, 1]] * 2
