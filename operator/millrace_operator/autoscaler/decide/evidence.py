"""The figures behind a decision: few and bounded for `status.scaling.evidence`, all of them for /decisions.
Pure.
"""

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from typing import Any

from millrace_operator.api.conditions import render_time
from millrace_operator.api.quantities import render_number
from millrace_operator.api.status_lines import NAME_LENGTH, NUM_CANDIDATES, NUM_REJECTED, REASON_LENGTH
from millrace_operator.autoscaler.capacity.latency_model import LatencyModel
from millrace_operator.autoscaler.decide.attainment import LARGEST_ERROR, predict, predict_seconds
from millrace_operator.autoscaler.decide.attempts import Attempts
from millrace_operator.autoscaler.decide.decision import Decision
from millrace_operator.autoscaler.decide.feedback import find_burn
from millrace_operator.autoscaler.decide.memory import Memory
from millrace_operator.autoscaler.decide.policy import Objective, Policy
from millrace_operator.autoscaler.signals.observation import Latency, Signals

CORRECTED = 1.005
"""A smaller correction is not shown."""


def gather_evidence(
    policy: Policy, decision: Decision, signals: Signals, memory: Memory, at: float
) -> dict[str, Any]:
    """Return the figures behind a decision. `at` is the time of the signals, in seconds since 1970.

    `memory` is the one that `decide` returned with the decision.
    """
    estimate = decision.estimate
    oldest = min(
        (signals.sampled_at[pod] for pod in signals.reporting if pod in signals.sampled_at), default=None
    )
    return drop_unknown(
        {
            "observedAt": render_time(at),
            "oldestSampleAt": None if oldest is None else render_time(oldest),
            "arrivalsPerSecond": render_number(signals.arrival_rate),
            "forecastPerSecond": render_number(estimate.forecast),
            "marginPerSecond": render_number(estimate.demand.margin) if estimate.demand else None,
            "correction": render_number(memory.correction) if memory.correction > CORRECTED else None,
            "flaps": len(memory.flaps) or None,
            "futileSteps": _count_futile(decision, memory) or None,
            "promptTokens": render_number(memory.prompt_tokens),
            "generationTokens": render_number(memory.generation_tokens),
            "generatedTokensPerSecond": render_number(signals.generated_tokens_per_second),
            "perReplicaPerSecond": render_number(estimate.per_replica),
            "limit": estimate.capacity.limit[:NAME_LENGTH] if estimate.capacity else None,
            "running": _render_count(signals.running),
            "waiting": _render_count(signals.waiting),
            "candidates": [
                {"name": name[:NAME_LENGTH], "replicas": max(0, count)}
                for name, count in decision.candidates.items()
            ][:NUM_CANDIDATES],
            "limits": [limit[:NAME_LENGTH] for limit in decision.limits][:NUM_CANDIDATES],
            "objectives": _show_objectives(policy, decision, signals, memory.spent),
            "attainment": _show_attainment(policy, decision, signals, memory),
            "model": _show_model(memory.model),
            "rejected": _show_rejected(signals.rejected),
        }
    )


def _count_futile(decision: Decision, memory: Memory) -> int:
    """Return the futile steps in a row: the fewest among the missed objectives."""
    missed = [name for name in decision.estimate.violated if name not in decision.estimate.infeasible]
    return min((memory.attempts.get(name, Attempts()).futile for name in missed), default=0)


