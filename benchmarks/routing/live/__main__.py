"""`python -m benchmarks.routing.live MODEL`: the gateway's rule on real replicas; a table, then JSON.

Four replicas of our engine, with their real prefix caches, share two cores with the gateway and the clients.
The chats are those of `python -m benchmarks.routing`, with shorter texts, since two cores compute far less
than GPUs. For each seed both rules run, each on fresh replicas; a ratio is of two runs of one seed.

MODEL is a folder where the model is, or is to be written: random weights of the shape of a small Llama.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from benchmarks.record import add_output, publish, read_commit, read_date
from benchmarks.routing.__main__ import Case, describe, render_rows
from benchmarks.routing.live.clients import Run
from benchmarks.routing.live.replicas import POLICIES, list_replicas, serve, write_chat_model
from benchmarks.routing.run import Load, Outcome
from benchmarks.routing.workload import Chats
from benchmarks.runtime.machine import describe_machine

CHATS = Chats(
    "shared prefixes",
    system_tokens=(300, 1500),
    think_seconds=5.0,
    user_tokens=40.0,
    answer_tokens=24.0,
)
SECONDS, WARM_SECONDS = 120.0, 45.0
LOADS = {"moderate": Load(SECONDS, rate=0.5), "heavy": Load(SECONDS, num_clients=32)}
FIRST_SEED = 101
BASE = "least load"


def measure(model: Path, policy: str, load: Load, seed: int, folder: Path) -> Outcome:
    """Run one load on fresh replicas; logs go to `folder`."""
    folder.mkdir(parents=True)
    with serve(model, policy, folder) as gateway:
        return asyncio.run(Run(gateway, list_replicas(), CHATS, load, seed).run(WARM_SECONDS))


def main(argv: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.routing.live",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path)
    parser.add_argument(
        "--seeds", type=int, default=2, help=f"seeds, from {FIRST_SEED} on (default: %(default)s)"
    )
    add_output(parser)
    arguments = parser.parse_args(argv)
    model = write_chat_model(arguments.model)
    outcomes: dict[Case, list[Outcome]] = {}
    with tempfile.TemporaryDirectory() as logs:
        for seed in range(FIRST_SEED, FIRST_SEED + arguments.seeds):
            for name, load in LOADS.items():
                for policy in POLICIES:
                    folder = Path(logs, f"{seed}-{name}-{policy.replace(' ', '-')}")
                    found = measure(model, policy, load, seed, folder)
                    outcomes.setdefault(Case(CHATS, name, policy, 1), []).append(found)
                    print(f"seed {seed}, {name}, {policy}: {found}", file=sys.stderr, flush=True)
    rows = [describe(case, found, outcomes[case._replace(policy=BASE)]) for case, found in outcomes.items()]
    print("\n".join(render_rows(rows)))
    publish(
        {
            "date": read_date(),
            "commit": read_commit(),
            "simulated": False,
            "machine": describe_machine(),
            "seeds": arguments.seeds,
            "rows": rows,
        },
        arguments.output,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
