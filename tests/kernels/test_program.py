"""A program refuses what it has no room for, and its memory is as large as the kernels believe."""

import ctypes
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from millrace_kernels.native import abi
from millrace_kernels.native.abi import Library
from millrace_kernels.native.errors import NativeError
from millrace_kernels.native.program import Batch, NativeProgram, Sizes
from millrace_kernels.native.recording.recorder import record
from millrace_kernels.native.selfcheck import Case, build_layer
from millrace_kernels.native.weights.packing import NativePacker
from millrace_kernels.paged_attention.cache import BLOCK_SIZE, SLACK, KvCache

LENGTH = 40
"""Positions of the rotary table; there are 3 blocks a slot, and tables as wide."""
DTYPE = torch.float32


@pytest.fixture(scope="module")
def program(good: Path) -> NativeProgram:
    """Has room for 8 tokens of 2 rows."""
    layer = build_layer(NativePacker(DTYPE), Case(lengths=(LENGTH,)))
    made = NativeProgram(
        Library(good),
        record(layer.forward, layer.logits, DTYPE),
        Sizes(8, 2, 1),
    )
    made.set_caches([cache_of()])
    return made


def cache_of(
    num_heads: int = 2, block_size: int = BLOCK_SIZE, dtype: torch.dtype = DTYPE, slack: int = SLACK
) -> KvCache:
    shape = (6, 2, num_heads, block_size, 8)
    flat = torch.zeros(np.prod(shape) + slack, dtype=dtype)
    return KvCache(flat[: np.prod(shape)].view(shape))


def run(program: NativeProgram, rows: list[tuple[int, int, int]], draws: int = 1, length: int = 48) -> Any:
    """Run rows of (slot, begin, count) over tables of two slots."""
    slot, begin, count = np.ascontiguousarray(np.array(rows, dtype=np.int32).reshape(-1, 3).T)
    tokens, blocks = torch.zeros((2, length), dtype=torch.int64), torch.arange(6).view(2, 3)
    return program.run(Batch(slot, begin, count), [0] * draws, tokens, [blocks])


def test_a_step_that_just_fits_runs(program: NativeProgram) -> None:
    assert run(program, [(0, 32, 8)]).isfinite().all()
    assert run(program, [(1, 0, 4), (0, 0, 4)], draws=2).shape[0] == 2
    assert run(program, [], draws=0).shape[0] == 0


@pytest.mark.parametrize(
    ("rows", "draws", "length", "text"),
    [
        ([(0, 0, 9)], 1, 48, "9 tokens in a program with room for 8"),
        ([(0, 0, 4), (1, 0, 5)], 1, 48, "9 tokens"),
        ([(0, 0, 1), (1, 0, 1), (0, 1, 1)], 1, 48, "3 rows in a program with room for 2"),
        ([(0, 0, 1)], 3, 48, "3 rows that draw"),
        ([(0, 33, 8)], 1, 48, "41 positions in a program with room for 40"),
        ([(0, 8, 8)], 1, 15, "16 positions in a program with room for 15"),
        ([(2, 0, 1)], 1, 48, "3 slots in a program with room for 2"),
    ],
)
def test_a_step_without_room_is_refused(
    program: NativeProgram, rows: list[tuple[int, int, int]], draws: int, length: int, text: str
) -> None:
    with pytest.raises(NativeError, match=text):
        run(program, rows, draws, length)


def test_a_model_without_rotary_has_no_last_position(good: Path) -> None:
    layer = build_layer(NativePacker(DTYPE), Case(lengths=(LENGTH,), is_turned=False))
    made = NativeProgram(Library(good), record(layer.forward, layer.logits, DTYPE), Sizes(8, 2, 2))
    made.set_caches([cache_of()])
    assert run(made, [(0, 40, 8)]).isfinite().all()


def rows_of(slot: int, begin: int, count: int) -> Batch:
    return Batch(*(np.array([number], dtype=np.int32) for number in (slot, begin, count)))


TOKENS, BLOCKS = torch.zeros((2, 48), dtype=torch.int64), torch.arange(6).view(2, 3)
MISREAD: dict[str, tuple[Batch, list[int], torch.Tensor, torch.Tensor]] = {
    "a slot below zero": (rows_of(-1000000, 0, 1), [0], TOKENS, BLOCKS),
    "a position below zero": (rows_of(0, -2, 3), [0], TOKENS, BLOCKS),
    "fewer tokens than none": (rows_of(0, 4, -1), [], TOKENS, BLOCKS),
    "a draw without tokens": (rows_of(0, 4, 0), [0], TOKENS, BLOCKS),
    "a draw of no row": (rows_of(0, 0, 1), [-1], TOKENS, BLOCKS),
    "rows of 64 bits": (Batch(*(np.zeros(1, dtype=np.int64) for _ in range(3))), [0], TOKENS, BLOCKS),
    "tokens of 32 bits": (rows_of(0, 0, 1), [0], TOKENS.int(), BLOCKS),
    "blocks of 32 bits": (rows_of(0, 0, 1), [0], TOKENS, BLOCKS.int()),
    "tokens that lie apart": (rows_of(0, 0, 1), [0], torch.zeros((48, 2), dtype=torch.int64).T, BLOCKS),
}


def test_rows_may_lie_apart(program: NativeProgram) -> None:
    rows = np.array([(1, 0, 3), (0, 0, 4)], dtype=np.int32)
    apart = program.run(Batch(*rows.T), [0, 1], TOKENS, [BLOCKS]).clone()
    together = Batch(*np.ascontiguousarray(rows.T))
    assert torch.equal(apart, program.run(together, [0, 1], TOKENS, [BLOCKS]))


@pytest.mark.parametrize("name", list(MISREAD))
def test_what_the_kernels_would_misread_is_our_own_bug(program: NativeProgram, name: str) -> None:
    batch, emits, tokens, blocks = MISREAD[name]
    with pytest.raises(AssertionError):
        program.run(batch, emits, tokens, [blocks])


@pytest.mark.parametrize(
    "caches",
    [
        [cache_of(), cache_of()],
        [cache_of(num_heads=3)],
        [cache_of(block_size=32)],
        [cache_of(dtype=torch.bfloat16)],
        [cache_of(slack=SLACK - 1)],
        [KvCache(cache_of().data.transpose(0, 1))],
    ],
)
def test_caches_of_another_shape_are_our_own_bug(program: NativeProgram, caches: list[KvCache]) -> None:
    with pytest.raises(AssertionError):
        program.set_caches(caches)


def test_caches_may_be_let_go(program: NativeProgram) -> None:
    program.set_caches([])
    with pytest.raises(NativeError, match="no KV cache"):
        run(program, [(0, 0, 1)])
    program.set_caches([cache_of()])
    assert run(program, [(0, 0, 1)]).isfinite().all()


@pytest.mark.parametrize("at", range(len(abi._SIZES)))
def test_a_library_that_lays_memory_out_otherwise_is_refused(
    good: Path, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Path(shutil.copy(good, tmp_path))
    other = list(abi._SIZES)
    other[at] += 1
    monkeypatch.setattr(abi, "_SIZES", tuple(other))
    with pytest.raises(NativeError, match="build it again"):
        Library(library)


def test_a_group_of_inputs_takes_what_the_readme_says() -> None:
    assert ctypes.sizeof(abi.Group) == 44
