"""The table of the gateways' figures, and what is held of a large cluster's cost."""

import asyncio

import pytest

from benchmarks.gateway import steps, timed_pod
from benchmarks.gateway.catalogue import measure
from benchmarks.gateway.table import compare, render

DIRECT = {"requests_per_second": 70_000.0, "latency_p50_ms": 0.1, "latency_p99_ms": 0.3}


def make_figures(rate: float, p50: float) -> dict[str, float]:
    return {"requests_per_second": rate, "latency_p50_ms": p50, "latency_p99_ms": 2 * p50, "idle_mb": 40.0}


def test_ours_is_compared_with_the_best_router_of_each_round() -> None:
    rounds = {
        "direct": [DIRECT, DIRECT, DIRECT],
        "millrace": [make_figures(9000, 0.3), make_figures(11_000, 0.3), make_figures(1.0, 0.3)],
        "vllm-router": [make_figures(10_000, 0.2), make_figures(5000, 0.5), make_figures(1.0, 0.3)],
        "sglang-router": [make_figures(8000, 0.3), make_figures(10_000, 0.4)],
        "nginx": [make_figures(50_000, 0.1)],
    }
    found = compare(rounds)
    assert found["requests_over_best_router"] == pytest.approx(1.0)
    assert found["added_p50_ms_over_best_router"] == pytest.approx(0.0)
    assert compare({"direct": [DIRECT], "millrace": [make_figures(1.0, 1.0)]}) == {}


def test_the_table_has_a_line_for_each_gateway_and_a_dash_where_nothing_was_measured() -> None:
    lines = render({"direct": DIRECT, "millrace": make_figures(9000, 0.3)}).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["direct", "millrace"]
    assert lines[2].split()[1:4] == ["9,000", "0.20", "0.30"]
    assert lines[1].split()[-1] == "-"


def test_a_cluster_is_followed_by_the_gateways_own_sinks() -> None:
    figures = asyncio.run(measure(20, 150))
    assert min(figures.values()) > 0


def test_a_step_is_timed_as_it_was_and_the_longest_comes_first() -> None:
    (name, *_) = timed_pod.STEPS
    assert timed_pod.time_step(name, lambda value, more: value + more)(1, more=2) == 3
    assert timed_pod._spent[name] > 0
    for places in timed_pod.STEPS.values():
        assert all(callable(getattr(owner, attribute)) for owner, attribute in places)
    lines = steps.render(
        {"request_microseconds": 100.0, "step_microseconds": {"a": 5.0, "b": 20.0}}
    ).splitlines()
    assert [line.split(" | ")[:2] for line in lines[2:]] == [
        ["| b", "20.0"],
        ["| a", "5.0"],
        ["| all else: the loop, tasks, system calls", "75.0"],
        ["| a request", "100.0"],
    ]
