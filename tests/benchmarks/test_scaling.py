"""What the benchmark beside the real HPA makes of what it sees, and what it tells the API server."""

import argparse
import json
from dataclasses import replace
from datetime import UTC, datetime
from http.client import HTTPException
from itertools import pairwise

import pytest

from benchmarks.scaling.__main__ import build_parser, read_numbers
from benchmarks.scaling.cluster import effective_window, read_shipped_tick
from benchmarks.scaling.contestants import has_learned
from benchmarks.scaling.load import Ramp
from benchmarks.scaling.outcome import Outcome, Target, Targets, choose_best, judge, read_targets
from benchmarks.scaling.replicas import Sample, count_pods, highest_count, replica_seconds
from benchmarks.scaling.report import Round, describe, render
from e2e.external_metrics import (
    METRIC,
    ROOT,
    Subject,
    answer,
    parse_number,
    parse_subject,
    render_query,
)
from e2e.hpa import render_adapter_service, render_api_service, render_hpa
from e2e.service import EXAMPLE_MANIFEST
from testing.traffic import Stream

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PATH = f"{ROOT}/namespaces/team/{METRIC}?labelSelector=service%3Dchat"
SERIES = '{namespace="team",service="chat"}'
TARGETS = Targets(Target(2.0, 0.95), Target(0.2, 0.95))


def test_the_hpas_question_is_answered_with_what_prometheus_says() -> None:
    asked: list[str] = []

    def ask(query: str) -> float:
        asked.append(query)
        return 12.0

    reply = answer(PATH, ask, NOW)
    assert reply.status == 200
    running, waiting = (f"sum(vllm:num_requests_{which}{SERIES})" for which in ("running", "waiting"))
    assert asked == [f"{running} + {waiting}"]
    assert reply.body["items"] == [
        {"metricName": METRIC, "metricLabels": {}, "timestamp": "2026-01-02T03:04:05Z", "value": "12000m"}
    ]


def test_what_is_not_known_is_no_zero() -> None:
    assert answer(PATH, lambda _: None, NOW).body["items"] == []


@pytest.mark.parametrize("error", [ConnectionRefusedError(), HTTPException("500")])
def test_without_prometheus_the_answer_is_a_failure(error: Exception) -> None:
    def ask(_: str) -> float:
        raise error

    reply = answer(PATH, ask, NOW)
    assert (reply.status, reply.body["code"]) == (503, 503)


@pytest.mark.parametrize(
    "path",
    [
        f"{ROOT}/namespaces/team/queue-length?labelSelector=service%3Dchat",
        f"{ROOT}/namespaces/team/{METRIC}",
        f"{ROOT}/namespaces/team/{METRIC}?labelSelector=app%3Dchat",
        "/apis",
    ],
)
def test_other_questions_are_not_answered(path: str) -> None:
    assert parse_subject(path) is None
    assert answer(path, lambda _: 1.0, NOW).status == 404


def test_the_api_server_finds_the_metric() -> None:
    found = answer(f"{ROOT}?timeout=32s", lambda _: 1.0, NOW)
    assert [one["name"] for one in found.body["resources"]] == [METRIC]


def test_a_question_names_one_service() -> None:
    assert 'namespace="a",service="b"' in render_query(Subject("a", "b"))


def test_prometheus_number_is_read_where_there_is_one() -> None:
    assert parse_number({"data": {"result": [{"value": [1.0, "7"]}]}}) == 7.0
    assert parse_number({"data": {"result": []}}) is None


