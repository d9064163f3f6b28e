"""The condition ObjectivesMet: of what is measured now, and of the objectives as they are now. Pure."""

from collections.abc import Mapping
from typing import Any

from millrace_operator.api.conditions import Reason, Truth
from millrace_operator.api.quantities import render_number
from millrace_operator.api.status_lines import read_objectives
from millrace_operator.api.types import ScalingMode, Spec
from millrace_operator.observed.snapshot import Advice
from millrace_operator.status.inputs import StatusInputs
from millrace_operator.status.previous_condition import find_former_truth

TYPE = "ObjectivesMet"
_UNDECIDED = Truth(TYPE, None, Reason.STARTING, "no decision has been made yet")
_UNMEASURED = Truth(
    TYPE, None, Reason.STARTING, "nothing has been measured yet for the objectives as they are now"
)


def judge_objectives(inputs: StatusInputs) -> Truth | None:
    """Return the condition; None without objectives."""
    spec, advice = inputs.spec, inputs.snapshot.advice
    if not spec.scaling.objectives:
        return None
    if spec.scaling.mode is ScalingMode.EXTERNAL:
        return Truth(TYPE, None, Reason.EXTERNAL, "in mode External nobody measures")
    if inputs.count.desired == 0:
        return Truth(TYPE, None, Reason.SCALED_TO_ZERO, "there is no replica, so nothing is measured")
    evidence = advice.evidence if advice else _read_former(inputs.old.get("scaling", {}).get("evidence"))
    if not _is_of(spec, evidence):
        return _UNMEASURED
    if advice is None or advice.is_starting:
        return find_former_truth(inputs.old, TYPE) or _UNDECIDED
    return _read(advice)


def _read(advice: Advice) -> Truth:
    if advice.are_objectives_met is None:
        reason = Reason.SIGNALS_MISSING if advice.is_held else Reason.TOO_FEW_REQUESTS
        return Truth(TYPE, None, reason, advice.objectives_message)
    reason = Reason.OBJECTIVES_KEPT if advice.are_objectives_met else Reason.OBJECTIVES_MISSED
    return Truth(TYPE, advice.are_objectives_met, reason, advice.objectives_message)


def _read_former(evidence: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return what status has of the objectives, as an advice tells it; None without any."""
    lines = (evidence or {}).get("latencies")
    return {"objectives": read_objectives(lines)} if lines else None


def _is_of(spec: Spec, evidence: Mapping[str, Any] | None) -> bool:
    """Whether the figures are of the objectives in the spec, as far as they name any."""
    if evidence is None or "objectives" not in evidence:
        return True
    measured = {(one["metric"], one["percentile"], one["targetSeconds"]) for one in evidence["objectives"]}
    asked = {
        (one.metric.value, one.percentile, render_number(one.target_seconds))
        for one in spec.scaling.objectives
    }
    return measured == asked
