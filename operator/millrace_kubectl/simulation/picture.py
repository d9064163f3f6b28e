"""Draws load, replicas, latencies and cost over time, and the sweep. It knows no files.

The colours are Okabe and Ito's, which people with any kind of colour vision can distinguish. Lines differ in
their dashes as well.
"""

import importlib
import io
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from millrace_kubectl.simulation.policies import NO_KNOB
from millrace_kubectl.simulation.result import Measured, Point, find_width
from millrace_kubectl.simulation.session import Session
from millrace_kubectl.wording import name_objective, show_latency, show_whole_share
from millrace_operator.autoscaler.decide.policy import Objective

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
DASHES = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)), (0, (8, 3)))
OBJECTIVE_COLOUR = "#B00020"
WIDTH, PANEL_HEIGHT = 11.0, 2.3
RESOLUTION = 130
TIME_UNITS = (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0))
LEAST_UNITS = 3.0
HIGHEST, LOWEST = 8.0, 0.02
"""A latency's axis goes up to so many times its target, and down to at most this part of it."""
LEAST_LATE = 0.01
"""The late share in percent at the upper edge of the sweep's picture."""

LABEL_WIDTH, LABEL_HEIGHT = 0.026, 0.025
"""A knob's label in the sweep's picture, as parts of the axes, for wide values such as 0.475."""


class _Pen(NamedTuple):
    """The style of one policy."""

    color: str
    linestyle: str | tuple[int, tuple[int, ...]]
    linewidth: float
    zorder: float


def draw_courses(session: Session, measured: Sequence[Measured]) -> "Figure":
    """Return one picture with a panel for each of load, replicas, objectives and cost."""
    objectives = session.manifest.objectives
    num_panels = 3 + len(objectives)
    figure = _create(WIDTH, PANEL_HEIGHT * num_panels + 1.0)
    panels: list[Axes] = list(figure.subplots(num_panels, 1, sharex=True))
    unit, seconds = _find_unit(session.traffic.seconds)
    _draw_load(panels[0], session, seconds)
    _draw_replicas(panels[1], measured, seconds)
    for index, objective in enumerate(objectives):
        _draw_latency(panels[2 + index], index, objective, measured, seconds)
    _draw_cost(panels[-1], session, measured, seconds)
    panels[-1].set_xlabel(f"{unit} from the beginning")
    panels[-1].set_xlim(0, session.traffic.seconds / seconds)
    figure.legend(*panels[1].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    figure.align_ylabels(panels)
    return figure


def draw_sweep(session: Session, sweep: Sequence[Measured]) -> "Figure":
    """Return cost against attainment, a line for each policy over its knob."""
    figure = _create(WIDTH, 6.5)
    axes: Axes = figure.subplots()
    policies = list(dict.fromkeys(each.choice.policy for each in sweep))
    for policy, pen in zip(policies, _list_pens(policies), strict=True):
        points = sorted((each for each in sweep if each.choice.policy == policy), key=_read_knob)
        axes.plot(
            [_read_size(each) for each in points],
            [_read_late(each) for each in points],
            marker="*" if policy in NO_KNOB else "o",
            markersize=12 if policy in NO_KNOB else 5,
            label=policy,
            **pen._asdict(),
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(130.0, LEAST_LATE / 1.3)
    _name_points(axes, sweep)
    _draw_promise(axes, session)
    axes.xaxis.set_major_locator(_ticker().LogLocator(subs=(1.0, 2.0, 5.0)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(lambda _value, _: "")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 - value:g}")
    axes.set_xlabel(_name_cost(session))
    axes.set_ylabel("requests in time (%)")
    _finish(axes, "Each policy over its knob, whose values stand beside the points: up and left is better")
    axes.legend(loc="lower right", framealpha=0.9, edgecolor="none")
    return figure


def _draw_promise(axes: "Axes", session: Session) -> None:
    """Draw the strictest objective's share in time; points at or above the line keep every objective."""
    promised = max((each.percentile for each in session.manifest.objectives), default=None)
    if promised is None:
        return
    axes.axhline(100.0 - promised, color=OBJECTIVE_COLOUR, linewidth=1.2)
    axes.annotate(
        f"promised: {promised} %",
        (0.0, 100.0 - promised),
        xycoords=("axes fraction", "data"),
        xytext=(4, 3),
        textcoords="offset points",
        color=OBJECTIVE_COLOUR,
        fontsize=9,
    )


def to_png(figure: "Figure") -> bytes:
    """Return the picture as PNG."""
    return _save(figure, "png")


def to_svg(figure: "Figure") -> str:
    """Return the picture as an SVG element for a page, without any reference to other files."""
    text = _save(figure, "svg").decode()
    element = text[text.index("<svg") :]
    element = re.sub(r' xmlns(?::\w+)?="[^"]*"', "", element)  # HTML has them built in
    element = re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)
    return re.sub(r' (?:width|height)="[\d.]+pt"', "", element, count=2)


def _save(figure: "Figure", kind: str) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=RESOLUTION, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()


def _create(width: float, height: float) -> "Figure":
    figure: Figure = importlib.import_module("matplotlib.figure").Figure(
        figsize=(width, height), layout="constrained", facecolor="white"
    )
    return figure


def _ticker() -> Any:
    return importlib.import_module("matplotlib.ticker")


def _find_unit(seconds: float) -> tuple[str, float]:
    """Return a unit of time in which the whole time is at least a few; otherwise minutes."""
    return next(((name, unit) for name, unit in TIME_UNITS if seconds >= LEAST_UNITS * unit), TIME_UNITS[-1])


def _list_pens(policies: Sequence[object]) -> Iterator[_Pen]:
    """Yield a pen for each policy; the first one, by default ours, is the boldest."""
    for index, _ in enumerate(policies):
        width, order = (2.4, 3.0) if index == 0 else (1.5, 2.0)
        yield _Pen(COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)], width, order)


