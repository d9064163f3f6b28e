"""What the operator shows of a service, through a real decision and as Prometheus' text."""

from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.utils import floatToGoString

from millrace_operator.api.scaling_types import ObjectiveMetric
from millrace_operator.app.metrics import BOUNDS, ServiceCollector, find_bounds
from millrace_operator.autoscaler.decide.decide import decide
from millrace_operator.autoscaler.decide.decision import Decision
from millrace_operator.autoscaler.decide.memory import Memory
from millrace_operator.autoscaler.decide.policy import Objective, Policy
from millrace_operator.autoscaler.signals.observation import Fleet, Signals, StepMoments
from millrace_operator.controller.cache import Cache
from millrace_operator.kube.kinds import INFERENCE_SERVICE, Obj
from millrace_runtime.api.metrics import Histogram
from testing.world import KEY, make_pod, make_service, ready_status, unschedulable_status

TTFT, TPOT = ObjectiveMetric.TIME_TO_FIRST_TOKEN, ObjectiveMetric.TIME_PER_OUTPUT_TOKEN
SCALING = {
    "minReplicas": 2,
    "maxReplicas": 8,
    "objectives": [
        {"metric": "TimeToFirstToken", "percentile": 95, "target": "3.5s"},
        {"metric": "TimePerOutputToken", "percentile": 99, "target": "1ms"},
    ],
}


@dataclass(frozen=True)
class Considered:
    decision: Decision
    signals: Signals
    memory: Memory


def consider() -> Considered:
    """A decision over a fitted model: steps of 20 ms, which no 1 ms a token can be met with."""
    policy = Policy(
        min_replicas=2,
        max_replicas=8,
        objectives=(Objective("TimeToFirstToken", 95, 3.5), Objective("TimePerOutputToken", 99, 0.001)),
    )
    fleet = Fleet({"chat-1": "one", "chat-2": "one"}, frozenset({"chat-1"}), {"chat-1": 42.0}, desired=2)
    memory, decision, signals = Memory(), None, Signals(fleet)
    for turn in range(20):
        sequences = 1.0 + turn % 5
        seconds = 0.02 + 0.001 * sequences
        signals = Signals(
            fleet,
            fleet.ready,
            arrivals_per_second=1.0,
            recent_arrivals_per_second=1.0,
            waiting=0.0,
            running=2.0,
            prompt_tokens=100.0,
            generation_tokens=50.0,
            steps=(StepMoments("chat-1", seconds, sequences, sequences, 100 * sequences, 50),),
        )
        decision, memory = decide(policy, signals, memory, 15.0 * turn)
    assert decision is not None
    return Considered(decision, signals, memory)


def put_in(cache: Cache, obj: Obj, version: int = 1) -> None:
    cache.put({**obj, "metadata": {**obj["metadata"], "resourceVersion": str(version)}})


def fill_cache(**scaling: Any) -> Cache:
    cache = Cache()
    service = make_service(scaling=scaling or SCALING)
    cost = {"currency": "EUR", "perHour": "7.5", "savedPerHour": "2.5"}
    service["status"] = {"scaling": {"desiredReplicas": 3, "reason": "ScalingUp"}, "cost": cost}
    put_in(cache, service)
    put_in(cache, make_pod("chat-1", **ready_status()))
    put_in(cache, make_pod("chat-2", **unschedulable_status()))
    return cache


def make_collector() -> ServiceCollector:
    considered = consider()
    return ServiceCollector(fill_cache(), lambda _: considered)


def show(collector: ServiceCollector) -> set[str]:
    """The lines of a scrape without the labels that all have."""
    registry = CollectorRegistry()
    registry.register(collector)
    lines = generate_latest(registry).decode().splitlines()
    return {
        line.replace('namespace="shop",', "").replace(',service="chat"', "").replace('service="chat"', "")
        for line in lines
        if not line.startswith("#")
    }


def test_a_name_that_two_namespaces_claim_is_shown_for_its_alert() -> None:
    cache = fill_cache()
    collector = ServiceCollector(cache, lambda _: None)
    assert "millrace_name_shadowed{} 0.0" in show(collector)
    rival = make_service()
    rival["metadata"] = {**rival["metadata"], "namespace": "secret", "uid": "another"}
    put_in(cache, rival)
    assert "millrace_name_shadowed{} 1.0" in show(collector)


def test_objectives_are_shown_with_the_bucket_that_each_target_is_in() -> None:
    shown = show(ServiceCollector(fill_cache(), lambda _: None))
    first, second = 'metric="TimeToFirstToken",percentile="95"', 'metric="TimePerOutputToken",percentile="99"'
    assert {line for line in shown if line.startswith("millrace_objective_")} == {
        f"millrace_objective_target_seconds{{{first}}} 3.5",
        f"millrace_objective_target_seconds{{{second}}} 0.001",
        f"millrace_objective_error_budget_ratio{{{first}}} 0.05",
        f"millrace_objective_error_budget_ratio{{{second}}} 0.01",
        f'millrace_objective_edge_seconds{{bucket="3.0",{first},side="under"}} 3.0',
        f'millrace_objective_edge_seconds{{bucket="4.0",{first},side="over"}} 4.0',
        f'millrace_objective_edge_seconds{{bucket="0.001",{second},side="under"}} 0.001',
        f'millrace_objective_edge_seconds{{bucket="0.001",{second},side="over"}} 0.001',
    }


