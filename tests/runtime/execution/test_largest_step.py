from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from millrace_fit.errors import NoRoomError
from millrace_fit.kv_budget import Budget, CacheDemand, CacheGroup, plan_cache, share_out
from millrace_runtime.execution.build import LoadedModel, load_model
from millrace_runtime.execution.collective import ALONE_RANK
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
