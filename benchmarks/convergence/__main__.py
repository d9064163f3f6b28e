"""`python -m benchmarks.convergence`: the operator with many services; a table, then one JSON line.

A real API server and etcd are beside it, on the same cores. Nothing else of a control plane runs: Deployments
get no pods but those that the benchmark makes. Services have one replica and mode External, so that nobody
asks Prometheus. Writes are those that the API server has counted, but for the Lease's.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.convergence.api import Api
from benchmarks.convergence.causes import measure_cause_lag
from benchmarks.convergence.measures import (
    NUM_STRANGERS,
    add_pods,
    add_strangers,
    compare_cpu,
    measure_convergence,
    measure_edits,
    measure_failover,
    measure_handovers,
    measure_memory,
    measure_rest,
    measure_restores,
    measure_start,
    measure_status_lag,
    settle,
)
from benchmarks.convergence.objects import NAMESPACE, SERVICES, make_services
from benchmarks.convergence.operators import NAMESPACE as SYSTEM
from benchmarks.convergence.operators import operating
from benchmarks.convergence.report import render
from benchmarks.record import add_output, publish, read_commit, read_date
from benchmarks.runtime.machine import describe_machine
from benchmarks.runtime.process import ended_by_signals
from e2e.cluster.controlplane import client_context
from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.settings import REPOSITORY

IDLE_PARTS = ("kube-controller-manager", "kube-scheduler", "prometheus")
CRD = REPOSITORY / "crds" / "inferenceservices.yaml"
NUM_FEW = 625
PART_MEMORY = "3GiB"
"""The API server takes 0.6 GB with 2,000 services. With less it would measure its collection of garbage."""
Measure = Callable[[Api, LocalCluster, Path, argparse.Namespace], Awaitable[dict[str, Any]]]


def build_parser() -> argparse.ArgumentParser:
    """The command's flags."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.convergence", description=__doc__)
    parser.add_argument("--services", type=int, default=2000, help="how many (2000), 100 at least")
    parser.add_argument(
        "--writes-per-second", type=float, default=1000.0, help="the operator's budget (1000; shipped: 50)"
    )
    add_output(parser)
    return parser


def report(text: str) -> None:
    """Say how far it is."""
    print(text, file=sys.stderr, flush=True)


async def measure(
    api: Api, cluster: LocalCluster, folder: Path, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Return all figures. Raises BenchmarkError."""

    def start(log_level: str = "INFO") -> Any:
        return operating(cluster, folder, arguments.writes_per_second, log_level)

    await api.create_all(SERVICES, make_services(arguments.services))
    report(f"{arguments.services} services are there")
    with start() as operator:
        found: dict[str, Any] = await measure_convergence(api, operator, arguments.services)
        report(f"converged: {found}")
        found["status_lag_p99_seconds"] = await measure_status_lag(api)
        found["cause_lag_p99_seconds"] = await measure_cause_lag(api)
        await add_pods(api)
        await settle(operator)
        rest = await measure_rest(api, operator)
        found |= {"writes_when_converged": rest.writes, "idle_cpu_percent": rest.cpu_percent}
        found["child_restore_p99_seconds"] = await measure_restores(api)
    report(f"measured at rest: {found}")
    before = await api.count_writes()
    with start() as operator:
        found["first_reconcile_seconds_of_all"] = await measure_start(operator)
        await settle(operator)
        found["writes_after_restart"] = await api.count_writes() - before
        alone = await measure_rest(api, operator)
        with start() as other:
            found["failover_crash_seconds"] = await measure_failover(operator, other, signal.SIGKILL)
            found["failover_graceful_seconds"] = await measure_handovers(other, start)
    report(f"measured failovers: {found}")
    with start("DEBUG") as operator:
        await measure_start(operator)
        await settle(operator)
        found |= await measure_edits(api, operator)
    found["rss_after_restart_mb"] = await measure_memory(start)
    await add_strangers(api, NUM_STRANGERS)
    with start() as operator:
        await measure_start(operator)
        await settle(operator)
        cpu = compare_cpu(alone, await measure_rest(api, operator))
    rss = await measure_memory(start) / found["rss_after_restart_mb"]
    found["unrelated_objects_cost"] = {"rss": rss, "cpu": cpu}
    return found


async def measure_few(
    api: Api, cluster: LocalCluster, folder: Path, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Return what a start takes with 5,000 objects: NUM_FEW services, each with six children and a pod."""
    await api.create_all(SERVICES, make_services(NUM_FEW))
    with operating(cluster, folder, arguments.writes_per_second) as operator:
        await measure_convergence(api, operator, NUM_FEW)
        await add_pods(api)
        await settle(operator)
    with operating(cluster, folder, arguments.writes_per_second) as operator:
        return {"first_reconcile_seconds": await measure_start(operator)}


def run(measure: Measure, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure on a control plane of its own."""
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as text:
        cluster = LocalCluster(Path(text) / "cluster", nodes=(), say=report, part_memory=PART_MEMORY)
        try:
            cluster.start()
            return asyncio.run(prepare(measure, cluster, Path(text), arguments))
        finally:
            cluster.stop()


async def prepare(
    measure: Measure, cluster: LocalCluster, folder: Path, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Prepare the control plane, and measure."""
    for part in IDLE_PARTS:
        cluster.kill_part(part)
    cluster.kubectl("apply", "--server-side", "-f", str(CRD))
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    for name in (NAMESPACE, SYSTEM):
        cluster.kubectl("create", "namespace", name)
    async with Api(cluster.api_url, client_context(cluster.layout.keys, "ca", "admin")) as api:
        return await measure(api, cluster, folder, arguments)


def main(argv: list[str]) -> int:
    """Measure, and print what it came to."""
    arguments = build_parser().parse_args(argv)
    with ended_by_signals():
        found = run(measure_few, arguments) | run(measure, arguments)
    machine = describe_machine()
    print(render(found, arguments.services, machine))
    origin = {"commit": read_commit(), "date": read_date(), "machine": machine}
    budget = {"services": arguments.services, "writes_budget_per_second": arguments.writes_per_second}
    publish({**origin, **budget, **found}, arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
