"""`python -m benchmarks.autoscaler.picture RESULT PICTURE`: draws a run's JSON as a PNG.

A panel for each workload that counts: how many replicas each rule took there, and which share was in time.
All points are of the requests that are reported, none of those on which knobs were chosen.
"""

import argparse
import importlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.autoscaler.choice import JUDGED
from millrace_operator.autoscaler.simulate.policies.clairvoyant import BAR
from millrace_operator.autoscaler.simulate.policies.contestants import CLAIRVOYANT, OURS, PEERS

COLOURS = ("#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Those of Okabe and Ito, which people with any kind of colour vision tell apart. Ours has the blue one."""
MARKERS = ("o", "s")
OURS_COLOUR, BAR_COLOUR = "#0072B2", "#B00020"
LEAST_LATE, MOST_LATE = 0.01, 100.0
"""In percent: the edges of a panel."""
TEXT = "Description"
"""Of a PNG: where it says of which run it is."""


class Point(NamedTuple):
    """What one rule gave on one workload."""

    policy: str
    replicas: float
    late_percent: float
    is_for_all: bool
    """Whether its knob is the one for all workloads; else it is the best for this one."""


def main(argv: Sequence[str]) -> int:
    """Read, draw, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.autoscaler.picture", description=__doc__)
    parser.add_argument("result", type=Path, help="the JSON of a run of the benchmark")
    parser.add_argument("picture", type=Path, help="the PNG to write")
    arguments = parser.parse_args(argv)
    draw(json.loads(arguments.result.read_text()), arguments.picture)
    return 0


def name_run(run: Mapping[str, Any]) -> str:
    """Say of which run a picture is."""
    return f"Run on {run['date']} at commit {run['commit']}"


def list_points(run: Mapping[str, Any], workload: str) -> Iterator[Point]:
    """Yield what each rule gave on a workload as it is, without faults."""
    usual = {"workload": workload, "cold_start": None, "scrape": 5.0, "fault": ""}
    for one in run["runs"]:
        if usual.items() <= one.items():
            policy = one["policy"]
            is_for_all = policy not in run["peers"] or one["knob"] == run["peers"][policy]["knob"]
            yield Point(policy, one["average_replicas"], 100 * (1 - one["attainment"]), is_for_all)


def draw(run: Mapping[str, Any], path: Path) -> None:
    """Write the picture."""
    create = importlib.import_module("matplotlib.figure").Figure
    figure = create(figsize=(11.0, 7.5), layout="constrained", facecolor="white")
    names = [name for name in JUDGED if name in run["workloads"]]
    panels = figure.subplots(2, 2).flat
    for axes, name in zip(panels, names, strict=False):
        _draw_panel(axes, name, list(list_points(run, name)))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)
    figure.suptitle(
        f"Up and left is better. Filled: one knob for all workloads; hollow: the best for this one. "
        f"{name_run(run)}.",
        fontsize=9,
    )
    figure.savefig(path, dpi=110, metadata={TEXT: name_run(run)})


def _draw_panel(axes: Any, name: str, points: Sequence[Point]) -> None:
    for policy in (OURS, CLAIRVOYANT, *PEERS):
        for is_for_all in (True, False):
            some = [one for one in points if one.policy == policy and one.is_for_all == is_for_all]
            if some or is_for_all:
                label = policy if is_for_all else None
                _draw_points(axes, policy, some, label, is_filled=is_for_all)
    axes.axhline(100 * (1 - BAR), color=BAR_COLOUR, linewidth=1.2)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(MOST_LATE, LEAST_LATE / 1.3)
    ticker = importlib.import_module("matplotlib.ticker")
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 - value:g}")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(lambda _value, _: "")
    axes.set_title(name, loc="left", fontsize=10)
    axes.set_xlabel("replicas on average")
    axes.set_ylabel("requests in time (%)")
    axes.grid(visible=True, color="#E3E6EA", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _draw_points(
    axes: Any, policy: str, points: Sequence[Point], label: str | None, *, is_filled: bool
) -> None:
    index = [*PEERS].index(policy) if policy in PEERS else -1
    colour = OURS_COLOUR if index < 0 else COLOURS[index % len(COLOURS)]
    marker = {OURS: "*", CLAIRVOYANT: "D"}.get(policy, MARKERS[index // len(COLOURS)])
    axes.plot(
        [one.replicas for one in points],
        [max(one.late_percent, LEAST_LATE) for one in points],
        linestyle="none",
        marker=marker,
        markersize=15 if policy == OURS else 7,
        color=colour,
        markerfacecolor=colour if is_filled else "none",
        label=label,
        zorder=4 if policy == OURS else 3,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
