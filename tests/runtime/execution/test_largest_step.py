from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from millrace_fit.errors import NoRoomError
from millrace_fit.kv_budget import (
    SHARE_OF_THE_REST,
    Budget,
    CacheDemand,
    CacheGroup,
    bound_recordings,
    plan_cache,
    share_out,
)
from millrace_runtime.execution.build import LoadedModel, load_model
from millrace_runtime.execution.collective import ALONE_RANK
from millrace_runtime.execution.errors import CapacityError
from millrace_runtime.execution.kv_cache import build_largest_plan, run_largest
from millrace_runtime.execution.settings import ExecutionSettings
from millrace_runtime.protocol.executor import Wake
from millrace_runtime.protocol.step import KvGroup, Limits
from tests.runtime.execution.conftest import SMALL

LIMITS = Limits((KvGroup(1),), 16, 8, 2, 100, 199, 64)


@pytest.mark.parametrize(
    ("slots", "tokens", "length", "rows", "size"),
    [(8, 64, 100, 8, 8), (8, 4, 100, 4, 1), (2, 512, 100, 2, 99), (3, 64, 100, 3, 21)],
)
def test_it_has_the_most_rows_and_as_many_tokens(
    slots: int, tokens: int, length: int, rows: int, size: int
) -> None:
    limits = msgspec.structs.replace(
        LIMITS, num_slots=slots, max_batched_tokens=tokens, max_model_length=length
    )
    plan = build_largest_plan(limits)
    assert [row.num_tokens for row in plan.rows] == [size] * rows
    assert all(row.emit for row in plan.rows)


@pytest.mark.parametrize(("slots", "most"), [(16, 272), (137, 272), (41, 80), (32, 80)])
def test_it_has_as_many_draws_as_a_step_may_have(slots: int, most: int) -> None:
    limits = msgspec.structs.replace(
        LIMITS, num_slots=slots, max_batched_tokens=4096, max_draft=16, max_draws=most
    )
    assert sum(1 + len(row.draft) for row in build_largest_plan(limits).rows) == most


def load(path: Path) -> LoadedModel:
    settings = ExecutionSettings(path, kernels="torch", **(SMALL | {"max_batched_tokens": 96}))
    return load_model(settings, Budget(1 << 30, "a test"), ALONE_RANK, print)


def test_it_runs_and_leaves_nothing_behind(make_model: Callable[..., Path]) -> None:
    """As the model would be served: every row draws, also by what costs memory."""
    loaded, opened = load(make_model()), []

    def open_executor(num_blocks: Sequence[int], length: int) -> object:
        opened.append(loaded.allocate(num_blocks, length))
        return opened[-1]

    limits = msgspec.structs.replace(
        LIMITS, num_slots=12, max_batched_tokens=96, max_model_length=loaded.longest
    )
    results = run_largest(limits, open_executor)  # type: ignore[arg-type]
    assert len(results) == 12
    assert all(len(row.tokens) == 1 and len(row.logprobs[0].top_tokens) == 20 for row in results)
    assert loaded.runner.kv_caches == []
    opened[0].control(Wake())  # it is empty, and could go on


def test_the_cache_gets_a_share_of_what_is_left_beside_it() -> None:
    budget = share_out(1000, 200)
    assert budget.num_bytes == 760
    assert "beside 200 bytes for the largest step" in budget.source


def test_a_gpu_that_is_full_says_so() -> None:
    with pytest.raises(NoRoomError, match=r"a KV cache of 0 bytes .* the GPU's free memory beside 200 bytes"):
        plan_cache(CacheDemand((CacheGroup(100),), 1, 64, 100, is_firm=False), share_out(100, 200))


GIB, STEP = 1 << 30, 1 << 28
BLOCK = 2 * 2 * 2 * 8 * 16 * 4
WEIGHTS = 3 << 30


