"""Renders a decision as the advice that the planner reads. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from millrace_operator.autoscaler.decide.decision import Decision
from millrace_operator.autoscaler.signals.observation import Latency, Signals
from millrace_operator.observed.snapshot import Advice

SIGNALS_NAMED = 3


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
