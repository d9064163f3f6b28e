"""`python -m benchmarks.models`: models on their way to a replica; a table, then one JSON line.

`millrace fetch` beside curl, from a Hub on this machine that is limited to what a fast network gives. Fetches
that are killed at random moments and go on. The predicted memory of a model, beside what the loader takes.
On a local cluster, how often pods of a node download a model, and how late one starts whose node has it.
Twice the model's size is needed on the disk.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.models.interrupted import measure_kills
from benchmarks.models.on_nodes import measure_on_nodes
from benchmarks.models.report import (
    render,
    summarise_kills,
    summarise_rounds,
    summarise_sizes,
    summarise_starts,
)
from benchmarks.models.shards import write_model
from benchmarks.models.sizes import measure_sizes
from benchmarks.models.transfers import Rounds, measure
from benchmarks.record import add_output, publish, read_commit, read_date
from benchmarks.runtime.errors import BenchmarkError
from benchmarks.runtime.machine import describe_machine
from benchmarks.runtime.progress import report


def build_parser() -> argparse.ArgumentParser:
    """The command's flags."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=4.0, help="of the model (4)")
    parser.add_argument("--megabytes-per-second", type=float, default=500.0, help="the server's limit (500)")
    parser.add_argument("--rounds", type=int, default=3, help="of fetch and curl in turn (3)")
    parser.add_argument("--kills", type=int, default=200, help="over all sources together (200)")
    parser.add_argument("--seed", type=int, default=1, help="of the kills' moments (1)")
    parser.add_argument("--folder", type=Path, help="where the files lie (the system's temporary folder)")
    add_output(parser)
    return parser


def measure_transfers(arguments: argparse.Namespace) -> Rounds:
    """Write a model, and let it be fetched. Raises BenchmarkError."""
    with tempfile.TemporaryDirectory(prefix="millrace-bench-", dir=arguments.folder) as text:
        folder = Path(text)
        model = write_model(folder / "model", int(arguments.gigabytes * 1e9))
        report(f"a model of {model.num_bytes / 1e9:.1f} GB is there")
        return measure(model, folder, arguments.megabytes_per_second * 1e6, arguments.rounds)


def main(argv: list[str]) -> int:
    """Measure, and print what it came to. Returns 1 where that can't be measured, or a file was wrong."""
    arguments = build_parser().parse_args(argv)
    try:
        found: dict[str, Any] = summarise_sizes(measure_sizes())
        report(f"predicted and taken: {found}")
        found |= summarise_starts(measure_on_nodes(arguments.rounds))
        found |= summarise_rounds(measure_transfers(arguments))
        found |= summarise_kills(measure_kills(arguments.kills, arguments.seed))
    except BenchmarkError as error:
        report(f"python -m benchmarks.models: {error}")
        return 1
    machine = describe_machine()
    limit = f"{arguments.megabytes_per_second:g} MB/s at most"
    terms = f"{arguments.gigabytes:g} GB, {limit}, {arguments.rounds} rounds"
    print(render(found, terms, machine))
    origin = {"benchmark": "models", "date": read_date(), "commit": read_commit(), "machine": machine}
    asked = {
        "gigabytes": arguments.gigabytes,
        "megabytes_per_second": arguments.megabytes_per_second,
        "rounds": arguments.rounds,
        "seed": arguments.seed,
    }
    publish({**origin, **asked, **found}, arguments.output)
    return 1 if found["kill_resume_wrong"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