class Card:
    """A GPU as its driver and torch's allocator show it, and an executor whose steps take its memory.

    Nothing else is known of it, such as its name or its whole memory: other processes may have a part.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int, error: Exception | None = None) -> None:
        self._free, self._error, self._peak, self.num_steps = free, error, WEIGHTS, 0
        said: dict[str, Callable[[], object]] = {
            "memory_allocated": lambda: WEIGHTS,
            "reset_peak_memory_stats": lambda: None,
            "max_memory_allocated": lambda: self._peak,
            "empty_cache": lambda: None,
            "mem_get_info": lambda: (free, 141 * GIB),
        }
        for name, answer in said.items():
            monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer())
        monkeypatch.setattr(LoadedModel, "allocate", lambda loaded, *_: self._open(loaded))

    def _open(self, loaded: LoadedModel) -> Any:
        limits, rows = loaded.plan.limits([1], loaded.longest), SimpleNamespace(rows=[])
        return SimpleNamespace(limits=limits, submit=self._run, collect=lambda: rows, control=lambda _: None)

    def _run(self, _plan: object) -> None:
        self.num_steps += 1
        if self._error is not None:
            raise self._error
        if self._free < STEP:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {STEP} bytes")
        self._peak = WEIGHTS + STEP


def load_on_a_gpu(path: Path, given: int | None) -> LoadedModel:
    loaded = load(path)
    settings = replace(loaded.plan.settings, kv_cache_bytes=given)
    return replace(loaded, plan=replace(loaded.plan, device=torch.device("cuda", 0), settings=settings))


RECORDED = bound_recordings(5 + 4)
"""Of 1, 2, 4, 8 and 12 rows, and steps of 16, 32, 64 and 96 tokens with a prompt."""


@pytest.mark.parametrize(
    ("free", "given", "num_bytes"),
    [
        (80 * GIB, None, (80 * GIB - STEP - RECORDED) * SHARE_OF_THE_REST),
        (2 * GIB, None, (2 * GIB - STEP - RECORDED) * SHARE_OF_THE_REST),
        (2 * GIB, GIB, GIB),
        (2 * GIB, 2 * GIB - STEP - RECORDED, 2 * GIB - STEP - RECORDED),
    ],
    ids=["a whole card", "a slice of it or a shared one", "a cache that fits", "to the last byte"],
)
def test_a_gpus_cache_fits_beside_the_largest_step_into_what_the_driver_has_free(
    make_model: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    free: int,
    given: int | None,
    num_bytes: float,
) -> None:
    loaded, card = load_on_a_gpu(make_model(), given), Card(monkeypatch, free)
    shape = loaded.choose_cache(Budget(7, "the host's memory, where no GPU's cache is"))
    assert shape.num_blocks == (int(num_bytes) // BLOCK,)
    assert card.num_steps > loaded.plan.limits([1], loaded.longest).depth, "as many as may be in flight"


TOO_MUCH = 2 * GIB - STEP - RECORDED + 1


@pytest.mark.parametrize(
    ("free", "given", "text"),
    [
        (STEP - 1, None, "no memory for the largest step beside the weights: lower --max-batched-tokens or"),
        (
            STEP - 1,
            1 << 20,
            "no memory for the largest step beside the weights: lower --max-batched-tokens or",
        ),
        (STEP + RECORDED, None, r"a KV cache of 0 bytes .* holds 0 tokens.* give the cache more memory"),
        (
            2 * GIB,
            TOO_MUCH,
            rf"--kv-cache-memory {TOO_MUCH} .* beside {STEP} .* lower it to {TOO_MUCH - 1} or less, or lower",
        ),
    ],
)
def test_a_gpu_without_memory_for_the_largest_step_is_refused_before_it_serves(
    make_model: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    free: int,
    given: int | None,
    text: str,
) -> None:
    loaded = load_on_a_gpu(make_model(), given)
    Card(monkeypatch, free)
    with pytest.raises(CapacityError, match=text):
        loaded.choose_cache(Budget(0, "unused"))


def test_another_error_of_the_largest_step_is_no_lack_of_memory(
    make_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_on_a_gpu(make_model(), GIB)
    Card(monkeypatch, 2 * GIB, RuntimeError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(RuntimeError, match="illegal"):
        loaded.choose_cache(Budget(0, "unused"))
