"""The plan of a device's memory that a replica will make (`execution/build.py`), made before it exists."""

from dataclasses import dataclass
from typing import Final

from millrace_fit.errors import NoRoomError
from millrace_fit.kv_budget import (
    SHARE_OF_LIMIT,
    Budget,
    CacheDemand,
    CacheShape,
    bound_recordings,
    plan_cache,
    plan_host,
    plan_text_memory,
    share_out,
)
from millrace_fit.memory import EXCHANGE_OVERHEAD, GPU_OVERHEAD, Weights, step_bytes, tables_bytes

CLOSE_SIZES: Final = 8
WIDE_SIZES: Final = 16
CLOSE_UNTIL: Final = 32
MOST_ROWS: Final = 512
"""The computing of more rows takes longer than their launches: so many rows of a model of 8 billion weights
take 8 ms on a device with 10^15 operations a second."""


LEAST_MIXED: Final = 16
WIDE_MIXED: Final = 64
MOST_MIXED: Final = 512
"""Tokens of a step with a prompt. The computing of more takes longer than their launches."""


def choose_sizes(max_rows: int) -> tuple[int, ...]:
    """Return the numbers of rows that a GPU records: 1, 2, 4, 8, 16, 24, 32, 48, … up to `max_rows`.

    A step reads all weights whatever its rows, so a few padding rows cost little. But each recording takes
    the time of several steps, and memory.
    """
    max_rows = min(max_rows, MOST_ROWS)
    sizes = {1, 2, 4, *range(CLOSE_SIZES, CLOSE_UNTIL, CLOSE_SIZES)}
    sizes |= set(range(CLOSE_UNTIL, max_rows, WIDE_SIZES))
    return (*sorted(size for size in sizes if size < max_rows), max_rows)


def choose_mixed_sizes(max_tokens: int) -> tuple[int, ...]:
    """Return the numbers of tokens of steps with a prompt that a GPU records: 16, 32, 64, 128, 192, … 512.

    Up to some 128 tokens a step takes as long as the reading of all weights. Beyond that each token of
    padding takes time, so these sizes are closer.
    """
    max_tokens = min(max_tokens, MOST_MIXED)
    sizes = {LEAST_MIXED, 2 * LEAST_MIXED, *range(WIDE_MIXED, max_tokens, WIDE_MIXED)}
    return (*sorted(size for size in sizes if size < max_tokens), max_tokens)


def count_recordings(max_rows: int, max_tokens: int) -> int:
    """Return the number of sizes that a GPU records."""
    return len(choose_sizes(max_rows)) + len(choose_mixed_sizes(max_tokens))


CPU_OVERHEAD: Final = 96 << 20
WORKER_OVERHEAD: Final = 320 << 20
"""In a pod's memory, before the weights: HTTP process and supervisor (57 MB, measured once), and each process
that computes, with torch (some 300 MB). The page cache of their files counts as free."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The parts of a device's memory in bytes; on CPUs of the pod's memory, which all workers share."""

    total: int
    overhead: int
    weights: int
    tables: int
    step: int
    recordings: int
    """Recorded steps, on GPUs."""
    text: int
    """The text worker, on CPUs."""
    cache: CacheShape | None
    """None without room for one sequence of the required length, or for 16 tokens."""
    longest_alone: int
    """Tokens of the longest sequence that fits into the cache."""
    longest_together: int
    """Tokens of each sequence if as many as asked fit."""

    @property
    def taken(self) -> int:
        """The bytes of everything but the KV cache."""
        return self.overhead + self.weights + self.tables + self.step + self.recordings + self.text

    @property
    def is_over(self) -> bool:
        """Whether the parts are more than the total."""
        return self.taken + (self.cache.num_bytes if self.cache else 0) > self.total


def plan_memory(weights: Weights, total: int) -> MemoryPlan:
    """Return the plan of each device of `total` bytes, or of a pod's limit on CPUs.

    Raises ArchitectureError if so many devices can't share the model.
    """
    return _plan_gpu(weights, total) if weights.settings.device == "cuda" else _plan_cpu(weights, total)


def _plan_gpu(weights: Weights, total: int) -> MemoryPlan:
    settings = weights.settings
    overhead = GPU_OVERHEAD + (EXCHANGE_OVERHEAD if settings.tensor_parallel > 1 else 0)
    longest = _find_longest(weights, share_out(total - overhead, 0))
    tables, step = _tables(weights, longest), _step(weights, longest)
    recordings = bound_recordings(count_recordings(settings.num_sequences, settings.num_batched_tokens))
    free = total - overhead - weights.most_bytes
    budget, demand = share_out(free, tables + step, recordings), _demand(weights, longest)
    return MemoryPlan(
        total=total,
        overhead=overhead,
        weights=weights.most_bytes,
        tables=tables,
        step=step,
        recordings=recordings,
        text=0,
        cache=_plan_cache(demand, budget),
        longest_alone=demand.find_longest(1, budget.num_bytes),
        longest_together=demand.find_longest(settings.max_sequences or 1, budget.num_bytes),
    )


def _plan_cpu(weights: Weights, total: int) -> MemoryPlan:
    """All processes share the pod's memory: the text worker has its part, and the workers share the rest.

    The plan reserves nothing for steps and tables: they must fit into the rest of SHARE_OF_LIMIT.
    """
    settings, count = weights.settings, weights.settings.tensor_parallel
    overhead = CPU_OVERHEAD + count * WORKER_OVERHEAD
    free = max(0, total - overhead)
    text = plan_text_memory(plan_host(free, 0, SHARE_OF_LIMIT, "").num_bytes)
    longest = _find_longest(weights, _share_host(free, text, count))
    budget = _share_host(free - weights.all_bytes, text, count)
    tables, step = count * _tables(weights, longest), count * _step(weights, longest)
    demand = _demand(weights, longest)
    return MemoryPlan(
        total=total,
        overhead=overhead,
        weights=weights.all_bytes,
        tables=tables,
        step=step,
        recordings=0,
        text=text,
        cache=_plan_cache(demand, budget),
        longest_alone=demand.find_longest(1, budget.num_bytes),
        longest_together=demand.find_longest(settings.max_sequences or 1, budget.num_bytes),
    )


def _share_host(left: int, text: int, count: int) -> Budget:
    whole = plan_host(left, text, SHARE_OF_LIMIT, "within the limit")
    return Budget(whole.num_bytes // count, whole.source)


def _tables(weights: Weights, longest: int) -> int:
    return tables_bytes(weights.shape, weights.settings, longest)


def _step(weights: Weights, longest: int) -> int:
    return max(step_bytes(weights, shard, longest) for shard in weights.shards)


def _find_longest(weights: Weights, budget: Budget) -> int:
    """Return the longest sequence for the plan. The free memory before the weights limits it."""
    asked = weights.settings.max_model_length
    try:
        return plan_cache(_demand(weights, weights.shape.max_length), budget).max_model_length
    except NoRoomError:
        return asked or weights.shape.max_length


def _demand(weights: Weights, longest: int) -> CacheDemand:
    settings = weights.settings
    return CacheDemand(
        groups=weights.groups,
        max_sequences=settings.num_sequences,
        max_batched_tokens=settings.num_batched_tokens,
        longest=settings.max_model_length or longest,
        is_firm=settings.max_model_length is not None,
    )


def _plan_cache(demand: CacheDemand, budget: Budget) -> CacheShape | None:
    try:
        return plan_cache(demand, budget)
    except NoRoomError:
        return None
