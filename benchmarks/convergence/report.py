"""The table of the operator's figures, with what each aims at."""

from collections.abc import Mapping
from typing import Any

from benchmarks.runtime.report import describe_cpu

AIMS = {
    "writes_per_service": "<= 8",
    "writes_per_second": ">= 250",
    "cpu_ms_per_write": "<= 1.5",
    "converged_per_second": ">= 40",
    "rss_mb": "<= 200",
    "rss_after_restart_mb": "",
    "writes_when_converged": "0",
    "writes_after_restart": "0",
    "idle_cpu_percent": "< 1",
    "first_reconcile_seconds": "< 5",
    "first_reconcile_seconds_of_all": "",
    "reconciles_for_500_edits": "<= 3",
    "seconds_of_500_edits": "",
    "child_restore_p99_seconds": "< 1",
    "status_lag_p99_seconds": "<= 5",
    "cause_lag_p99_seconds": "<= 5",
    "unrelated_objects_cost.rss": "<= 1.05",
    "unrelated_objects_cost.cpu": "<= 1.05",
    "failover_crash_seconds": "<= 17",
    "failover_graceful_seconds": "<= 2",
}


def render(found: Mapping[str, Any], num_services: int, machine: Mapping[str, Any]) -> str:
    """Return the figures beside their aims."""
    flat = flatten(found)
    rows = [f"| {name} | {flat[name]:.3g} | {aim} |" for name, aim in AIMS.items()]
    head = f"{num_services} services, {machine['cores']} cores, {describe_cpu(machine)}"
    return "\n".join([head, "", "| measure | found | aim |", "|---|---|---|", *rows])


def flatten(found: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures with the names of those inside others after a dot."""
    flat: dict[str, float] = {}
    for name, value in found.items():
        parts = value.items() if isinstance(value, Mapping) else (("", value),)
        flat |= {f"{name}.{part}" if part else name: figure for part, figure in parts}
    return flat
