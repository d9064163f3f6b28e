"""The queries to Prometheus. `e2e/test_prometheus.py` asks a real one."""

import re

import pytest

from millrace_operator.autoscaler.decide.policy import Objective
from millrace_operator.autoscaler.signals.queries import (
    REPLICA_NAME,
    Scope,
    build_past,
    build_questions,
    find_bounds,
)
from millrace_operator.autoscaler.signals.scrapes import DEFAULT_WINDOWS
from millrace_operator.render.child import revision_name
from millrace_operator.rollout.revision import hash_inputs

TTFT = Objective("TimeToFirstToken", 95, 1.0)
REVISION = hash_inputs({"model": {"uri": "file:///m"}})
LONGEST_BASE = 58
"""Characters that Kubernetes leaves of a pod's name before the five that it draws."""


def name_pod(service: str, template_hash: str) -> str:
    """A pod's name, as Deployment and ReplicaSet controllers make it."""
    deployment = revision_name({"metadata": {"name": service}}, REVISION)
    return f"{deployment}-{template_hash}-"[:LONGEST_BASE] + "xk2p9"


def find_service(pod: str) -> str | None:
    found = re.fullmatch(REPLICA_NAME, pod)
    return found and "".join(filter(None, found.groups()))


@pytest.mark.parametrize("length", range(1, 51))
@pytest.mark.parametrize("template_hash", ["7d9f88c4d5", "56ddc7b88", "5b6c7d8f"])
def test_a_replica_is_known_by_its_pods_name_whatever_the_length_of_its_services(
    length: int, template_hash: str
) -> None:
    for name in ("c" * length, ("chat-2-" * 8)[: length - 1] + "x"):
        assert find_service(name_pod(name, template_hash)) == name


def test_services_whose_names_begin_alike_are_kept_apart() -> None:
    for name in ("chat", "chat-2", f"chat-{REVISION}"):
        assert find_service(name_pod(name, "7d9f88c4d5")) == name


@pytest.mark.parametrize(
    "pod", ["chat-7d9f88c4d5-abcde", "chat-vllm-7d9f88c4d5-abcde", "vllm-0", "chat", f"chat-{REVISION}"]
)
def test_pods_of_others_are_not_taken_for_replicas(pod: str) -> None:
    assert find_service(pod) is None


def test_past_arrivals_are_those_of_the_gateways_own_labels() -> None:
    """A tenant's pod can export any label. Its own namespace is `namespace`, whatever it exports."""
    arrivals = build_past(60.0, Scope(("shop",)))["arrivals"]
    assert 'namespace=~"shop"' in arrivals
    assert "exported_namespace" not in arrivals
    assert "pod=" not in arrivals
    assert arrivals.startswith("sum by (namespace, service) (max by (namespace, service, pod) (")


def test_only_the_metrics_and_percentiles_that_objectives_name_are_asked_for() -> None:
    assert len(build_questions([], DEFAULT_WINDOWS, Scope())) == 2
    stricter, rarer = Objective("TimeToFirstToken", 95, 0.6), Objective("TimeToFirstToken", 99, 1.0)
    *_, latencies = build_questions([TTFT, TTFT, stricter, rarer], DEFAULT_WINDOWS, Scope())
    assert [*latencies.signals] == [
        "TimeToFirstToken buckets",
        "P95 TimeToFirstToken",
        "P99 TimeToFirstToken",
    ]
    assert "time_per_output_token" not in latencies.text


def test_the_lengths_of_answers_are_asked_for_only_where_an_objective_rests_on_them() -> None:
    *_, others = build_questions([TTFT, Objective("QueueTime", 95, 0.5)], DEFAULT_WINDOWS, Scope())
    assert [*others.signals] == [
        "QueueTime buckets",
        "P95 QueueTime",
        "TimeToFirstToken buckets",
        "P95 TimeToFirstToken",
    ]
    assert "generation_tokens_bucket" not in others.text
    *_, latencies = build_questions([Objective("EndToEndLatency", 95, 30.0)], DEFAULT_WINDOWS, Scope())
    assert [*latencies.signals] == ["EndToEndLatency buckets", "P95 EndToEndLatency", "answer lengths"]
    assert "increase(vllm:request_generation_tokens_bucket" in latencies.signals["answer lengths"]


def test_the_buckets_asked_for_are_those_next_to_the_targets() -> None:
    objectives = [TTFT, Objective("TimeToFirstToken", 95, 0.6)]
    *_, latencies = build_questions(objectives, DEFAULT_WINDOWS, Scope())
    chosen = re.search(r'le=~"([^"]+)"', latencies.text)
    assert chosen is not None
    pattern = re.compile(chosen[1].replace(r"\\", "\\"))
    written = ["0.5", "0.75", "1", "1.0", "+Inf", "10.0", "0.1", "0x5", "2.5", "11"]
    assert [le for le in written if pattern.fullmatch(le)] == ["0.5", "0.75", "1", "1.0", "+Inf"]


@pytest.mark.parametrize(
    ("target", "bounds"),
    [(0.6, (0.5, 0.75)), (0.5, (0.5, 0.5)), (0.1 * 3 - 0.05, (0.25, 0.25)), (0.0001, (None, 0.001)),
     (9999.0, (2560.0, float("inf")))],
)  # fmt: skip
def test_the_bounds_next_to_a_target(target: float, bounds: tuple[float | None, float]) -> None:
    assert find_bounds(Objective("TimeToFirstToken", 95, target)) == bounds


def test_a_question_names_the_namespaces_of_its_services_while_they_are_few() -> None:
    few = build_questions([TTFT], DEFAULT_WINDOWS, Scope(("b", "a")))
    assert all('namespace=~"a|b"' in question.text for question in few)
    many = build_questions([TTFT], DEFAULT_WINDOWS, Scope(tuple(f"team-{number}" for number in range(750))))
    assert all("team-" not in question.text for question in many)


def test_no_decision_asks_for_what_any_pod_may_export_about_another_service() -> None:
    """A gateway's series name the service in a label. Arrivals come from the gateways' own stream."""
    questions = build_questions([TTFT, Objective("QueueTime", 95, 0.5)], DEFAULT_WINDOWS, Scope())
    asked = " ".join(text for question in questions for text in question.signals.values())
    assert "millrace_gateway" not in asked
    selectors = re.findall(r"\w{([^}]*)}", asked.replace(REPLICA_NAME, "REPLICA"))
    assert selectors
    assert not [one for one in selectors if 'pod=~"REPLICA"' not in one], (
        "the API server knows a pod's service"
    )


def test_matchers_of_ones_own_are_in_every_selector() -> None:
    for question in build_questions([TTFT], DEFAULT_WINDOWS, Scope(("a",), 'cluster="eu"')):
        selectors = re.findall(r"\{[^{}]*=[^{}]*\}", re.sub(r"\{\d+(,\d+)?\}", "", question.text))
        assert selectors
        assert all('cluster="eu"' in selector for selector in selectors)
