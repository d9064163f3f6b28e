"""What a decision rests on, as `status.scaling.evidence` has it: bounded, without what is unknown. Pure."""

from collections.abc import Mapping
from typing import Any

from millrace_operator.autoscale.attainment import predict
from millrace_operator.autoscale.budget import find_burn
from millrace_operator.autoscale.decision import Decision
from millrace_operator.autoscale.latency_model import LatencyModel
from millrace_operator.autoscale.memory import Memory
from millrace_operator.autoscale.observation import Latency, Signals
from millrace_operator.autoscale.policy import Objective, Policy
from millrace_operator.resources.conditions import render_time
from millrace_operator.resources.evidence_limits import (
    NAME_LENGTH,
    NUM_CANDIDATES,
    NUM_REJECTED,
    REASON_LENGTH,
)
from millrace_operator.resources.numbers import render_number

CORRECTED = 1.005
"""A smaller correction is none."""


def gather_evidence(
    policy: Policy, decision: Decision, signals: Signals, memory: Memory, at: float
) -> dict[str, Any]:
    """Return the figures behind a decision. `at` is when the signals were read, in seconds since 1970.

    `memory` is the one that `decide` returned with the decision.
    """
    estimate = decision.estimate
    oldest = min(
        (signals.sampled_at[pod] for pod in signals.reporting if pod in signals.sampled_at), default=None
    )
    return known(
        {
            "observedAt": render_time(at),
            "oldestSampleAt": None if oldest is None else render_time(oldest),
            "arrivalsPerSecond": render_number(signals.arrival_rate),
            "forecastPerSecond": render_number(estimate.forecast),
            "marginPerSecond": render_number(estimate.demand.margin) if estimate.demand else None,
            "correction": render_number(memory.correction) if memory.correction > CORRECTED else None,
            "flaps": len(memory.flaps) or None,
            "generatedTokensPerSecond": render_number(signals.generated_tokens_per_second),
            "perReplicaPerSecond": render_number(estimate.per_replica),
            "limit": estimate.capacity.limit[:NAME_LENGTH] if estimate.capacity else None,
            "running": _whole(signals.running),
            "waiting": _whole(signals.waiting),
            "candidates": [
                {"name": name[:NAME_LENGTH], "replicas": max(0, count)}
                for name, count in decision.candidates.items()
            ][:NUM_CANDIDATES],
            "limits": [limit[:NAME_LENGTH] for limit in decision.limits][:NUM_CANDIDATES],
            "objectives": _show_objectives(policy, decision, signals, memory.spent),
            "attainment": _show_attainment(policy, decision, memory),
            "attainmentError": render_number(memory.calibration.error),
            "model": _show_model(memory.model),
            "rejected": _show_rejected(signals.rejected),
        }
    )


def known(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields without those that are unknown."""
    return {name: value for name, value in fields.items() if value is not None}


def _whole(count: float | None) -> int | None:
    return None if render_number(count) is None or count is None else round(count)


def _show_objectives(
    policy: Policy, decision: Decision, signals: Signals, spent: Mapping[str, float]
) -> list[dict[str, Any]]:
    infeasible = decision.estimate.infeasible
    measured = {latency.objective: latency for latency in signals.latencies}
    return [
        _show_objective(
            objective,
            measured.get(objective),
            spent.get(objective.name),
            is_infeasible=objective.name in infeasible,
        )
        for objective in policy.objectives
    ]


def _show_objective(
    objective: Objective, latency: Latency | None, spent_seconds: float | None, *, is_infeasible: bool
) -> dict[str, Any]:
    is_known = latency is not None and latency.is_known
    state = "Unknown"
    if is_known and latency is not None:
        state = "Missed" if latency.is_missed else "Met"
    return known(
        {
            "metric": objective.metric,
            "percentile": objective.percentile,
            "targetSeconds": render_number(objective.target_seconds),
            "measuredSeconds": render_number(latency.seconds) if latency and is_known else None,
            "samples": _whole(latency.num_samples) if latency else None,
            "burnRate": render_number(find_burn(latency)) if latency and latency.has_samples else None,
            "spentSeconds": render_number(spent_seconds),
            "state": "Infeasible" if is_infeasible else state,
        }
    )


def _show_attainment(policy: Policy, decision: Decision, memory: Memory) -> list[dict[str, Any]] | None:
    """Return the part in time with one replica less, as many, and one more; None while that is not sure."""
    replica, rate = decision.estimate.replica, decision.estimate.rate
    if not memory.calibration.is_true or replica is None or rate is None or not policy.objectives:
        return None
    counts = [count for count in range(decision.desired - 1, decision.desired + 2) if count > 0]
    predicted = {n: predict(replica, policy.objectives, memory.correction * rate, n) for n in counts}
    return [{"replicas": n, "inTime": f"{min(shares.values()):.3f}"} for n, shares in predicted.items()]


def _show_model(model: LatencyModel) -> dict[str, Any] | None:
    if not model.num_samples:
        return None
    return known(
        {
            "alphaSeconds": render_number(model.alpha),
            "betaSecondsPerToken": render_number(model.beta),
            "gammaSecondsPerContextToken": render_number(model.gamma),
            "relativeError": render_number(model.relative_error),
            "samples": round(model.num_samples),
            "fitted": model.is_fitted,
        }
    )


def _show_rejected(rejected: Mapping[str, str]) -> list[dict[str, str]]:
    shown = list(rejected.items())[:NUM_REJECTED]
    return [{"signal": name[:NAME_LENGTH], "reason": reason[:REASON_LENGTH]} for name, reason in shown]
