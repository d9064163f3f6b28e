"""`python -m benchmarks.path`: the figures of the whole path; a table, then one JSON line."""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.path.apply import time_apply
from benchmarks.path.idle import measure_idle
from benchmarks.path.up import Clone, time_ups
from benchmarks.record import add_output, publish, read_commit, read_date
from benchmarks.runtime.machine import describe_machine
from benchmarks.runtime.report import describe_cpu
from e2e.cluster.local_cluster import LocalCluster
from e2e.ramp import ramp_beside, start_alone
from e2e.service import Service

NAMESPACE = "bench-path"


def build_parser() -> argparse.ArgumentParser:
    """The command's flags."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.path", description=__doc__)
    parser.add_argument("--peak-seconds", type=float, default=600.0, help="length of the ramp's peak")
    parser.add_argument("--warm", action="store_true", help="let the first `make up` use your caches")
    add_output(parser)
    return parser


def main(argv: list[str]) -> int:
    """Run every part and print what it measured."""
    arguments = build_parser().parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        clone = Clone(Path(folder), is_cold=not arguments.warm)
        try:
            figures = time_ups(clone)
            figures |= measure_cluster(LocalCluster(clone.state, detached=True), arguments.peak_seconds)
        finally:
            clone.make("down")
    show(figures if not arguments.warm else without_first_up(figures), arguments.output)
    return 0


def without_first_up(figures: dict[str, Any]) -> dict[str, Any]:
    """Return the figures without those that mean nothing where caches were warm."""
    return {name: None if name.startswith("first_up") else value for name, value in figures.items()}


def measure_cluster(cluster: LocalCluster, peak_seconds: float) -> dict[str, Any]:
    """Measure on a running cluster with Millrace installed, in a namespace of our own."""
    figures: dict[str, Any] = dict(measure_idle(cluster))
    cluster.kubectl("delete", "infsvc", "stories")
    cluster.kubectl("create", "namespace", NAMESPACE)
    figures |= time_apply(cluster, NAMESPACE)
    service = Service(cluster, NAMESPACE, "ramp")
    alone = start_alone(service)
    with ramp_beside(service, alone, peak_seconds) as ramp:
        ramp.wait_until(peak_seconds)
    figures |= {
        "ramp_recovery_seconds": ramp.recovery_seconds(peak_seconds),
        "ramp_recovery_bound_seconds": round(alone.recovery_bound_seconds, 1),
        "ramp_streams": len(ramp.streams),
        "truncated_streams": len(ramp.lost_streams()),
        "replica_requests_per_second": round(alone.requests_per_second, 2),
    }
    service.delete()
    return figures


def show(figures: dict[str, Any], output: Path | None) -> None:
    """Print the table and the JSON line."""
    machine = describe_machine()
    width = max(map(len, figures))
    print(f"\nThe whole path on {machine['cores']} cores of {describe_cpu(machine)}, {machine['system']}")
    for name, value in figures.items():
        print(f"  {name:<{width}}  {value}")
    origin = {"date": read_date(), "commit": read_commit(), "machine": machine}
    publish({"benchmark": "path", **origin, **figures}, output)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
