"""`python -m benchmarks.workers`: what two workers that hold a model together do, over one process.

Both have the same cores: two workers with half of the threads each, or one process with all. So the ratio is
what meeting twice a layer costs, and nothing is won. Two shapes: one whose matrices the caches nearly hold,
where meeting costs most, and one of a billion weights.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import add_output, publish, read_commit, read_date
from benchmarks.runtime.figures import Spread, spread
from benchmarks.runtime.machine import describe_machine, read_num_threads
from benchmarks.runtime.models.checkpoint import write_model
from benchmarks.runtime.models.shapes import BILLION, SMALL, Shape
from benchmarks.runtime.ours import our_library
from benchmarks.runtime.progress import report
from benchmarks.runtime.rounds import Engine, ask, running
from benchmarks.runtime.workload import CASES, WAKE, Case

SHAPES = {"small": SMALL, "billion": BILLION}
ASKED = tuple(case for case in CASES if case.name in ("single", "prefill", "c8"))
WORKERS = 2


def compare(shape: Shape, folder: Path, num_rounds: int, cases: Sequence[Case]) -> dict[str, Any]:
    """Return, for each case's name, the rates and two workers over one. Raises EngineError."""
    model, threads = write_model(folder / "model", shape), read_num_threads()
    with contextlib.ExitStack() as stack:
        engines: list[Engine] = []
        for number in (1, WORKERS):
            logs = folder / str(number)
            logs.mkdir()
            engines.append(stack.enter_context(our_library(model, "bf16", threads, number).start(logs)))
            for case in cases:
                ask(engines[-1], case.shorten(), "warm")
            engines[-1].pause()
        found = {case.name: measure(engines, case, num_rounds) for case in cases}
    return {name: render(rates) for name, rates in found.items()}


def measure(engines: Sequence[Engine], case: Case, num_rounds: int) -> list[list[float]]:
    """Return each engine's rates, round by round. Every round begins with the other one."""
    rates: list[list[float]] = [[] for _ in engines]
    for number in range(num_rounds):
        for place in range(len(engines)):
            which = (number + place) % len(engines)
            with running(engines[which]):
                ask(engines[which], WAKE, f"{case.name} {number}")
                rates[which].append(ask(engines[which], case, str(number)))
        report(f"round {number + 1}: {case.name} {' '.join(f'{one[-1]:.1f}' for one in rates)}")
    return rates


def render(rates: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return medians and the ratio within the rounds."""
    ratio: Spread = spread(two / one for one, two in zip(*rates, strict=True))
    one, two = (statistics.median(each) for each in rates)
    values = {"tp1_tokens_per_second": round(one, 2), "tp2_tokens_per_second": round(two, 2)}
    return values | {
        "tp2_over_tp1": round(ratio.median, 3),
        "lowest": round(ratio.lowest, 3),
        "highest": round(ratio.highest, 3),
    }


def main(argv: list[str]) -> int:
    """Measure, print a table and one JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="(default: %(default)s)")
    parser.add_argument("--shapes", default=",".join(SHAPES), help="(default: %(default)s)")
    add_output(parser)
    values = parser.parse_args(argv)
    figures: dict[str, Any] = {}
    for name in values.shapes.split(","):
        with tempfile.TemporaryDirectory() as folder:
            figures[name] = compare(SHAPES[name], Path(folder), values.rounds, ASKED)
    print(f"{'shape':10}{'case':10}{'one process':>14}{'two workers':>14}{'ratio':>8}")
    for name, cases in figures.items():
        for case, row in cases.items():
            rates = f"{row['tp1_tokens_per_second']:14.1f}{row['tp2_tokens_per_second']:14.1f}"
            print(f"{name:10}{case:10}{rates}{row['tp2_over_tp1']:8.2f}")
    origin = {"benchmark": "workers", "date": read_date(), "commit": read_commit()}
    publish(
        origin | {"machine": describe_machine(), "rounds": values.rounds, "figures": figures}, values.output
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
