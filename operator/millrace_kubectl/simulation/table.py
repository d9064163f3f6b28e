"""What is printed: a table for people, or JSON for programs. Pure."""

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

from millrace_kubectl.moments import describe_length
from millrace_kubectl.simulation.manifest import Manifest
from millrace_kubectl.simulation.measure import Course, Measured, Point
from millrace_kubectl.simulation.replica import describe_hardware
from millrace_kubectl.simulation.session import Session
from millrace_kubectl.words import name_objective, show_latency, show_whole_share

HEAD = ("POLICY", "KNOB", "IN TIME", "REPLICAS", "REPLICA-HOURS", "REVERSALS", "MISSED MINUTES")
LEFT = 2
"""Columns of words; the others are figures and stand to the right."""


def describe(session: Session, notes: Sequence[str]) -> list[str]:
    """Return what was simulated, one line each."""
    manifest, hardware = session.manifest, session.hardware
    pace = f"cold start {describe_length(hardware.cold_start_seconds)}"
    counts = (
        f"{manifest.min_replicas} to {manifest.max_replicas} replicas, {session.initial_replicas} at first"
    )
    return [
        f"{manifest.name}: {session.traffic.describe()}",
        f"objectives: {list_objectives(manifest)}; {counts}",
        f"a replica: {describe_hardware(hardware)}",
        f"{pace}, scraped every {describe_length(session.scrape_seconds)}, seed {session.seed}",
        *(f"note: {note}" for note in (*session.traffic.notes, *notes)),
    ]


def list_objectives(manifest: Manifest) -> str:
    """Return the objectives with their targets."""
    return ", ".join(
        f"{name_objective(each.metric, each.percentile)} {show_latency(each.target_seconds)}"
        for each in manifest.objectives
    )


def render_table(manifest: Manifest, measured: Sequence[Measured]) -> list[str]:
    """Return the table's lines, with a cost where there is a price."""
    rows = [list_head(manifest), *(list_cells(manifest, each) for each in measured)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(_pad(row, widths)).rstrip() for row in rows]


def list_head(manifest: Manifest) -> list[str]:
    """Return the columns' names."""
    price = [f"COST {manifest.price.currency}"] if manifest.price else []
    return [*HEAD[:5], *price, *HEAD[5:]]


def list_cells(manifest: Manifest, measured: Measured) -> list[str]:
    """Return one policy's cells."""
    price = [f"{measured.cost:.2f}"] if manifest.price and measured.cost is not None else []
    return [
        measured.choice.policy,
        measured.choice.setting or "-",
        show_whole_share(measured.attainment),
        f"{measured.average_replicas:.2f}",
        f"{measured.replica_hours:.2f}",
        *price,
        str(measured.reversals),
        f"{measured.missed_minutes} of {measured.busy_minutes}",
    ]


def _pad(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        cell.ljust(width) if column < LEFT else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]


def render_json(
    session: Session, measured: Sequence[Measured], sweep: Sequence[Measured], notes: Sequence[str]
) -> str:
    """Return the same for programs, with the course of each policy over time."""
    manifest, traffic = session.manifest, session.traffic
    found = {
        "service": manifest.name,
        "load": {"requests": len(traffic.requests), "seconds": traffic.seconds},
        "minReplicas": manifest.min_replicas,
        "maxReplicas": manifest.max_replicas,
        "initialReplicas": session.initial_replicas,
        "objectives": [dataclasses.asdict(objective) for objective in manifest.objectives],
        "replica": dataclasses.asdict(session.hardware),
        "scrapeSeconds": session.scrape_seconds,
        "seed": session.seed,
        "currency": manifest.price.currency if manifest.price else None,
        "notes": [*traffic.notes, *notes],
        "policies": [{**_flatten(each), "course": _flatten_course(each.course)} for each in measured],
        "sweep": [_flatten(each) for each in sweep],
    }
    return json.dumps(found, indent=2, ensure_ascii=False)


def _flatten(measured: Measured) -> dict[str, Any]:
    return {
        "policy": measured.choice.policy,
        "knob": measured.choice.knob,
        "attainment": round(measured.attainment, 6),
        "averageReplicas": round(measured.average_replicas, 4),
        "replicaHours": round(measured.replica_hours, 4),
        "cost": None if measured.cost is None else round(measured.cost, 4),
        "reversals": measured.reversals,
        "missedMinutes": measured.missed_minutes,
        "busyMinutes": measured.busy_minutes,
    }


def _flatten_course(course: Course) -> dict[str, Any]:
    """Return the points; a latency of null is that of requests without an answer."""

    def flatten(points: Sequence[Point]) -> list[list[float | None]]:
        return [[point.at, round(point.value, 6) if math.isfinite(point.value) else None] for point in points]

    return {
        "replicas": flatten(course.replicas),
        "latencies": [flatten(points) for points in course.latencies],
        "replicaHours": flatten(course.pod_hours),
    }
