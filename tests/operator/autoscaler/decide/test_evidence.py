"""What a decision rests on, in the shape that the API server accepts."""

import math
from dataclasses import replace
from typing import Any

import pytest

from millrace_operator.api.scaling_types import Evidence
from millrace_operator.autoscaler.capacity.latency_model import LatencyModel
from millrace_operator.autoscaler.decide.attainment import Calibration, ErrorRecord
from millrace_operator.autoscaler.decide.decide import decide
from millrace_operator.autoscaler.decide.evidence import gather_evidence, render_decision
from millrace_operator.autoscaler.decide.memory import Memory
from millrace_operator.autoscaler.decide.policy import Objective, Policy
from millrace_operator.autoscaler.signals.observation import Fleet, Latency, Signals

TTFT = Objective("TimeToFirstToken", 95, 2.0)
TPOT = Objective("TimePerOutputToken", 95, 0.1)
POLICY = Policy(1, 10, (TTFT, TPOT), max_sequences=16)
FITTED = LatencyModel(num_samples=50, relative_error=0.021, coefficients=(0.02, 0.002, 2e-6))
SEEN = Signals(
    Fleet({"a": "r1"}, frozenset({"a"}), desired=1),
    reporting=frozenset({"a"}),
    arrivals_per_second=14.2,
    waiting=3.0,
    running=5.0,
    prompt_tokens=40,
    generation_tokens=40,
    latencies=(Latency(TTFT, 3.4, 100),),
    sampled_at={"a": 998.0, "gone": 1.0},
)


def gather(
    signals: Signals,
    model: LatencyModel = FITTED,
    policy: Policy = POLICY,
    **remembered: Any,
) -> dict[str, object]:
    decision, memory = decide(policy, signals, Memory(model=model, **remembered), 0.0)
    found = gather_evidence(policy, decision, signals, memory, 1000.0)
    objectives = [{**objective, "since": "2026-01-01T00:00:00Z"} for objective in found["objectives"]]
    Evidence.model_validate({**found, "objectives": objectives})
    return found


def test_it_has_each_figure_that_is_known() -> None:
    found = gather(SEEN)
    assert found["observedAt"] == "1970-01-01T00:16:40Z"
    assert found["oldestSampleAt"] == "1970-01-01T00:16:38Z"
    assert (found["arrivalsPerSecond"], found["forecastPerSecond"]) == ("14.2", "17.2")
    assert found["marginPerSecond"] == "3.01"
    assert not {"correction", "flaps"} & found.keys()
    assert (found["running"], found["waiting"]) == (5, 3)
    assert (found["promptTokens"], found["generationTokens"]) == ("40", "40")
    assert {"name": "forecast", "replicas": 5} in found["candidates"]  # type: ignore[operator]
    assert found["model"] == {
        "alphaSeconds": "0.02",
        "betaSecondsPerToken": "0.002",
        "gammaSecondsPerContextToken": "2e-06",
        "relativeError": "0.021",
        "samples": 50,
        "fitted": True,
    }
    assert found["objectives"] == [
        {
            "metric": "TimeToFirstToken",
            "percentile": 95,
            "targetSeconds": "2",
            "measuredSeconds": "3.4",
            "samples": 100,
            "burnRate": "2",
            "state": "Missed",
        },
        {"metric": "TimePerOutputToken", "percentile": 95, "targetSeconds": "0.1", "state": "Unknown"},
    ]


def compared(bias: float, *objectives: Objective) -> Calibration:
    """So far off, as far as was seen until now."""
    return Calibration(
        {one: ErrorRecord(bias, 1000.0, 3600.0, 0.0) for one in objectives or (TTFT, TPOT)}, 0.0
    )


def test_the_part_in_time_is_shown_for_the_neighbours_of_a_count_while_it_is_known_to_be_right() -> None:
    assert "attainment" not in gather(SEEN)
    attainment = gather(SEEN, calibration=compared(0.01))["attainment"]
    assert isinstance(attainment, dict)
    assert attainment["error"] == "0.01"
    assert (attainment["metric"], attainment["percentile"]) == ("TimeToFirstToken", 95)
    assert [one["replicas"] for one in attainment["counts"]] == [1, 2, 4, 5, 6]
    shares = [float(one["inTime"]) for one in attainment["counts"]]
    assert shares == sorted(shares)
    assert shares[0] == 0.0
    assert 0.9 < shares[-1] <= 0.999
    assert "seconds" not in attainment["counts"][0]
    seconds = [float(one["seconds"]) for one in attainment["counts"] if "seconds" in one]
    assert seconds == sorted(seconds, reverse=True)
    assert len(seconds) >= 3
    for one in attainment["counts"]:
        is_kept = float(one["inTime"]) >= 0.95
        assert is_kept == (float(one.get("seconds", "inf")) <= TTFT.target_seconds)
    assert gather(SEEN, calibration=compared(-0.03))["attainment"] == {"error": "0.03"}
    assert "attainment" not in gather(SEEN, calibration=compared(0.01, TTFT))
    assert "attainment" not in gather(SEEN, policy=replace(POLICY, objectives=()), calibration=compared(0.0))


