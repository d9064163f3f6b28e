"""`python -m benchmarks.runtime`: our runtime beside the peers in $PEERS; a table, then one JSON line."""

import argparse
import contextlib
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.record import add_output, publish
from benchmarks.runtime.campaign import Campaign
from benchmarks.runtime.choice import ENGINES, PARTS, Choice
from benchmarks.runtime.errors import BenchmarkError, UsageError
from benchmarks.runtime.process import ended_by_signals
from benchmarks.runtime.report import render_table
from benchmarks.runtime.workload import PRECISIONS


def build_parser() -> argparse.ArgumentParser:
    """The command's flags."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.runtime", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each case (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one round of short answers: to try it out")
    parser.add_argument(
        "--only", type=_names, default=PARTS, help=f"parts, of: {','.join(PARTS)} (default: all)"
    )
    parser.add_argument("--engines", type=_names, help=f"of: {','.join(ENGINES)} (default: all there are)")
    parser.add_argument(
        "--precisions", type=_names, default=PRECISIONS, help=f"of: {','.join(PRECISIONS)} (default: all)"
    )
    add_output(parser)
    return parser


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def read_choice(arguments: argparse.Namespace) -> Choice:
    """Return what to run. Raises UsageError."""
    for flag, given, known in (
        ("--only", arguments.only, PARTS),
        ("--engines", arguments.engines or (), ENGINES),
        ("--precisions", arguments.precisions, PRECISIONS),
    ):
        if unknown := set(given) - set(known):
            raise UsageError(f"{flag}: no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    peers = os.environ.get("PEERS")
    return Choice(
        parts=arguments.only,
        precisions=arguments.precisions,
        engines=arguments.engines,
        num_rounds=1 if arguments.quick else arguments.rounds,
        is_quick=arguments.quick,
        peers=Path(peers).absolute() if peers else None,
    )


def _without_output(argv: list[str]) -> list[str]:
    """Return the flags that shaped a run: where its result lies is nobody's business."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output")
    return parser.parse_known_args(argv)[1]


def main(argv: list[str]) -> int:
    """Run what was asked for and print what it measured; return 1 where ours failed."""
    arguments = build_parser().parse_args(argv)
    try:
        choice = read_choice(arguments)
        with contextlib.ExitStack() as stack:
            stack.enter_context(ended_by_signals())
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="millrace-bench-"))
            result = Campaign(choice, Path(folder)).run()
    except BenchmarkError as error:
        sys.stderr.write(f"benchmarks.runtime: {error}\n")
        return 1
    for line in render_table(result):
        print(line)
    publish({"argv": _without_output(argv), **result}, arguments.output)
    return int("failed" in result)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
