"""Lines of status: what one side writes the other reads."""

from typing import Any

import pytest

from millrace_operator.api.change_record import read_change_lines, render_change_line
from millrace_operator.api.status_lines import LINE_LENGTH, read_objectives, render_objective

AT = "2026-01-02T01:12:00Z"
CHANGE = {"at": AT, "from": 3, "to": 4, "reason": "ScalingUp", "binding": "forecast", "message": "more: 4"}
LOAD = {"arrivalsPerSecond": "12.9", "promptTokens": "900", "perReplicaPerSecond": "4.1"}
MET = {"metric": "TimeToFirstToken", "percentile": 95, "state": "Met", "since": AT, "targetSeconds": "2"}
MEASURED = {"measuredSeconds": "0.41", "samples": 840, "burnRate": "0.2", "spentSeconds": "3"}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (CHANGE, f"{AT} 3 -> 4 ScalingUp forecast: more: 4"),
        ({**CHANGE, "binding": "", "message": ""}, f"{AT} 3 -> 4 ScalingUp ?"),
        (
            {**CHANGE, "load": LOAD},
            f"{AT} 3 -> 4 ScalingUp forecast (12.9 req/s of 900 + ? tokens, 4.1 a replica): more: 4",
        ),
    ],
)
def test_a_change_is_a_line(change: dict[str, Any], line: str) -> None:
    assert render_change_line(change) == line
    assert read_change_lines([line]) == [change]


def test_what_is_no_change_is_left_out_and_a_long_one_is_cut() -> None:
    assert read_change_lines(["", "yesterday 1 -> 2 up x", "soon", f"{AT} 1 -> many up x"]) == []
    assert len(render_change_line({**CHANGE, "message": "x" * 5000})) < LINE_LENGTH


@pytest.mark.parametrize(("measured", "doubt"), [(MEASURED, None), ({}, None), ({"samples": 60}, "no bound")])
def test_an_objective_is_a_line(measured: dict[str, Any], doubt: str | None) -> None:
    line = render_objective({**MET, **measured}, doubt)
    assert line.startswith(f"P95 TimeToFirstToken Met since {AT}: ")
    assert read_objectives([line, "P95"]) == [{**MET, **measured, **({"doubt": doubt} if doubt else {})}]


def test_an_objectives_doubt_of_many_lines_is_one() -> None:
    (read,) = read_objectives([render_objective(MET, "HTTP 502: <html>\n<head>")])
    assert read["doubt"] == "HTTP 502: <html> <head>"