def test_predictions_are_of_the_objective_that_is_nearest_to_being_missed_and_can_be_met() -> None:
    strict = replace(POLICY, objectives=(TTFT, replace(TPOT, percentile=99)))
    attainment = gather(SEEN, policy=strict, calibration=compared(0.0, *strict.objectives))["attainment"]
    assert isinstance(attainment, dict)
    hopeless = replace(POLICY, objectives=(TTFT, replace(TPOT, target_seconds=0.001)))
    attainment = gather(SEEN, policy=hopeless, calibration=compared(0.0, TTFT))["attainment"]
    assert isinstance(attainment, dict)
    assert attainment["metric"] == "TimeToFirstToken"
    assert float(attainment["counts"][-1]["inTime"]) > 0.9


def test_a_corrected_model_is_corrected_in_its_predictions_too() -> None:
    plain = gather(SEEN, calibration=compared(0.0))["attainment"]
    slower = gather(SEEN, calibration=compared(0.0), correction=1.5)["attainment"]
    assert isinstance(plain, dict)
    assert isinstance(slower, dict)
    at_five = [next(o["inTime"] for o in one["counts"] if o["replicas"] == 5) for one in (plain, slower)]
    assert float(at_five[1]) < float(at_five[0])


def test_what_is_unknown_is_absent_and_never_zero() -> None:
    found = gather(
        Signals(Fleet(desired=3), rejected={"every signal": "Prometheus did not answer within 2 s"}),
        LatencyModel(),
    )
    figures = {"arrivalsPerSecond", "forecastPerSecond", "perReplicaPerSecond", "limit", "running", "waiting"}
    assert not figures & found.keys()
    assert not {"model", "oldestSampleAt"} & found.keys()
    assert found["rejected"] == [{"signal": "every signal", "reason": "Prometheus did not answer within 2 s"}]


def test_a_percentile_of_too_few_requests_is_not_shown() -> None:
    found = gather(replace(SEEN, latencies=(Latency(TTFT, 3.4, 5),)))
    assert found["objectives"][0]["state"] == "Unknown"  # type: ignore[index]
    assert "measuredSeconds" not in found["objectives"][0]  # type: ignore[index]
    assert found["objectives"][0]["samples"] == 5  # type: ignore[index]


def test_an_objective_that_an_idle_replica_misses_is_infeasible() -> None:
    fast = replace(POLICY, objectives=(Objective("TimePerOutputToken", 95, 0.001),))
    assert gather(SEEN, policy=fast)["objectives"][0]["state"] == "Infeasible"  # type: ignore[index]


@pytest.mark.parametrize("value", [math.inf, math.nan, -1.0])
def test_a_figure_that_the_api_server_would_refuse_is_left_out(value: float) -> None:
    """A refused status would hold back the count itself."""
    found = gather(replace(SEEN, running=value, latencies=(Latency(TTFT, value, 100),)))
    assert "running" not in found


def test_long_reasons_are_cut() -> None:
    found = gather(
        Signals(
            Fleet(desired=1), rejected={"x" * 300: "y" * 5000} | {f"s{i}": "no samples" for i in range(99)}
        )
    )
    assert len(found["rejected"]) == 32  # type: ignore[arg-type]


def test_it_says_why_more_is_planned_for_and_what_keeps_the_count_up() -> None:
    spent = {POLICY.objectives[0].name: 64.2}
    memory = Memory(model=FITTED, correction=1.21, flaps=(-20.0, -10.0), spent=spent, settled_since=-100.0)
    decision, after = decide(POLICY, SEEN, memory, 0.0)
    found = gather_evidence(POLICY, decision, SEEN, after, 1000.0)
    assert (found["correction"], found["flaps"]) == ("1.21", 2)
    assert float(found["objectives"][0]["spentSeconds"]) > 60


def test_what_is_shown_to_the_pod_has_the_forecast_by_name() -> None:
    decision, memory = decide(POLICY, SEEN, Memory(model=FITTED), 0.0)
    shown = render_decision(decision, SEEN, memory)["estimate"]
    assert shown["forecast"] == shown["demand"]["expected"] + shown["demand"]["margin"] > shown["rate"] > 0
