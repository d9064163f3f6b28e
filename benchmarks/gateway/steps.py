"""`python -m benchmarks.gateway.steps`: what each step of a request takes in our gateway.

So it shows what a step would gain that is written in C: at most what it takes. The gateway runs as in
`python -m benchmarks.gateway`, with a clock around each step (`timed_pod.py`). Its own processor time for a
request is measured without the clocks. It prints a table, then one JSON line.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.gateway.clients import Clients, LoadError, Target, build, serve_replicas
from benchmarks.gateway.contestants import find_free_port
from benchmarks.gateway.ours import CLIENT_KEY, PODS, SERVICES, Api, make_pod, make_service, serve_gateway
from benchmarks.gateway.process import LOAD_CORE, Process
from benchmarks.gateway.timed_pod import TIMES
from benchmarks.record import add_output, publish, read_commit, read_date
from benchmarks.runtime.machine import describe_machine
from e2e.cluster.nodes.network.addresses import claim_block
from millrace_runtime.contract import PORT_HTTP

NUM_REPLICAS, CONNECTIONS = 2, 64
WAIT_SECONDS = 30.0


def main() -> int:
    """Measure, and print the table and the line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway.steps", description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each load (default: %(default)s)")
    add_output(parser)
    flags = parser.parse_args()
    machine = describe_machine()
    os.sched_setaffinity(0, {LOAD_CORE})
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), flags.seconds)
    print(render(figures))
    publish(
        {"commit": read_commit(), "date": read_date(), "machine": machine} | figures,
        flags.output,
    )
    return 0


def measure(folder: Path, seconds: float) -> dict[str, Any]:
    """Return the microseconds of a request, and those of its steps. Raises LoadError."""
    program, block = build(folder), claim_block()
    addresses = [block.allocate(f"replica-{number}") for number in range(NUM_REPLICAS)]
    clients, api = Clients(program, folder / "clients.log"), Api()
    listening = [f"{address}:{PORT_HTTP}" for address in addresses]
    with serve_replicas(program, listening, folder / "replicas.log"), api.serve():
        api.put(SERVICES, make_service("chat"))
        for number, address in enumerate(addresses):
            api.put(PODS, make_pod("chat", f"chat-{number}", address, api.public_key))
        with serve(api, folder, "benchmarks.gateway.in_pod", clients) as (target, process):
            before = process.read_cpu_seconds()
            num_requests = send(clients, target, seconds)
            whole = 1e6 * (process.read_cpu_seconds() - before) / num_requests
        with serve(api, folder, "benchmarks.gateway.timed_pod", clients) as (target, process):
            first = read_times(process, folder)
            num_requests = send(clients, target, seconds)
            last = read_times(process, folder)
    steps = {name: round(1e6 * (last[name] - first[name]) / num_requests, 1) for name in last}
    return {"request_microseconds": round(whole, 1), "step_microseconds": steps}


@contextmanager
def serve(api: Api, folder: Path, module: str, clients: Clients) -> Iterator[tuple[Target, Process]]:
    """Run the gateway while entered, once it answers."""
    target = Target(find_free_port(), key=CLIENT_KEY)
    os.environ[TIMES] = str(folder / "times.json")
    with serve_gateway(api, target.port, find_free_port(), folder, module) as process:
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                if not send_once(clients, target)["failed"]:
                    break
            except LoadError:
                pass
            if time.monotonic() > deadline:
                raise LoadError(
                    f"the gateway does not answer: {(folder / 'millrace.log').read_text()[-2000:]}"
                )
            time.sleep(0.2)
        yield target, process


def send_once(clients: Clients, target: Target) -> dict[str, Any]:
    """Send for a moment, so that connections and caches are there."""
    return clients.measure("rate", target, connections=CONNECTIONS, duration="0.5s")


def send(clients: Clients, target: Target, seconds: float) -> int:
    """Return how many requests were answered. Raises LoadError."""
    found = clients.measure("rate", target, connections=CONNECTIONS, duration=f"{seconds}s")
    if found["failed"]:
        raise LoadError(f"{found['failed']} requests failed")
    return int(found["requests_per_second"] * seconds)


def read_times(process: Process, folder: Path) -> dict[str, float]:
    """Return the seconds that the timed gateway has spent in each step so far."""
    path = folder / "times.json"
    path.unlink(missing_ok=True)
    process.send(signal.SIGUSR1)
    deadline = time.monotonic() + WAIT_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise LoadError("the timed gateway tells no times")
        time.sleep(0.05)
    found: dict[str, float] = json.loads(path.read_text())
    return found


def render(figures: dict[str, Any]) -> str:
    """Return the table, the longest step first."""
    whole, steps = figures["request_microseconds"], figures["step_microseconds"]
    rows = [f"| {name} | {spent} | {spent / whole:.1%} |" for name, spent in sort(steps)]
    rest = round(whole - sum(steps.values()), 1)
    rows += [f"| all else: the loop, tasks, system calls | {rest} | {rest / whole:.1%} |"]
    return "\n".join(["| step | µs | of a request |", "|---|---|---|", *rows, f"| a request | {whole} | |"])


def sort(steps: dict[str, float]) -> list[tuple[str, float]]:
    """Return the steps, the longest first."""
    return sorted(steps.items(), key=lambda one: -one[1])


if __name__ == "__main__":
    sys.exit(main())
