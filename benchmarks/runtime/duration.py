"""About how long the rounds of a run take, before it begins. Pure.

The rates are those of a plain core with AVX2 and others' work beside it: a quiet or newer machine is faster.
"""

from collections.abc import Sequence

from benchmarks.runtime.models.shapes import BYTES_PER_VALUE, Shape
from benchmarks.runtime.workload import Case

BYTES_PER_SECOND = 10e9
PRODUCTS_PER_SECOND = 15e9
"""Of each thread: a multiplication and an addition."""
TURN_SECONDS = 1.0
"""What each turn costs besides: the engine goes on, wakes and stops again."""
START_SECONDS = 20.0


def estimate_seconds(
    shape: Shape, cases: Sequence[Case], num_engines: int, num_rounds: int, num_threads: int
) -> float:
    """Return how long engines take to start, to warm up, and to answer in all rounds."""
    answers = sum(estimate_answer(shape, case, num_threads) for case in cases)
    warm = sum(estimate_answer(shape, case.shorten(), num_threads) for case in cases)
    turns = num_rounds * (answers + TURN_SECONDS * len(cases))
    return num_engines * (START_SECONDS + warm + turns)


def estimate_answer(shape: Shape, case: Case, num_threads: int) -> float:
    """Return how long an engine takes for a case: its prompts, then step by step its output."""
    weights, products = shape.num_read_weights, num_threads * PRODUCTS_PER_SECOND
    prompts = case.num_requests * case.num_prompt_tokens * weights / products
    step = max(BYTES_PER_VALUE * weights / BYTES_PER_SECOND, case.num_requests * weights / products)
    return prompts + case.num_output_tokens * step
