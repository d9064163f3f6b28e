"""`python -m benchmarks.models`: models on their way to a replica; a table, then one JSON line.

`millrace fetch` beside curl, from a Hub on this machine that is limited to what a fast network gives. Fetches
that are killed at random moments and go on. The predicted memory of a model, beside what the loader takes.
On a local cluster, how often pods of a node download a model, and how late one starts whose node has it.
Twice the model's size is needed on the disk.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.models.parts import PARTS
from benchmarks.models.report import render
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
    parser.add_argument("--only", choices=PARTS, help="this part alone (all)")
    add_output(parser)
    return parser


def main(argv: list[str]) -> int:
    """Measure, and print what it came to. Returns 1 where that can't be measured, or a file was wrong."""
    arguments = build_parser().parse_args(argv)
    names = [arguments.only] if arguments.only else list(PARTS)
    found: dict[str, Any] = {}
    try:
        for name in names:
            found |= PARTS[name].measure(arguments)
            report(f"after {name}: {found}")
    except BenchmarkError as error:
        report(f"python -m benchmarks.models: {error}")
        return 1
    machine = describe_machine()
    asked = {flag: getattr(arguments, flag) for name in names for flag in PARTS[name].flags}
    print(render(found, ", ".join(f"{flag} {value:g}" for flag, value in asked.items()), machine))
    origin = {"benchmark": "models", "date": read_date(), "commit": read_commit(), "machine": machine}
    publish({**origin, **asked, **found}, arguments.output)
    return 1 if found.get("kill_resume_wrong") else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