def _draw_load(axes: "Axes", session: Session, unit: float) -> None:
    width = find_width(session.traffic.seconds)
    counts = session.traffic.count_by(width)
    ends = [min((index + 1) * width, session.traffic.seconds) for index in range(len(counts))]
    lengths = [max(end - index * width, 1.0) for index, end in enumerate(ends)]
    rates = [count / length for count, length in zip(counts, lengths, strict=True)]
    axes.stairs(rates, [0.0, *(end / unit for end in ends)], fill=True, color="#9AA5B1")
    axes.set_ylabel("requests\na second")
    _finish(axes, f"Load of {session.manifest.name}")


def _draw_replicas(axes: "Axes", measured: Sequence[Measured], unit: float) -> None:
    for each, pen in zip(measured, _list_pens(measured), strict=True):
        times, values = _split(each.course.replicas, unit)
        axes.step(times, values, where="post", label=_label(each), **pen._asdict())
    axes.set_ylabel("ready\nreplicas")
    axes.yaxis.set_major_locator(_ticker().MaxNLocator(integer=True, nbins=5))
    _finish(axes, "Replicas that serve")


def _draw_latency(
    axes: "Axes", index: int, objective: Objective, measured: Sequence[Measured], unit: float
) -> None:
    factor, symbol = (1.0, "s") if objective.target_seconds >= 1 else (1000.0, "ms")
    target = objective.target_seconds * factor
    lowest, highest = target, HIGHEST * target
    for each, pen in zip(measured, _list_pens(measured), strict=True):
        times, values = _split(each.course.latencies[index], unit)
        shown = [min(value * factor, highest) for value in values]
        lowest = min([lowest, *shown])
        axes.plot(times, shown, **pen._asdict())
    axes.axhline(target, color=OBJECTIVE_COLOUR, linewidth=1.2)
    axes.annotate(
        f"objective {show_latency(objective.target_seconds)}",
        (1.0, target),
        xycoords=("axes fraction", "data"),
        xytext=(-4, 3),
        textcoords="offset points",
        color=OBJECTIVE_COLOUR,
        ha="right",
        va="bottom",
        fontsize=9,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
    )
    axes.set_yscale("log")
    axes.set_ylim(max(lowest, LOWEST * target) / 1.2, highest)
    axes.yaxis.set_major_locator(_ticker().LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda _value, _: "")
    name = name_objective(objective.metric, objective.percentile)
    axes.set_ylabel(f"{name}\n({symbol})")
    _finish(axes, f"{objective.metric}, p{objective.percentile} of the requests that came then; "
            "at the upper edge: more, or not answered")  # fmt: skip


def _draw_cost(axes: "Axes", session: Session, measured: Sequence[Measured], unit: float) -> None:
    price = session.manifest.price
    factor = price.per_replica_hour if price else 1.0
    for each, pen in zip(measured, _list_pens(measured), strict=True):
        times, values = _split(each.course.pod_hours, unit)
        axes.plot(times, [value * factor for value in values], **pen._asdict())
    axes.set_ylabel(price.currency if price else "replica-\nhours")
    axes.set_ylim(bottom=0)
    _finish(axes, "Cost since the beginning, with replicas that start or drain")


def _finish(axes: "Axes", title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10)
    axes.grid(visible=True, color="#E3E6EA", linewidth=0.8)
    axes.set_axisbelow(True)
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _split(points: Sequence[Point], unit: float) -> tuple[list[float], list[float]]:
    return [point.at / unit for point in points], [point.value for point in points]


def _label(measured: Measured) -> str:
    return f"{measured.choice.label}: {show_whole_share(measured.attainment)} in time"


def _read_knob(measured: Measured) -> float:
    return _read_size(measured) if measured.choice.knob is None else measured.choice.knob


def _read_late(measured: Measured) -> float:
    """Return the late share in percent, above zero for a logarithmic axis."""
    return max(100 * (1 - measured.attainment), LEAST_LATE)


def _read_size(measured: Measured) -> float:
    return measured.average_replicas if measured.cost is None else measured.cost


def _name_cost(session: Session) -> str:
    price = session.manifest.price
    return f"cost ({price.currency})" if price else "replicas on average"


def _name_points(axes: "Axes", sweep: Sequence[Measured]) -> None:
    """Write the knobs' values beside their points, once for points that are nearly equal."""
    axes.autoscale_view()
    to_axes, taken = axes.transData - axes.transAxes, list[tuple[float, float]]()
    for each in sweep:
        x, y = to_axes.transform((_read_size(each), _read_late(each)))
        is_left, is_above = x > 1 - 2 * LABEL_WIDTH, y < 2 * LABEL_HEIGHT
        place = (x - is_left * 1.5 * LABEL_WIDTH, y + is_above * 1.5 * LABEL_HEIGHT)
        is_free = all(
            abs(place[0] - other[0]) > LABEL_WIDTH or abs(place[1] - other[1]) > LABEL_HEIGHT
            for other in taken
        )
        if each.choice.knob is not None and is_free:
            taken.append(place)
            _name_point(axes, each, is_left=is_left, is_above=is_above)


def _name_point(axes: "Axes", measured: Measured, *, is_left: bool, is_above: bool) -> None:
    axes.annotate(
        f"{measured.choice.knob:g}",
        (_read_size(measured), _read_late(measured)),
        xytext=(-5 if is_left else 5, 5 if is_above else -10),
        textcoords="offset points",
        ha="right" if is_left else "left",
        fontsize=7,
        color="#555555",
    )
