"""The content of the pictures, measured as they are drawn."""

from itertools import combinations

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from millrace_kubectl.simulation.manifest import read_manifest
from millrace_kubectl.simulation.picture import draw_sweep
from millrace_kubectl.simulation.policies import PolicyChoice
from millrace_kubectl.simulation.result import Course, Measured
from millrace_kubectl.simulation.session import Session
from millrace_kubectl.simulation.traffic import Traffic
from millrace_operator.autoscaler.simulate.hardware import Hardware
from millrace_operator.autoscaler.simulate.load import Request
from tests.kubectl.simulation import make_manifest

SESSION = Session(read_manifest(make_manifest()), Traffic([Request(0.0, 1, 1)], 60.0), Hardware(), 5.0, 1, 1)


def measured(policy: str, knob: float, attainment: float, replicas: float) -> Measured:
    return Measured(
        PolicyChoice(policy, knob), attainment, replicas, replicas, None, 0, 0, 1, Course([], [], [])
    )


def draw_labels(sweep: list[Measured]) -> tuple[Bbox, dict[str, Bbox]]:
    """Return the box of the axes, and those of the knobs' values."""
    figure = draw_sweep(SESSION, sweep)
    FigureCanvasAgg(figure).draw()
    (axes,) = figure.axes
    labels = [each for each in axes.texts if isinstance(each, Annotation) and each.get_text()[:1].isdigit()]
    return axes.get_window_extent(), {each.get_text(): each.get_window_extent() for each in labels}


def test_one_of_several_equal_points_has_a_label() -> None:
    sweep = [measured(policy, knob, 0.99, 2.0) for policy in ("keda", "hpa-in-flight") for knob in (24, 32)]
    _, labels = draw_labels([*sweep, measured("keda", 8, 0.999, 4.0), measured("keda", 12, 0.99, 2.001)])
    assert set(labels) == {"24", "8"}


@pytest.mark.parametrize("late", [1.0, 0.5, 0.0])
def test_labels_are_inside_of_the_axes_and_apart(late: float) -> None:
    sweep = [measured("static", count, 1 - late, count) for count in range(1, 40)]
    box, labels = draw_labels(sweep)
    assert {"1", "2", "4"} <= set(labels)
    assert max(map(int, labels)) > 30
    for label in labels.values():
        assert box.x0 <= label.x0 < label.x1 <= box.x1
        assert box.y0 <= label.y0 < label.y1 <= box.y1
    assert not any(Bbox.intersection(one, other) for one, other in combinations(labels.values(), 2))
