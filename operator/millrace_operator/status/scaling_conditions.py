"""The conditions of the count: ScalingActive and ObjectivesMet. Pure.

ScalingActive says whether the operator decides the count, or why not. ObjectivesMet compares the objectives
in the spec with the latest measurements.
"""

from collections.abc import Mapping
from typing import Any

from millrace_operator.api.conditions import Reason, Truth, find_condition
from millrace_operator.api.quantities import render_number
from millrace_operator.api.scaling_types import ScalingMode
from millrace_operator.api.status_lines import read_objectives
from millrace_operator.api.types import Spec
from millrace_operator.observed.snapshot import Advice
from millrace_operator.status.inputs import StatusInputs

SCALING_ACTIVE = "ScalingActive"
OBJECTIVES_MET = "ObjectivesMet"
OF_THE_PAST = frozenset({Reason.EXTERNAL, Reason.SCALED_TO_ZERO})
"""Reasons that end with their cause, and not only by a decision."""
_UNDECIDED = Truth(OBJECTIVES_MET, None, Reason.STARTING, "no decision has been made yet")
_UNMEASURED = Truth(
    OBJECTIVES_MET, None, Reason.STARTING, "nothing has been measured yet for the objectives as they are now"
)


def judge_scaling(inputs: StatusInputs) -> Truth:
    """Return the condition ScalingActive."""
    advice = inputs.snapshot.advice
    if inputs.spec.scaling.mode is ScalingMode.EXTERNAL:
        return Truth(
            SCALING_ACTIVE, True, Reason.EXTERNAL, "the count is spec.replicas, written from outside"
        )
    if inputs.count.desired == 0 and inputs.spec.scaling.may_rest:
        return Truth(SCALING_ACTIVE, True, Reason.SCALED_TO_ZERO, "the next request starts a replica")
    if advice is not None and not advice.is_starting:
        return _judge_advice(inputs, advice)
    undecided = Truth(SCALING_ACTIVE, None, Reason.STARTING, "no decision has been made yet")
    return find_previous_truth(inputs.old, SCALING_ACTIVE) or undecided


def _judge_advice(inputs: StatusInputs, advice: Advice) -> Truth:
    scaling = inputs.spec.scaling
    if advice.is_held:
        held, named = inputs.count.desired, advice.missing or "signals"
        text = f"the count is held at {held} and never lowered while this is unknown: {named}"
        return Truth(SCALING_ACTIVE, False, Reason.SIGNALS_MISSING, text)
    if scaling.mode is ScalingMode.DRY_RUN:
        return Truth(SCALING_ACTIVE, True, Reason.DRY_RUN, "decisions are shown in status, not followed")
    text = f"the operator decides between {scaling.min_replicas} and {scaling.max_replicas} replicas"
    return Truth(SCALING_ACTIVE, True, Reason.DECIDING, text)


def judge_objectives(inputs: StatusInputs) -> Truth | None:
    """Return the condition ObjectivesMet; None without objectives."""
    spec, advice = inputs.spec, inputs.snapshot.advice
    if not spec.scaling.objectives:
        return None
    if spec.scaling.mode is ScalingMode.EXTERNAL:
        return Truth(OBJECTIVES_MET, None, Reason.EXTERNAL, "in mode External the operator measures nothing")
    if inputs.count.desired == 0:
        text = "there is no replica, so nothing is measured"
        return Truth(OBJECTIVES_MET, None, Reason.SCALED_TO_ZERO, text)
    evidence = advice.evidence if advice else _read_previous(inputs.old.get("scaling", {}).get("evidence"))
    if not _is_of(spec, evidence):
        return _UNMEASURED
    if advice is None or advice.is_starting:
        return find_previous_truth(inputs.old, OBJECTIVES_MET) or _UNDECIDED
    return _judge_measured(advice)


def _judge_measured(advice: Advice) -> Truth:
    if advice.are_objectives_met is None:
        reason = Reason.SIGNALS_MISSING if advice.is_held else Reason.TOO_FEW_REQUESTS
        return Truth(OBJECTIVES_MET, None, reason, advice.objectives_message)
    reason = Reason.OBJECTIVES_KEPT if advice.are_objectives_met else Reason.OBJECTIVES_MISSED
    return Truth(OBJECTIVES_MET, advice.are_objectives_met, reason, advice.objectives_message)


def _read_previous(evidence: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the objectives in status in the form of an advice; None without any."""
    lines = (evidence or {}).get("latencies")
    return {"objectives": read_objectives(lines)} if lines else None


def _is_of(spec: Spec, evidence: Mapping[str, Any] | None) -> bool:
    """Whether the figures belong to the objectives in the spec, as far as they name any."""
    if evidence is None or "objectives" not in evidence:
        return True
    measured = {(one["metric"], one["percentile"], one["targetSeconds"]) for one in evidence["objectives"]}
    asked = {
        (one.metric.value, one.percentile, render_number(one.target_seconds))
        for one in spec.scaling.objectives
    }
    return measured == asked


def find_previous_truth(old: dict[str, Any], condition: str) -> Truth | None:
    """Return the condition in the old status; None if it is absent, or its reason is over."""
    found = find_condition(old, condition)
    if found is None or found["reason"] in OF_THE_PAST or found["reason"] not in set(Reason):
        return None
    status = {"True": True, "False": False}.get(found["status"])
    return Truth(condition, status, Reason(found["reason"]), found["message"])
