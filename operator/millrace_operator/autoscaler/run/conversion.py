"""Converts specs, pods and decisions between the operator and its autoscaler.

A spec becomes a policy, pods become a fleet, and a decision becomes the advice that the planner reads. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from millrace_operator.api.conditions import parse_time
from millrace_operator.api.types import Spec
from millrace_operator.autoscaler.decide.decision import Decision
from millrace_operator.autoscaler.decide.policy import Objective, Policy
from millrace_operator.autoscaler.decide.situation import NODE_SECONDS
from millrace_operator.autoscaler.run.settings import ScalingSettings
from millrace_operator.autoscaler.signals.observation import Fleet, Latency, Signals, Unplaced
from millrace_operator.autoscaler.signals.scrapes import DEFAULT_WINDOWS, Windows
from millrace_operator.kube.kinds import Obj
from millrace_operator.observed.pods import Pod, read_pod
from millrace_operator.observed.snapshot import Advice

SIGNALS_NAMED = 3


def read_policy(spec: Spec, settings: ScalingSettings, windows: Windows = DEFAULT_WINDOWS) -> Policy:
    """Return the autoscaler's policy for a service. Raises ValueError if a target is no duration."""
    return Policy(
        min_replicas=spec.scaling.least,
        max_replicas=spec.scaling.max_replicas,
        objectives=tuple(
            Objective(objective.metric.value, objective.percentile, objective.target_seconds)
            for objective in spec.scaling.objectives
        ),
        tick_seconds=settings.tick_seconds,
        scale_down_window_seconds=settings.scale_down_window_seconds,
        max_sequences=spec.engine.max_sequences,
        windows=windows,
    )


def read_fleet(service: Obj | None, pods: Iterable[Obj], now: float) -> Fleet:
    """Return a service's staying replicas as the API server has them. `now` is in seconds since 1970."""
    staying = [pod for pod in map(read_pod, pods) if pod.is_staying and pod.leaving_since is None]
    return Fleet(
        revisions={pod.name: pod.revision for pod in staying},
        ready=frozenset(pod.name for pod in staying if pod.is_ready),
        cold_starts={pod.name: seconds for pod in staying if (seconds := _find_cold_start(pod)) is not None},
        unplaced={
            pod.name: Unplaced(now - (parse_time(pod.created) or now), pod.unplaced)
            for pod in staying
            if pod.unplaced is not None
        },
        desired=_read_desired(service),
    )


def _find_cold_start(pod: Pod) -> float | None:
    """Return the seconds of a start, without a long wait for room on a node: other pods need not wait so."""
    if pod.start_seconds is None or (pod.placed_seconds or 0.0) < NODE_SECONDS:
        return pod.start_seconds
    return pod.start_seconds - (pod.placed_seconds or 0.0)


def _read_desired(service: Obj | None) -> int | None:
    desired = (service or {}).get("status", {}).get("scaling", {}).get("desiredReplicas")
    return None if desired is None else int(desired)


def list_started(pods: Iterable[Obj]) -> set[str]:
    """Return the pods that are Ready or have a known start."""
    staying = [pod for pod in map(read_pod, pods) if pod.is_staying]
    return {pod.name for pod in staying if pod.is_ready or pod.start_seconds is not None}


def is_at_rest(service: Obj | None) -> bool:
    """Whether a service has no replica, so that a request must wake it."""
    return bool((service or {}).get("status", {}).get("scaling", {}).get("desiredReplicas") == 0)


def render_advice(decision: Decision, signals: Signals, evidence: Mapping[str, Any]) -> Advice:
    """Return the decision as the planner reads it, with the evidence of `gather_evidence`."""
    known = [latency for latency in signals.latencies if latency.is_known]
    missed = sorted(latency.objective.name for latency in known if latency.is_missed)
    return Advice(
        desired=decision.desired,
        reason=str(decision.reason),
        message=decision.message,
        binding=decision.binding,
        is_held=decision.is_held and str(decision.reason) == "SignalsMissing",
        are_objectives_met=not missed if known else None,
        objectives_message=_describe_objectives(known, missed) + _describe_doubts(signals),
        in_flight=signals.in_flight,
        wanted=max(decision.candidates.values(), default=None),
        made_from=signals.fleet.desired,
        evidence=evidence,
        missing=", ".join(f"{name} ({why})" for name, why in list(signals.rejected.items())[:SIGNALS_NAMED]),
    )


def _describe_doubts(signals: Signals) -> str:
    doubts = {x.objective.name: x.doubt for x in signals.latencies if x.doubt}
    doubts |= {name: signals.rejected.get(name, "no answer") for name in signals.unanswered}
    listed = ", ".join(f"{name} ({why})" for name, why in sorted(doubts.items()))
    return f"; not known: {listed}" if listed else ""


def _describe_objectives(known: Sequence[Latency], missed: Sequence[str]) -> str:
    if missed:
        return f"missed at present: {', '.join(missed)}"
    if not known:
        return "too little was measured to judge any"
    return f"kept at present: {', '.join(sorted(latency.objective.name for latency in known))}"
