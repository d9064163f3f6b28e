"""`python -m benchmarks.gateway`: our gateway beside others, one core each, in the same rounds.

Each gateway gets one core. Clients and stub replicas, both in Go and ours, share the other one. It prints a
table, then one JSON line with the medians of the rounds, and how ours compares to the best Rust router of
each round.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gateway.clients import Clients, LoadError, Target, build, serve_replicas
from benchmarks.gateway.contestants import DIRECT, OURS, PEERS, Contestant, PeerError, Place, make_contestant
from benchmarks.gateway.process import LOAD_CORE
from benchmarks.gateway.rounds import Figures, Plan, measure
from benchmarks.gateway.table import compare, render
from benchmarks.record import add_output, publish, read_commit, read_date
from benchmarks.runtime.machine import describe_machine
from e2e.cluster.nodes.network.addresses import claim_block
from millrace_runtime.contract import PORT_HTTP

NUM_REPLICAS = 2


def main() -> int:
    """Measure, and print the table and the line."""
    flags = read_flags()
    if len(os.sched_getaffinity(0)) < 2:
        sys.stderr.write("benchmarks.gateway: two cores are needed\n")
        return 2
    machine = describe_machine()
    os.sched_setaffinity(0, {LOAD_CORE})
    plan = Plan(seconds=2.0, latency_seconds=3.0, steps=()) if flags.quick else Plan()
    contestants = find_contestants([DIRECT, OURS, *flags.peers])
    with tempfile.TemporaryDirectory() as folder:
        found = run(contestants, plan, flags.rounds, Path(flags.logs or folder))
    medians = {name: summarise(rounds) for name, rounds in found.items() if rounds}
    print(render(medians))
    result = {
        "commit": read_commit(),
        "date": read_date(),
        "machine": machine,
        "rounds": flags.rounds,
        "versions": {one.name: one.version for one in contestants if one.version},
        "medians": medians,
        "comparison": compare(found),
    }
    publish(result, flags.output)
    return 0


def read_flags() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="each gateway's turns (default: %(default)s)")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS), help="(default: all)")
    parser.add_argument("--quick", action="store_true", help="short measurements, at 1,000 streams alone")
    parser.add_argument("--logs", metavar="FOLDER", help="keep what the gateways say")
    add_output(parser)
    return parser.parse_args()


def find_contestants(names: Sequence[str]) -> list[Contestant]:
    """Return the contestants that are installed, and say which are left out."""
    found = []
    for name in names:
        try:
            found.append(make_contestant(name))
        except PeerError as error:
            sys.stderr.write(f"{name} is left out: {error}\n")
    return found


def run(
    contestants: Sequence[Contestant], plan: Plan, num_rounds: int, folder: Path
) -> dict[str, list[Figures]]:
    """Return each contestant's figures by round; the order changes from round to round."""
    found: dict[str, list[Figures]] = {one.name: [] for one in contestants}
    folder.mkdir(exist_ok=True)
    program, block = build(folder), claim_block()
    addresses = [block.allocate(f"replica-{number}") for number in range(NUM_REPLICAS)]
    clients = Clients(program, folder / "clients.log")
    listening = [f"{address}:{PORT_HTTP}" for address in addresses]
    with serve_replicas(program, listening, folder / "replicas.log"):
        direct = Target(PORT_HTTP, address=addresses[0])
        for number in range(num_rounds):
            first = number % len(contestants)
            for one in (*contestants[first:], *contestants[:first]):
                sys.stderr.write(f"round {number + 1}: {one.name}\n")
                try:
                    found[one.name].append(measure(one, Place(addresses, folder), clients, plan, direct))
                except (PeerError, LoadError) as error:
                    sys.stderr.write(f"{one.name} has no figures of this round: {error}\n")
    return found


def summarise(rounds: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return the medians of what every round has."""
    names = [name for name in rounds[0] if all(name in one for one in rounds)]
    return {name: median(one[name] for one in rounds) for name in names}


if __name__ == "__main__":
    raise SystemExit(main())
