"""From a server's start to its first streamed token, ours beside Python peers'."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.runtime import client
from benchmarks.runtime.engines import EngineSpec, ServerEngine
from benchmarks.runtime.errors import EngineError
from benchmarks.runtime.figures import OURS, Comparison, ratios, spread
from benchmarks.runtime.progress import report
from benchmarks.runtime.workload import Case, Figure, find_fault

PROMPT = "Once upon a time"
START = Case("start", Figure.PREFILL, 1, 4, 1)
MAX_ROUNDS = 3
"""A start of some takes a minute."""


class Starts(NamedTuple):
    """What was found."""

    seconds: dict[str, list[float]]
    """Each server's, round by round."""
    failures: dict[str, str]
    """Why a peer was left out, by its name."""


def time_starts(specs: Sequence[EngineSpec], folder: Path, num_rounds: int) -> Starts:
    """Start the servers in turn; a first start that fills caches is not counted.

    Raises EngineError when it is ours that fails.
    """
    seconds: dict[str, list[float]] = {spec.name: [] for spec in specs}
    failures: dict[str, str] = {}
    for number in range(-1, min(num_rounds, MAX_ROUNDS)):
        for spec in [spec for spec in specs if spec.name in seconds]:
            try:
                seconds[spec.name].append(time_start(spec, folder))
            except EngineError as error:
                if spec.name == OURS:
                    raise
                report(f"{spec.name} failed: {error}")
                failures[spec.name] = str(error)
                del seconds[spec.name]
                continue
            report(f"start {number + 1}: {spec.name} {seconds[spec.name][-1]:.1f} s")
    return Starts({name: found[1:] for name, found in seconds.items()}, failures)


def time_start(spec: EngineSpec, folder: Path) -> float:
    """Start a server for one token; return the seconds from its start to it. Raises EngineError."""
    with spec.start(folder) as engine:
        assert isinstance(engine, ServerEngine)
        answers = client.complete(engine.base, engine.dialect, [PROMPT], START.num_output_tokens)
        if (fault := find_fault(START, answers)) is not None:
            raise EngineError(fault)
        return answers[0].first_token - engine.group.began


def compare_starts(seconds: Mapping[str, Sequence[float]]) -> Comparison | None:
    """Return ours over the fastest peer's, or None without one."""
    comparisons = [
        Comparison(spread(ratios(seconds[OURS], theirs)), name)
        for name, theirs in seconds.items()
        if name != OURS
    ]
    return max(comparisons, key=lambda comparison: comparison.ratio.median, default=None)
