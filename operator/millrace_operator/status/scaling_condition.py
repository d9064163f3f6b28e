"""The condition ScalingActive: whether the operator decides the count, or why it does not. Pure."""

from millrace_operator.api.conditions import Reason, Truth
from millrace_operator.api.types import ScalingMode
from millrace_operator.observed.snapshot import Advice
from millrace_operator.status.inputs import StatusInputs
from millrace_operator.status.previous_condition import find_former_truth

TYPE = "ScalingActive"


def judge_scaling(inputs: StatusInputs) -> Truth:
    """Return the condition."""
    advice = inputs.snapshot.advice
    if inputs.spec.scaling.mode is ScalingMode.EXTERNAL:
        return Truth(TYPE, True, Reason.EXTERNAL, "the count is spec.replicas, written from outside")
    if inputs.count.desired == 0 and inputs.spec.scaling.may_rest:
        return Truth(TYPE, True, Reason.SCALED_TO_ZERO, "the next request starts a replica")
    if advice is not None and not advice.is_starting:
        return _judge_advice(inputs, advice)
    undecided = Truth(TYPE, None, Reason.STARTING, "no decision has been made yet")
    return find_former_truth(inputs.old, TYPE) or undecided


def _judge_advice(inputs: StatusInputs, advice: Advice) -> Truth:
    scaling = inputs.spec.scaling
    if advice.is_held:
        held, named = inputs.count.desired, advice.missing or "signals"
        text = f"the count is held at {held} and never lowered while this is unknown: {named}"
        return Truth(TYPE, False, Reason.SIGNALS_MISSING, text)
    if scaling.mode is ScalingMode.DRY_RUN:
        return Truth(TYPE, True, Reason.DRY_RUN, "decisions are shown in status, not followed")
    text = f"the operator decides between {scaling.min_replicas} and {scaling.max_replicas} replicas"
    return Truth(TYPE, True, Reason.DECIDING, text)
