"""The published comparison, as `benchmarks/README.md` has it: from a run's JSON to rows of Markdown."""

from collections.abc import Mapping
from typing import Any

from millrace_operator.autoscaler.simulate.policies.contestants import CLAIRVOYANT, OURS, PEERS

Run = Mapping[str, Any]


def render_prose(run: Run) -> str:
    """Say when and on what it was run, and which workloads are in it."""
    names = run["workloads"]
    told = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    others = run.get("others_commit")
    beside = (
        f"; the others at {others}, and nothing of them or of the simulator has changed" if others else ""
    )
    return f"Run on {run['date']} at commit {run['commit']}, on {told}{beside}."


def render_table_rows(run: Run) -> list[str]:
    """Return the table: of each policy its knob, and the share in time and the replicas on each workload."""
    names = run["workloads"]
    head = f"| rule | its knob | {' | '.join(names)} |"
    rows = [_render_row(run, policy) for policy in (OURS, CLAIRVOYANT, *PEERS)]
    return [head, "|---" * (2 + len(names)) + "|", *rows]


def _render_row(run: Run, policy: str) -> str:
    peer = run["peers"].get(policy)
    knob, told = (peer["knob"], f"{peer['name']} {peer['knob']:g}") if peer else (0.0, "")
    if peer and not peer["reaches_the_bar"]:
        told += " (none tried keeps 99 %)"
    cells = [_render_cell(_find(run, policy, knob, name)) for name in run["workloads"]]
    return f"| {policy} | {told} | {' | '.join(cells)} |"


def _find(run: Run, policy: str, knob: float, name: str) -> Mapping[str, Any] | None:
    """Return what came out; None where it was not run."""
    usual = {"policy": policy, "knob": knob, "workload": name, "cold_start": None, "scrape": 5.0, "fault": ""}
    return next((one for one in run["runs"] if usual.items() <= one.items()), None)


def _render_cell(result: Mapping[str, Any] | None) -> str:
    return "" if result is None else f"{100 * result['attainment']:.2f} %, {result['average_replicas']:.2f}"