def drop_unknown(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields without the unknown ones."""
    return {name: value for name, value in fields.items() if value is not None}


def _render_count(count: float | None) -> int | None:
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
    return drop_unknown(
        {
            "metric": objective.metric,
            "percentile": objective.percentile,
            "targetSeconds": render_number(objective.target_seconds),
            "measuredSeconds": render_number(latency.seconds) if latency and is_known else None,
            "samples": _render_count(latency.num_samples) if latency else None,
            "burnRate": render_number(find_burn(latency)) if latency and latency.has_samples else None,
            "spentSeconds": render_number(spent_seconds),
            "state": "Infeasible" if is_infeasible else state,
        }
    )


def _show_attainment(
    policy: Policy, decision: Decision, signals: Signals, memory: Memory
) -> dict[str, Any] | None:
    """Return the error of predictions, and if it is small, predictions for some counts.

    They are of the objective closest to its target, and of the counts next to the present one and to the
    decided one.
    """
    estimate, error = decision.estimate, decision.prediction_error
    objectives = estimate.list_feasible(policy.objectives)
    if error is None:
        return None
    if error > LARGEST_ERROR or estimate.replica is None or estimate.rate is None or not objectives:
        return {"error": render_number(error)}
    load, about = memory.correction * estimate.rate, (signals.fleet.current, decision.desired)
    counts = sorted({max(count + more, 1) for count in about for more in (-1, 0, 1)})
    predicted = {count: predict(estimate.replica, objectives, load, count) for count in counts}
    found = predicted[max(decision.desired, 1)]
    nearest = min(objectives, key=lambda one: found[one] - one.percentile / 100)
    return {
        "error": render_number(error),
        "metric": nearest.metric,
        "percentile": nearest.percentile,
        "counts": [
            drop_unknown(
                {
                    "replicas": count,
                    "inTime": f"{predicted[count][nearest]:.3f}",
                    "seconds": render_number(predict_seconds(estimate.replica, nearest, load, count)),
                }
            )
            for count in counts
        ],
    }


def _show_model(model: LatencyModel) -> dict[str, Any] | None:
    if not model.num_samples:
        return None
    return drop_unknown(
        {
            "alphaSeconds": render_number(model.alpha),
            "betaSecondsPerToken": render_number(model.beta),
            "gammaSecondsPerContextToken": render_number(model.gamma),
            "relativeError": render_number(model.relative_error),
            "samples": round(model.num_samples),
            "fitted": model.is_fitted,
            "tried": model.is_only_tried or None,
        }
    )


def _show_rejected(rejected: Mapping[str, str]) -> list[dict[str, str]]:
    shown = list(rejected.items())[:NUM_REJECTED]
    return [{"signal": name[:NAME_LENGTH], "reason": reason[:REASON_LENGTH]} for name, reason in shown]


def render_decision(decision: Decision, signals: Signals, memory: Memory) -> dict[str, Any]:
    """Return all that the decision rests on, as JSON-ready values.

    `memory` is the one that `decide` returned with the decision.
    """
    model = memory.model
    shown: dict[str, Any] = _show(
        {
            "desired": decision.desired,
            "reason": str(decision.reason),
            "message": decision.message,
            "binding": decision.binding,
            "candidates": decision.candidates,
            "limits": decision.limits,
            "isHeld": decision.is_held,
            "model": {
                "alphaSeconds": model.alpha,
                "betaSecondsPerToken": model.beta,
                "gammaSecondsPerContextToken": model.gamma,
                "samples": model.num_samples,
                "relativeError": model.relative_error,
                "isFitted": model.is_fitted,
            },
            "estimate": {**_show(decision.estimate), "forecast": decision.estimate.forecast},
            "requestShape": {
                "promptTokens": memory.prompt_tokens,
                "generationTokens": memory.generation_tokens,
                "cachedShare": memory.prefix_hits.share if memory.prefix_hits else None,
                "tokensPerStep": memory.drafts.written_per_step(1.0) if memory.drafts else None,
            },
            "coldStartSeconds": memory.cold_start_seconds,
            "signals": signals,
        }
    )
    return shown


def _show(value: Any) -> Any:
    """Return a value for JSON: a dataclass with camelCase names, a number that is not finite as null."""
    if is_dataclass(value):
        return {_camel(each.name): _show(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _show(each) for key, each in value.items()}
    if isinstance(value, AbstractSet):
        return sorted(value)
    if isinstance(value, (tuple, list)):
        return [_show(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
