"""`python -m benchmarks.runtime`: our runtime beside the peers in $PEERS; a table, then one JSON line."""

import argparse
import contextlib
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.record import add_output, publish
from benchmarks.runtime.campaign import Campaign
from benchmarks.runtime.choice import OURS_BY_FLAG, Choice, list_engines
from benchmarks.runtime.errors import BenchmarkError, UsageError
from benchmarks.runtime.former import read_former_commit
from benchmarks.runtime.models.subjects import SUBJECTS
from benchmarks.runtime.process import ended_by_signals
from benchmarks.runtime.report import render_table


def build_parser() -> argparse.ArgumentParser:
    """The command's flags."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.runtime", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each case (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one round of short answers: to try it out")
    parser.add_argument("--shape", choices=SUBJECTS, default="llama", help="the model (default: %(default)s)")
    for flag in ("only", "engines", "precisions"):
        parser.add_argument(f"--{flag}", type=_names, help=f"(default: all; {_list_known(flag)})")
    parser.add_argument(
        "--against", metavar="COMMIT", help="measure a former commit of ours too, in the same rounds"
    )
    add_output(parser)
    return parser


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _list_known(flag: str) -> str:
    return "; ".join(f"{name}: {','.join(_find_known(flag, name))}" for name in SUBJECTS)


def _find_known(flag: str, shape: str) -> tuple[str, ...]:
    """Return the names that a flag can have at a shape."""
    subject = SUBJECTS[shape]
    known = {"only": subject.parts, "engines": list_engines(subject), "precisions": subject.precisions}
    return known[flag]


def read_choice(arguments: argparse.Namespace) -> Choice:
    """Return what to run. Raises UsageError."""
    for flag in ("only", "engines", "precisions"):
        known = _find_known(flag, arguments.shape)
        if unknown := set(getattr(arguments, flag) or ()) - set(known):
            raise UsageError(f"--{flag}: no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if arguments.against is not None and OURS_BY_FLAG not in (arguments.engines or (OURS_BY_FLAG,)):
        raise UsageError(f"--against compares with ours: add {OURS_BY_FLAG} to --engines")
    peers = os.environ.get("PEERS")
    subject = SUBJECTS[arguments.shape]
    return Choice(
        subject=subject,
        parts=arguments.only or subject.parts,
        precisions=arguments.precisions or subject.precisions,
        engines=arguments.engines,
        num_rounds=1 if arguments.quick else arguments.rounds,
        is_quick=arguments.quick,
        peers=Path(peers).absolute() if peers else None,
        former=None if arguments.against is None else read_former_commit(arguments.against),
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