@pytest.mark.parametrize(
    ("metric", "target", "under", "over"),
    [
        (TTFT, 3.5, 3.0, 4.0),
        (TTFT, 2.5, 2.5, 2.5),
        (TTFT, 0.0005, None, 0.001),
        (TTFT, 3600.0, 2560.0, float("inf")),
        (TPOT, 0.1 * 3, 0.3, 0.3),
        (TPOT, 0.06, 0.05, 0.075),
    ],
)
def test_a_target_is_between_two_bounds_or_at_one(
    metric: ObjectiveMetric, target: float, under: float | None, over: float
) -> None:
    assert find_bounds(metric, target) == (under, over)


def test_a_bound_is_written_as_the_histogram_writes_it() -> None:
    """Prometheus joins both by the text."""
    for metric, bounds in BOUNDS.items():
        written = [name for name, _ in Histogram(bounds).buckets()]
        assert written == [floatToGoString(bound) for bound in (*bounds, float("inf"))], metric


def test_replicas_are_counted_and_what_keeps_one_from_serving_is_named() -> None:
    shown = show(ServiceCollector(fill_cache(), lambda _: None))
    assert {
        "millrace_min_replicas{} 2.0",
        "millrace_max_replicas{} 8.0",
        "millrace_desired_replicas{} 3.0",
        "millrace_replicas{} 2.0",
        "millrace_ready_replicas{} 1.0",
        'millrace_failing_replicas{reason="Unschedulable"} 1.0',
        'millrace_scaling_reason{reason="ScalingUp"} 1.0',
    } <= shown


def test_what_the_leader_thinks_is_shown_and_others_show_none_of_it() -> None:
    thought = show(make_collector()) - show(ServiceCollector(fill_cache(), lambda _: None))
    names = {line.partition("{")[0] for line in thought}
    assert names == {
        "millrace_recommended_replicas",
        "millrace_arrivals_per_second",
        "millrace_forecast_arrivals_per_second",
        "millrace_planned_arrivals_per_second",
        "millrace_cold_start_seconds",
        "millrace_step_model_seconds",
        "millrace_step_model_error_ratio",
        "millrace_objective_infeasible",
        "millrace_cost_per_thousand_tokens",
    }
    assert {
        'millrace_objective_infeasible{metric="TimeToFirstToken",percentile="95"} 0.0',
        'millrace_objective_infeasible{metric="TimePerOutputToken",percentile="99"} 1.0',
        "millrace_cold_start_seconds{} 42.0",
        "millrace_arrivals_per_second{} 1.0",
    } <= thought


def test_money_is_shown_by_every_replica_and_the_price_of_tokens_by_the_leader() -> None:
    money = {
        'millrace_cost_per_hour{currency="EUR"} 7.5',
        'millrace_saved_per_hour{currency="EUR"} 2.5',
    }
    others = {line for line in show(ServiceCollector(fill_cache(), lambda _: None)) if "EUR" in line}
    assert others == money
    (tokens,) = {line for line in show(make_collector()) if "EUR" in line} - money
    name, _, price = tokens.partition(" ")
    assert name == 'millrace_cost_per_thousand_tokens{currency="EUR"}'
    assert float(price) == pytest.approx(7.5 / (50 * 3600) * 1000)  # 50 tokens a second


def test_a_service_without_a_price_has_no_money() -> None:
    cache = fill_cache()
    service = make_service()
    put_in(cache, {**service, "status": {"cost": {}}}, 2)
    assert not {line for line in show(ServiceCollector(cache, lambda _: consider())) if "currency" in line}


def test_a_service_in_mode_external_has_no_bounds() -> None:
    shown = show(ServiceCollector(fill_cache(mode="External"), lambda _: None))
    assert "millrace_desired_replicas{} 3.0" in shown
    assert not [line for line in shown if line.startswith(("millrace_min", "millrace_max"))]


def test_a_deleted_service_has_no_series_and_a_spec_that_cannot_be_read_hides_no_other() -> None:
    cache = fill_cache()
    other = make_service(scaling={"objectives": [{"metric": "Nonsense"}]})
    other["metadata"]["name"] = "other"
    put_in(cache, other)
    shown = show(ServiceCollector(cache, lambda _: None))
    assert "millrace_max_replicas{} 8.0" in shown
    assert 'millrace_replicas{service="other"} 0.0' in {line.replace("{,", "{") for line in shown}
    cache.drop(INFERENCE_SERVICE, *KEY)
    assert not [line for line in show(ServiceCollector(cache, lambda _: None)) if "max_replicas" in line]
