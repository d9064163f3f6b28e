"""Where the best value of a peer's knob is looked for."""

from collections.abc import Mapping

import pytest

from benchmarks.autoscaler.choice import choose_knob, list_tried
from benchmarks.autoscaler.jobs import Job, Result
from benchmarks.autoscaler.refine import propose


def give(attainment: float, replicas: float) -> Result:
    return Result(attainment, replicas, 2, 0, 0, 0, 86_400.0)


def play(values: Mapping[float, tuple[float, float]]) -> dict[float, list[Result]]:
    return {value: [give(*found)] for value, found in values.items()}


@pytest.mark.parametrize(
    ("values", "proposed"),
    [
        ({8: (1.0, 20.0), 12: (0.98, 15.0), 16: (0.9, 12.0)}, 10.0),
        ({1.0: (0.9, 8.0), 1.5: (0.98, 9.0), 2.0: (0.995, 11.0)}, 1.75),
        ({8: (1.0, 20.0), 16: (0.995, 15.0)}, 32.0),  # the cheapest is at the end, and good
        ({1.5: (0.9, 9.0), 2.0: (0.98, 11.0)}, 2.6667),  # none is good: further that way
        ({0.2: (0.95, 9.0), 0.3: (0.98, 9.0), 0.4: (0.97, 9.0)}, None),  # the best is inside
        ({8: (1.0, 20.0), 8.3: (0.98, 15.0)}, None),
        ({8: (1.0, 20.0)}, None),
    ],
)
def test_the_next_value_is_nearer_to_the_best(
    values: dict[float, tuple[float, float]], proposed: float | None
) -> None:
    assert propose(play(values), is_whole=False) == proposed


def test_a_count_is_whole() -> None:
    assert propose(play({8: (0.9, 8.0), 11: (1.0, 11.0)}), is_whole=True) == 10.0
    assert propose(play({10: (0.9, 10.0), 11: (1.0, 11.0)}), is_whole=True) is None


def test_the_edge_of_what_is_good_is_found() -> None:
    """A rule that is good up to 10.6 and cheaper the higher: the grid has 8 and 12."""
    found = {value: [give(1.0 if value <= 10.6 else 0.9, 100 / value)] for value in (8.0, 12.0, 16.0)}
    for _ in range(3):
        value = propose(found, is_whole=False)
        assert value is not None
        found[value] = [give(1.0 if value <= 10.6 else 0.9, 100 / value)]
    assert choose_knob(found).value == 10.5


def test_a_value_counts_where_it_was_tried_on_all_workloads() -> None:
    tuning = {Job(name, "keda", 8.0, "tune"): give(1.0, 9.0) for name in ("W1", "W4")}
    tuning[Job("W1", "keda", 10.0, "tune")] = give(1.0, 8.0)
    assert list(list_tried(tuning, "keda", ["W1", "W4"])) == [8.0]
    assert sorted(list_tried(tuning, "keda", ["W1"])) == [8.0, 10.0]