def test_pods_count_until_they_have_ended() -> None:
    phases = ["Pending", "Running", "Succeeded", "Failed"]
    draining = {"metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}, "status": {"phase": "Running"}}
    assert count_pods([*({"status": {"phase": phase}} for phase in phases), draining, {}]) == 4


def test_replica_seconds_are_the_area_under_the_counts() -> None:
    samples = [Sample(0.4, 1), Sample(10.0, 3), Sample(20.0, 2), Sample(40.0, 5)]
    assert replica_seconds(samples, until=30.0) == 10 + 30 + 20
    assert replica_seconds(samples, until=50.0) == 10 + 30 + 40 + 50
    assert replica_seconds(samples, until=5.0) == 5
    assert highest_count(samples) == 5


def stream(first: float | None, ended: float = 3.0, num_tokens: int = 11, status: int = 200) -> Stream:
    finish = "length" if first is not None else None
    return Stream(0, 11, 0.0, status, first, ended, "", num_tokens if finish else None, finish)


def test_a_trial_counts_what_was_in_time_for_each_objective() -> None:
    late, slow, refused, cut = stream(2.5), stream(0.5), stream(None, status=503), stream(None)
    streams = [*[stream(1.5)] * 4, late, slow, refused, cut]
    found = judge("ours", streams, [Sample(0.0, 2)], 10.0, TARGETS)
    assert found.ttft_share == 5 / 8
    assert found.tpot_share == 5 / 8
    assert found.in_time_share == 4 / 8
    assert not found.keeps_objectives
    assert (found.num_requests, found.num_refused, found.num_broken) == (8, 1, 1)
    assert (found.replica_seconds, found.highest_count) == (20.0, 2)


def test_objectives_are_kept_by_their_percentile() -> None:
    streams = [*[stream(1.5)] * 19, stream(2.5)]
    assert judge("ours", streams, [], 10.0, TARGETS).keeps_objectives
    assert not judge("ours", [*streams, stream(2.5)], [], 10.0, TARGETS).keeps_objectives


def test_the_objectives_are_those_of_the_example() -> None:
    assert read_targets(EXAMPLE_MANIFEST["spec"]) == TARGETS


def test_no_request_is_no_trial() -> None:
    with pytest.raises(ValueError, match="--seconds longer"):
        judge("ours", [], [], 10.0, TARGETS)


KEPT = Outcome("HPA 8", True, 0.99, 1.0, 0.99, 1.2, 400.0, 5, 1000, 0, 0)
DEAR = replace(KEPT, name="HPA 4", ttft_share=1.0, in_time_share=1.0, replica_seconds=500.0)
CHEAP = replace(KEPT, name="HPA 16", keeps_objectives=False, in_time_share=0.9, replica_seconds=300.0)
BAD = replace(CHEAP, name="HPA 32", in_time_share=0.7, replica_seconds=200.0)


def test_the_best_hpa_is_the_cheapest_that_keeps_the_objectives() -> None:
    assert choose_best([DEAR, KEPT, CHEAP]) is KEPT


def test_where_none_keeps_them_the_best_has_most_in_time() -> None:
    assert choose_best([BAD, CHEAP]) is CHEAP


OURS = replace(KEPT, name="ours", replica_seconds=320.0, highest_count=4)
ROUND = Round(30, 120.0, OURS, (DEAR, KEPT, CHEAP))


def test_the_table_has_every_trial_and_the_comparison() -> None:
    head, *rows, empty, comparison = render([ROUND])
    assert head.split()[:2] == ["scrapes", "autoscaler"]
    assert rows[0].split()[:3] == ["30", "s", "ours"]
    assert [row.split()[-1] for row in rows] == ["kept", "kept", "kept", "missed"]
    assert empty == ""
    assert "HPA 8" in comparison
    assert comparison.endswith("ratio 0.80")


def test_the_figures_have_every_trial_and_the_comparison() -> None:
    figures = json.loads(json.dumps(describe([ROUND])))["scrapes_30s"]
    assert figures["best_hpa"] == "HPA 8"
    assert figures["replica_seconds_over_best_hpa"] == 0.8
    assert [one["name"] for one in figures["trials"]] == ["ours", "HPA 4", "HPA 8", "HPA 16"]


def test_the_hpa_has_kubernetes_defaults_but_for_the_window_and_asks_for_the_adapters_metric() -> None:
    spec = render_hpa(Subject("team", "chat"), target=8, max_replicas=5, window_seconds=60.0)["spec"]
    assert spec["scaleTargetRef"] == {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "InferenceService",
        "name": "chat",
    }
    (metric,) = spec["metrics"]
    assert metric["external"]["metric"] == {"name": METRIC, "selector": {"matchLabels": {"service": "chat"}}}
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "8"}
    assert spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 60
    assert (spec["minReplicas"], spec["maxReplicas"]) == (1, 5)


def test_the_api_server_is_led_to_the_adapter_on_loopback() -> None:
    assert render_adapter_service()["spec"] == {"type": "ExternalName", "externalName": "127.0.0.1"}
    found = render_api_service(4443)["spec"]["service"]
    assert found == {**render_adapter_service()["metadata"], "port": 4443}


def test_who_misses_an_objective_is_not_called_cheaper() -> None:
    missed = replace(ROUND, ours=replace(OURS, keeps_objectives=False))
    assert render([missed])[-1].endswith("ratio none")
    assert describe([missed])["scrapes_30s"]["replica_seconds_over_best_hpa"] is None


def test_what_was_infinitely_late_is_no_number_in_json() -> None:
    lost = replace(OURS, ttft_p95_seconds=float("inf"))
    figures = json.dumps(describe([replace(ROUND, ours=lost)]), allow_nan=False)
    assert json.loads(figures)["scrapes_30s"]["trials"][0]["ttft_p95_seconds"] is None


def test_ours_is_ready_once_its_model_is_fitted() -> None:
    fitted = {"perReplicaPerSecond": "4.1"}
    assert has_learned({"scaling": {"evidence": fitted}})
    for scaling in ({}, {"evidence": {}}, {"evidence": {**fitted, "learning": "12 samples so far"}}):
        assert not has_learned({"scaling": scaling})


def test_the_ramp_goes_up_and_back_in_the_time_it_has() -> None:
    phases = Ramp(capacity=10.0, seconds=200.0, seed=1).phases
    assert sum(phase.seconds for phase in phases) == pytest.approx(200.0)
    rates = [phase.rate for phase in phases]
    assert (rates[0], max(rates), rates[-1]) == (5.0, 30.0, 5.0)
    up = rates[: rates.index(30.0) + 1]
    assert up == sorted(up)
    assert max(after - before for before, after in pairwise(up)) < 2.0


def test_both_have_the_window_that_ours_cannot_go_below() -> None:
    assert effective_window(30.0, scrape_seconds=5) == 60.0
    assert effective_window(30.0, scrape_seconds=30) == 120.0
    assert effective_window(180.0, scrape_seconds=30) == 180.0


def test_the_tick_is_the_charts() -> None:
    assert read_shipped_tick() > 0


def test_flags_are_read() -> None:
    assert read_numbers("5,30") == (5, 30)
    assert build_parser().parse_args(["--scrapes", "30"]).scrapes == (30,)
    for text in ("", "5,", "0", "a"):
        with pytest.raises(argparse.ArgumentTypeError, match="whole numbers"):
            read_numbers(text)
