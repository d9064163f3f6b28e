"""`python -m benchmarks.scaling`: our autoscaler beside the real HPA; a table, then one JSON line.

Each trial serves a new service on a local cluster, and sends the same ramp of load: up to three times what
one replica carries, and back. The HPA scales on the requests in flight. It is tried with several targets, and
its best one is compared. Ours has no knob. Both have the same scale-down window. It is shorter than either's
default, as the ramp is shorter than a real one.
"""

import argparse
import sys
from collections.abc import Sequence

from benchmarks.record import add_output, publish, read_commit, read_date
from benchmarks.runtime.machine import describe_machine
from benchmarks.runtime.report import describe_cpu
from benchmarks.scaling.cluster import cluster_scraping, effective_window
from benchmarks.scaling.contestants import Contestant, Hpa, Ours, Size
from benchmarks.scaling.load import Ramp, plan_ramp
from benchmarks.scaling.outcome import Outcome
from benchmarks.scaling.report import Round, describe, render, render_row
from benchmarks.scaling.trial import run_trial
from e2e.cluster.local_cluster import LocalCluster


def build_parser() -> argparse.ArgumentParser:
    """The command's flags."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    add_numbers(parser, "--scrapes", (5, 30), "Prometheus' intervals, in seconds")
    add_numbers(parser, "--targets", (4, 8, 16), "the HPA's targets: requests in flight at each replica")
    parser.add_argument("--seconds", type=float, default=240.0, help="length of the ramp of each trial (240)")
    parser.add_argument(
        "--window", type=float, default=60.0, help="scale-down window of ours and of the HPA, in seconds (60)"
    )
    parser.add_argument("--max-replicas", type=int, default=5, help="of ours and of the HPA (5)")
    parser.add_argument("--cpu", default="200m", help="limits.cpu of a replica (200m)")
    parser.add_argument("--seed", type=int, default=1, help="of the times at which requests are sent (1)")
    add_output(parser)
    return parser


def add_numbers(parser: argparse.ArgumentParser, flag: str, usual: tuple[int, ...], told: str) -> None:
    """Give the command a flag that takes several numbers."""
    text = ",".join(map(str, usual))
    parser.add_argument(flag, type=read_numbers, default=usual, metavar=text, help=f"{told} ({text})")


def read_numbers(text: str) -> tuple[int, ...]:
    """Parse whole numbers above zero, with commas between them. Raises ArgumentTypeError."""
    words = text.split(",")
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise argparse.ArgumentTypeError(f"{text}: write whole numbers above 0, with commas between them")
    return tuple(map(int, words))


def main(argv: list[str]) -> int:
    """Run all trials and print what they came to; the exit status is 1 where a stream was cut."""
    arguments = build_parser().parse_args(argv)
    ramp: Ramp | None = None
    rounds: list[Round] = []
    for scrape_seconds in arguments.scrapes:
        window = effective_window(arguments.window, scrape_seconds)
        with cluster_scraping(scrape_seconds, window) as cluster:
            ramp = ramp or plan_ramp(cluster, arguments.cpu, arguments.seconds, arguments.seed)
            ours, *peers = run_trials(cluster, list_contestants(arguments, window), ramp)
        rounds.append(Round(scrape_seconds, window, ours, tuple(peers)))
    assert ramp is not None
    show(rounds, ramp, arguments)
    return 1 if any(one.num_broken for each in rounds for one in each.outcomes) else 0


def list_contestants(arguments: argparse.Namespace, window_seconds: float) -> list[Contestant]:
    """Return who is tried at one scrape interval: ours, then the HPA with each of its targets."""
    size = Size(arguments.cpu, arguments.max_replicas)
    return [Ours(size), *(Hpa(target, size, window_seconds) for target in arguments.targets)]


def run_trials(cluster: LocalCluster, contestants: Sequence[Contestant], ramp: Ramp) -> list[Outcome]:
    """Run the trials one after the other, and report each at once."""
    print(f"scrapes every {cluster.scrape_seconds} s, {ramp.capacity:.2f} requests a second a replica")
    outcomes = []
    for number, contestant in enumerate(contestants):
        outcomes.append(run_trial(cluster, f"trial-{number}", contestant, ramp))
        print(render_row(cluster.scrape_seconds, outcomes[-1]), flush=True)
    return outcomes


def show(rounds: Sequence[Round], ramp: Ramp, arguments: argparse.Namespace) -> None:
    """Print the table and the JSON line."""
    machine = describe_machine()
    print(f"\nThe ramp on {machine['cores']} cores of {describe_cpu(machine)}, {machine['system']}")
    print("\n".join(render(rounds)))
    origin = {"date": read_date(), "commit": read_commit(), "machine": machine}
    load = {
        "seconds": ramp.seconds,
        "seed": ramp.seed,
        "replica_requests_per_second": round(ramp.capacity, 2),
        "replica_cpu": arguments.cpu,
        "max_replicas": arguments.max_replicas,
    }
    publish({"benchmark": "scaling", **origin, **load, **describe(rounds)}, arguments.output)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
