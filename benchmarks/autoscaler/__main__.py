"""`python -m benchmarks.autoscaler`: our autoscaler beside others' rules; a table, then one JSON line.

Each peer's knob is tuned on some requests, and all are compared on others. Nothing here takes real time but
the simulation itself.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.autoscaler.choice import (
    JUDGED,
    Knob,
    attain,
    average,
    choose_knob,
    list_tried,
    list_tuning,
)
from benchmarks.autoscaler.jobs import Bench, Job, Result
from benchmarks.autoscaler.kept import Kept, KeptError
from benchmarks.autoscaler.refine import propose
from benchmarks.autoscaler.report import (
    Outcome,
    describe_runs,
    flatten_sweeps,
    list_reports,
    render,
    render_sweeps,
    render_variations,
    summarise,
)
from benchmarks.autoscaler.reuse import Earlier, ReuseError, read_earlier
from benchmarks.autoscaler.runner import Runner
from benchmarks.record import add_output, publish, read_commit, read_date
from benchmarks.runtime.machine import describe_machine
from millrace_operator.autoscaler.simulate.policies.contestants import PEERS, Contestant

DRAWN = ("W1", "W4", "W5", "W6")
RECORDED = {"W2": "AzureLLMInferenceTrace_conv.csv", "W3": "AzureLLMInferenceTrace_code.csv"}
USUAL = ("W1", "W2", "W3", "W4", "W5", "W6")
REFINEMENTS = 2
"""Looks for each knob's best value: to a quarter of what lies between two values of its grid."""


class Comparison(NamedTuple):
    """What came out, and how knobs were chosen."""

    outcome: Outcome
    tuning: dict[Job, Result]


def build_parser() -> argparse.ArgumentParser:
    """The command's flags."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.autoscaler", description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="simulations at a time")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="where Azure's traces are, for W2 and W3")
    parser.add_argument("--only", metavar="W1,W4", help="these workloads alone")
    parser.add_argument("--short", action="store_true", help="ten minutes of each, and two values a knob")
    parser.add_argument(
        "--reuse", type=Path, metavar="FILE", help="others' results of this run: only ours is run again"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FILE", help="write each result there, and go on from what is there"
    )
    add_output(parser)
    return parser


def main(argv: list[str]) -> int:
    """Tune, compare, print."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.jobs < 1:
        parser.error(f"--jobs {arguments.jobs}: write 1 or more")
    names = pick_names(parser, arguments.only, arguments.data)
    bench = Bench(arguments.data, arguments.short)
    values = {policy: _thin(peer, is_short=arguments.short) for policy, peer in PEERS.items()}
    try:
        earlier = read_earlier(arguments.reuse) if arguments.reuse else None
        kept = open_kept(arguments.keep, is_short=arguments.short) if arguments.keep else None
    except ReuseError as error:
        parser.error(f"--reuse: {error}")
    except (KeptError, OSError) as error:
        parser.error(f"--keep: {error}")
    outcome, tuning = compare(Runner(bench, arguments.jobs, kept), names, values, earlier)
    figures = summarise(outcome)
    print("\n".join([*render_sweeps(tuning), "", *render(outcome), "", *render_variations(outcome), ""]))
    print("\n".join(f"{name:32} {value}" for name, value in figures.items()))
    origin = {"date": read_date(), "commit": read_commit(), "machine": describe_machine()}
    if earlier is not None:
        origin["others_commit"] = earlier.commit
    publish(
        {"benchmark": "autoscaler", **origin, "short": arguments.short, "workloads": names}
        | figures
        | {
            "peers": describe_peers(outcome),
            "runs": describe_runs(outcome),
            "sweeps": flatten_sweeps(tuning),
        },
        arguments.output,
    )
    return 0


def pick_names(parser: argparse.ArgumentParser, only: str | None, data: Path | None) -> list[str]:
    """Return the workloads to run; ends with a message where they can't be."""
    names = sorted(set(only.split(","))) if only else list(USUAL)
    if unknown := [name for name in names if name not in (*DRAWN, *RECORDED)]:
        parser.error(f"--only {unknown[0]}: write some of W1 to W6, with commas between them")
    for name in [name for name in names if name in RECORDED]:
        if data is None:
            if only:
                parser.error(f"{name} needs Azure's trace: write --data FOLDER with {RECORDED[name]} in it")
            print(f"{name} is left out: it needs --data FOLDER with {RECORDED[name]} in it", file=sys.stderr)
            names.remove(name)
        elif not (data / RECORDED[name]).is_file():
            parser.error(f"--data {data}: there is no {RECORDED[name]} in it")
    if not set(names) & set(JUDGED):
        parser.error(f"--only {only}: add one of {', '.join(JUDGED)}, on which knobs are tuned")
    return names


def open_kept(path: Path, *, is_short: bool) -> Kept:
    """Return the results of this commit that a file has. Raises KeptError where they are of another."""
    return Kept(path, read_commit() + (", short" if is_short else ""))


def _thin(peer: Contestant, *, is_short: bool) -> tuple[float, ...]:
    """Return the values to try; of a short run the cautious end and the middle."""
    return (peer.values[0], peer.values[len(peer.values) // 2]) if is_short else peer.values


def compare(
    runner: Runner,
    names: Sequence[str],
    values: Mapping[str, Sequence[float]],
    earlier: Earlier | None = None,
) -> Comparison:
    """Tune each peer, then run all but what is known from an earlier run."""
    judged = [name for name in names if name in JUDGED]
    tuning = earlier.tuning if earlier else tune(runner, names, values)

    def choose(policy: str, on: Sequence[str]) -> Knob:
        return choose_knob(list_tried(tuning, policy, on))

    knobs = {policy: choose(policy, judged) for policy in values}
    tuned = {(policy, name): choose(policy, [name]) for policy in values for name in judged}
    known, wanted = earlier.results if earlier else {}, list_reports(names, knobs, tuned)
    missing = [job for job in wanted if job not in known]
    results = {job: known[job] for job in wanted if job in known}
    results |= runner.run(missing, "comparing")
    return Comparison(Outcome(tuple(names), results, knobs, tuned), tuning)


def tune(runner: Runner, names: Sequence[str], values: Mapping[str, Sequence[float]]) -> dict[Job, Result]:
    """Try each peer's values, and then more between the best ones."""
    judged = [name for name in names if name in JUDGED]
    tuning = runner.run(list_tuning(values, names), "tuning")
    for _ in range(0 if runner.bench.is_short else REFINEMENTS):
        tuning |= runner.run(list_refining(tuning, judged), "refining")
    return tuning


def list_refining(tuning: Mapping[Job, Result], judged: Sequence[str]) -> list[Job]:
    """Return what to try next of each peer, for all workloads together and for each alone."""
    jobs = []
    for policy, peer in PEERS.items():
        for names in (judged, *[[name] for name in judged]):
            value = propose(list_tried(tuning, policy, names), is_whole=peer.is_whole)
            if value is not None:
                jobs += [Job(name, policy, value, "tune") for name in names]
    return [job for job in jobs if job not in tuning]


def describe_peers(outcome: Outcome) -> dict[str, Any]:
    """Return each peer's one knob, and what it gave on the requests that are reported."""
    return {
        policy: {
            "name": PEERS[policy].knob,
            "knob": knob.value,
            "reaches_the_bar": knob.is_good,
            "attainment": round(attain(outcome.all_of(policy)), 4),
            "average_replicas": round(average(outcome.all_of(policy)), 3),
        }
        for policy, knob in outcome.knobs.items()
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
