"""What two replicas on the same cores do together, over what one of them does alone.

Each has a thread for every core, as in a pod that may use them all. Together they have twice as many threads
as cores, and a thread that spins while it waits keeps a core from one that could use it.
"""

import contextlib
import dataclasses
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.runtime.bystanders import Bystanders
from benchmarks.runtime.errors import EngineError
from benchmarks.runtime.figures import Spread, spread
from benchmarks.runtime.ours import our_library
from benchmarks.runtime.progress import report
from benchmarks.runtime.rounds import Engine, ask, running
from benchmarks.runtime.workload import CASES, Case, Figure, compute_rate, find_fault

SHARED_CASES = tuple(
    dataclasses.replace(case, figure=Figure.OUTPUT) for case in CASES if case.name in ("single", "c8")
)
"""Counted from the first request to the last token, so that the time of one alone counts too."""


def measure_replicas(
    model: Path,
    folder: Path,
    num_rounds: int,
    num_threads: int,
    bystanders: Bystanders,
    *,
    cases: Sequence[Case] = SHARED_CASES,
) -> dict[str, Spread]:
    """Return, for each case's name, together over alone, round by round. Raises EngineError."""
    with contextlib.ExitStack() as stack:
        replicas = []
        for name in ("first", "second"):
            logs = folder / name
            logs.mkdir()
            engine = stack.enter_context(our_library(model, "bf16", num_threads).start(logs))
            for case in cases:
                ask(engine, case.shorten(), "warm")
            engine.pause()
            replicas.append(engine)
        shares: dict[str, list[float]] = {case.name: [] for case in cases}
        for number in range(num_rounds):
            for case in cases:
                shares[case.name].append(compare_replicas(replicas, case, str(number), bystanders))
                report(f"round {number + 1}: two replicas {case.name} {shares[case.name][-1]:.2f}")
    return {name: spread(found) for name, found in shares.items()}


def compare_replicas(replicas: Sequence[Engine], case: Case, seed: str, bystanders: Bystanders) -> float:
    """Return what all do together over what one does alone, on average. Raises EngineError.

    Together they get other prompts than alone: those would be in their prefix caches.
    """
    alone = []
    for engine in replicas:
        with running(engine), bystanders.watch(engine):
            alone.append(ask(engine, case, f"alone {seed}"))
    with contextlib.ExitStack() as stack:
        for engine in replicas:
            stack.enter_context(running(engine))
        stack.enter_context(bystanders.watch(*replicas))
        together = ask_at_once(replicas, case, seed)
    return together / statistics.mean(alone)


def ask_at_once(replicas: Sequence[Engine], case: Case, seed: str) -> float:
    """Ask all replicas the same at the same time; return the rate of all answers. Raises EngineError."""
    prompts = case.draw_prompts(seed)
    with ThreadPoolExecutor(len(replicas)) as threads:
        answers = list(threads.map(lambda engine: engine.complete(case, prompts), replicas))
    for completions in answers:
        if (fault := find_fault(case, completions)) is not None:
            raise EngineError(fault)
    return compute_rate(case, [completion for completions in answers for completion in completions])
