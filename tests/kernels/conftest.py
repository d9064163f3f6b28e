import functools
import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported, and at each launch

import numpy as np
import pytest
import torch

from millrace_kernels.native import build, cache, selfcheck
from millrace_kernels.native.abi import Library
from millrace_kernels.native.program import Batch, NativeProgram, Sizes
from millrace_kernels.native.recording.recorder import Recorder, record
from millrace_kernels.native.weights.packing import NativePacker
from millrace_kernels.paged_attention.cache import KvCache
from tests.kernels.libraries import INSTRUCTION_SETS, PORTABLE, find_once, load_once

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to `make test-long` what is rare in two ways: rarer cases of instruction sets between."""
    for item in items:
        if item.path.parent == HERE and len(list(item.iter_markers("reads"))) > 1:
            item.add_marker("long")


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """A test's random tensors are the same alone and after others."""
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _torch_computes_once() -> Iterator[None]:
    """Every instruction set is held against the same results of the torch path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selfcheck, "run_torch", functools.cache(selfcheck.run_torch))
        yield


@pytest.fixture(scope="session")
def load_kernel() -> Callable[..., Any]:
    """Load an operation's Triton launcher; its kernel runs interpreted, on CPU tensors."""

    def load(folder: str, name: str | None = None) -> Any:
        return getattr(importlib.import_module(f"millrace_kernels.{folder}.triton_kernel"), name or folder)

    return load


class Paged:
    """A paged batch with shuffled blocks; what no sequence owns is NaN."""

    def __init__(  # noqa: PLR0917
        self,
        queries: list[int],
        contexts: list[int],
        heads: int = 4,
        kv_heads: int = 2,
        head_dim: int = 8,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.block_size = 16
        self.query = torch.randn(sum(queries), heads, head_dim, generator=generator).to(dtype)
        self.starts = [sum(queries[:i]) for i in range(len(queries) + 1)]
        self.contexts = contexts
        counts = [-(-context // 16) for context in contexts]
        num_blocks = sum(counts) + 3
        order = torch.randperm(num_blocks, generator=generator).tolist()
        self.cache = torch.full((num_blocks, 2, kv_heads, 16, head_dim), float("nan"), dtype=dtype)
        self.tables = torch.full((len(queries), max(counts)), num_blocks - 1, dtype=torch.int32)
        for row, (count, context) in enumerate(zip(counts, contexts, strict=True)):
            blocks, order = order[:count], order[count:]
            self.tables[row, :count] = torch.tensor(blocks, dtype=torch.int32)
            for at in range(context):
                pair = torch.randn(2, kv_heads, head_dim, generator=generator)
                self.cache[blocks[at // 16], :, :, at % 16] = pair.to(dtype)
        self.scale = head_dim**-0.5

    def forget(self, window: int) -> None:
        """Let others have the blocks before each row's window: their memory and table entries are NaN's."""
        for row, context in enumerate(self.contexts):
            num_queries = self.starts[row + 1] - self.starts[row]
            num_unseen = max(0, context - num_queries + 1 - window) // 16
            self.cache[self.tables[row, :num_unseen].long()] = float("nan")
            self.tables[row, :num_unseen] = len(self.cache) - 1

    @property
    def kv(self) -> KvCache:
        return KvCache(self.cache)

    def tensors(self) -> tuple[Any, ...]:
        integers = (torch.tensor(part, dtype=torch.int32) for part in (self.starts, self.contexts))
        return (self.query, self.kv, *integers, self.tables)


@pytest.fixture
def exact_matmul(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU. The interpreter multiplies by numpy's BLAS, whose bits on some CPUs depend on the row."""
    monkeypatch.setattr(np, "matmul", _multiply_by_rows)


def _multiply_by_rows(left: Any, right: Any, dtype: Any = None) -> Any:
    """Multiply matrices like numpy, each row by the same operations wherever in the matrix it is."""
    return np.add.reduce(left[:, :, None] * right[None], axis=1, dtype=dtype)


@pytest.fixture(scope="session")
def paged() -> type[Paged]:
    return Paged


class NativeRows:
    """Runs a forward natively on chosen rows; memory that no row of the step owns is NaN."""

    def __init__(self, library: Library, dtype: torch.dtype = torch.float32, threads: int = 2) -> None:
        self.library, self.dtype, self.threads = library, dtype, threads

    def run(self, forward: Callable[[Recorder, torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        """Return what the forward makes of float32 rows [rows, even width]."""
        table = NativePacker(torch.float32).pack([x], *x.shape, None)
        recorded = record(lambda step: forward(step, step.embed(table)), lambda hidden, _: hidden, self.dtype)
        count = x.shape[0]
        program = NativeProgram(self.library, recorded, Sizes(count + 3, count + 3, self.threads))
        program.poison()
        ones, numbers = np.ones(count, dtype=np.int32), np.arange(count, dtype=np.int32)
        tokens = torch.arange(count)[:, None].contiguous()
        batch = Batch(numbers, ones * 0, ones)
        return program.run(batch, range(count), tokens, [torch.zeros_like(tokens)]).clone()


@pytest.fixture(scope="session", params=INSTRUCTION_SETS, ids=lambda one: one.value)
def library(request: pytest.FixtureRequest) -> Library:
    """Each instruction set's library that this CPU can run."""
    return load_once(request.param)


@pytest.fixture(scope="session")
def native_rows() -> type[NativeRows]:
    return NativeRows


@pytest.fixture(scope="session")
def good() -> Path:
    """A library that works."""
    return find_once(PORTABLE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty private cache, on a machine whose wheel brought nothing."""
    monkeypatch.setattr(build, "PACKAGED", tmp_path / "nothing")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cache.open_cache(cache.find_default_cache())
