"""The report of a simulation: a table for people, JSON for programs, and a page with pictures.

The page is one file of HTML with the table and the pictures in it. It loads no other file.
"""

import dataclasses
import importlib.util
import json
import math
import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from millrace_kubectl.errors import UsageError
from millrace_kubectl.simulation.manifest import Manifest
from millrace_kubectl.simulation.picture import draw_courses, draw_sweep, to_png, to_svg
from millrace_kubectl.simulation.replica import describe_hardware
from millrace_kubectl.simulation.result import Course, Measured, Point
from millrace_kubectl.simulation.session import Session
from millrace_kubectl.wording import describe_length, name_objective, show_latency, show_whole_share

HEAD = ("POLICY", "KNOB", "IN TIME", "REPLICAS", "REPLICA-HOURS", "REVERSALS", "MISSED MINUTES")
LEFT = 2
"""The number of columns with words. The others have figures and are aligned to the right."""
NO_PICTURES = "--output draws with matplotlib, which is not installed: pip install 'millrace[simulate]'"
COURSES, SWEEP, PAGE = "simulation.png", "sweep.png", "simulation.html"
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1f24; background: #fff; max-width: 1100px;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .7rem; border-bottom: 1px solid #dfe3e8; text-align: right; }
th { font-size: .8rem; color: #57606a; }
.word { text-align: left; }
tr.first td { font-weight: 600; }
.wide { overflow-x: auto; }
svg { width: 100%; height: auto; }
li { margin: .2rem 0; }
"""
LIMITS = """
In time: the share of requests that met every target. Refused and lost ones did not.
Missed minutes: minutes in which an objective's percentile was not kept.
Replicas, replica-hours, cost: of every pod until it is gone. Pods that start or drain cost, too.
Reversals: how often the count reversed within ten minutes.
Other autoscalers' rules are written by us from their descriptions, each with one knob. None is the original.
Latencies are those of the replica. Gateway and network are not simulated.
A simulation is as true as its replica: compare one count with a real one before you trust it.
""".strip().splitlines()


def describe(session: Session, notes: Sequence[str]) -> list[str]:
    """Return the lines that describe the simulations."""
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
    """Return the report as JSON, with the course of each policy over time."""
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
    """Return the points; a latency of null means requests without an answer."""

    def flatten(points: Sequence[Point]) -> list[list[float | None]]:
        return [[point.at, round(point.value, 6) if math.isfinite(point.value) else None] for point in points]

    return {
        "replicas": flatten(course.replicas),
        "latencies": [flatten(points) for points in course.latencies],
        "replicaHours": flatten(course.pod_hours),
    }


def prepare(folder: Path, *, with_sweep: bool) -> None:
    """Check before the simulations that the files can be written. Raises UsageError."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(NO_PICTURES)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (COURSES, SWEEP, PAGE) if with_sweep else (COURSES, PAGE):
            _try_to_write(folder / name)
    except OSError as error:
        raise UsageError(describe_failure(folder, error)) from error


def _try_to_write(file: Path) -> None:
    """Open a file for writing, and leave it as it was. Raises OSError."""
    is_new = not os.path.lexists(file)
    file.open("ab").close()
    if is_new:
        file.unlink()


def describe_failure(folder: Path, error: OSError) -> str:
    """Return why the folder can't be used, and what to do."""
    return f"--output {error.filename or folder}: {error.strerror or error}; write another folder"


def write(
    folder: Path,
    session: Session,
    measured: Sequence[Measured],
    sweep: Sequence[Measured],
    notes: Sequence[str],
) -> list[Path]:
    """Write `simulation.png`, `sweep.png` after a sweep, and `simulation.html`; return their paths.

    Raises OSError.
    """
    figures = {COURSES: draw_courses(session, measured)}
    if sweep:
        figures[SWEEP] = draw_sweep(session, sweep)
    page = render_page(session, measured, sweep, [to_svg(figure) for figure in figures.values()], notes)
    contents = {name: to_png(figure) for name, figure in figures.items()}
    contents[PAGE] = page.encode()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in contents]


def render_page(
    session: Session,
    measured: Sequence[Measured],
    sweep: Sequence[Measured],
    pictures: Sequence[str],
    notes: Sequence[str],
) -> str:
    """Return the page. The first picture is that of the courses, the second that of the sweep."""
    title = f"Simulation of {session.manifest.name}"
    body = [
        f"<h1>{escape(title)}</h1>",
        _render_list(describe(session, notes)),
        _render_table(session, measured),
        "<h2>Over time</h2>",
        pictures[0],
    ]
    if sweep:
        body += ["<h2>Each policy over its knob</h2>", *pictures[1:], _render_table(session, sweep)]
    body += ["<h2>How to read it</h2>", _render_list(LIMITS)]
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
            *body,
            "</body></html>\n",
        ]
    )


def _render_list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def _render_table(session: Session, measured: Sequence[Measured]) -> str:
    head = "".join(
        _render_cell("th", text, column) for column, text in enumerate(list_head(session.manifest))
    )
    rows = [
        f"<tr{' class=first' if index == 0 else ''}>"
        + "".join(
            _render_cell("td", text, column) for column, text in enumerate(list_cells(session.manifest, each))
        )
        + "</tr>"
        for index, each in enumerate(measured)
    ]
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def _render_cell(tag: str, text: str, column: int) -> str:
    return f"<{tag}{' class=word' if column < LEFT else ''}>{escape(text)}</{tag}>"
