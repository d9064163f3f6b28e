"""The conditions of a rollout: Progressing and UpToDate. Pure.

UpToDate says whether the service has everything that its spec asks for.
"""

from dataclasses import replace

from millrace_operator.api.annotations import ROLLOUT_ANNOTATION, OrderError, find_order
from millrace_operator.api.conditions import Reason, Truth, render_time
from millrace_operator.observed.snapshot import explain_left_over
from millrace_operator.status.inputs import StatusInputs

TYPE = "UpToDate"


def judge_up_to_date(ready: Truth, progressing: Truth, degraded: Truth, scaling: Truth) -> Truth:
    """Return the condition UpToDate: True, or the worst reason against it.

    It follows from other conditions alone, so it changes only with one of them. A service may be Degraded
    while all its replicas serve, because a child is refused or somebody undoes its count. Then UpToDate is
    not True.
    """
    if degraded.status:
        return Truth(TYPE, False, degraded.reason, degraded.message)
    is_at_zero = ready.reason is Reason.SCALED_TO_ZERO
    if ready.reason is Reason.WAKING or not (ready.status or is_at_zero):
        return Truth(TYPE, False, ready.reason, ready.message)
    if progressing.status or progressing.reason is not Reason.SETTLED:
        return Truth(TYPE, False, progressing.reason, progressing.message)
    if scaling.reason is Reason.SIGNALS_MISSING:  # everything requested is there, and people see this word
        return Truth(TYPE, True, scaling.reason, scaling.message)
    settled = ready if is_at_zero else progressing
    return Truth(TYPE, True, settled.reason, settled.message)


def count_replicas(count: int, desired: int, verb: str) -> str:
    """Return how many of the desired replicas do what `verb` says. A rollout may end with more."""
    if count <= desired:
        return f"{count} of {desired} desired replicas {verb}"
    return f"{count} replicas {verb}, and {desired} {'is' if desired == 1 else 'are'} desired"


_REJECTIONS = {
    "DeadlineExceeded": "was not ready in time and was rolled back",
    "CanaryFailed": "failed as a canary and was rolled back",
    "Aborted": "was aborted and rolled back",
}

WAIT_SECONDS = 5.0
"""Status reports no replica that leaves sooner, which saves a write. Meanwhile the plan looks each second."""


def judge_progressing(inputs: StatusInputs) -> Truth:
    """Return the condition Progressing."""
    truth = _wait_for_names(inputs) or _wait_for_revision(inputs) or _judge_progress(inputs)
    return replace(truth, message=truth.message + _explain_order(inputs))


def _wait_for_names(inputs: StatusInputs) -> Truth | None:
    """Return the wait for an earlier service's objects, which have to go first; None if there are none."""
    if not inputs.names.left_over:
        return None
    return Truth("Progressing", True, Reason.STARTING, explain_left_over(inputs.names.left_over))


def _wait_for_revision(inputs: StatusInputs) -> Truth | None:
    """Return the wait for the revision that the spec asks for; None if it is made.

    The condition is True even if somebody has to fix something first. For a client that waits for False, an
    edit that nobody applied would look finished, and a model starts by itself once it has room.
    """
    pending = inputs.pending
    if inputs.targets.known.error is not None:
        return Truth("Progressing", True, Reason.SETTINGS_INVALID, str(inputs.targets.known.error))
    if pending is None:
        return None
    if pending.is_stuck and pending.cause:
        return Truth("Progressing", True, pending.cause.reason, pending.cause.message)
    return Truth("Progressing", True, pending.reason, pending.describe())


def _judge_progress(inputs: StatusInputs) -> Truth:
    state, desired = inputs.observed.state(inputs.revision), inputs.count.desired
    if inputs.is_late:
        text = f"revision {inputs.revision} made no progress for {inputs.spec.rollout.progress_deadline}"
        # Not False, for which people wait: the revision has not been given up, and a pod that recovers ends
        # this.
        return Truth("Progressing", True, Reason.DEADLINE_EXCEEDED, text)
    if inputs.rollout():
        return _judge_rollout(inputs)
    evacuation = inputs.targets.evacuation
    if evacuation.pods:
        text = (
            evacuation.describe()
            + (_describe_homeless(inputs) or _describe_coming(inputs))
            + _describe_leaving(inputs)
        )
        return Truth("Progressing", True, Reason.REPLACING, text)
    if state.num_ready != desired or len(inputs.observed.pods) != desired:
        text = count_replicas(state.num_ready, desired, "are ready")
        return Truth(
            "Progressing", True, Reason.SCALING, text + _describe_homeless(inputs) + _describe_leaving(inputs)
        )
    if inputs.targets.choice.rejected:
        text = f"revision {inputs.revision} serves, because {inputs.targets.choice.asked} was given up"
        return Truth("Progressing", False, Reason.ROLLED_BACK, text)
    return Truth("Progressing", False, Reason.SETTLED, f"{desired} of {desired} desired replicas are ready")


def _describe_homeless(inputs: StatusInputs) -> str:
    """Return the first pod that waits for room, in words after a semicolon; empty without one."""
    pods = sorted(inputs.observed.pods, key=lambda pod: pod.name)
    causes = (inputs.find_cause(pod) for pod in pods if pod.unplaced is not None)
    return next((f"; {cause.message}" for cause in causes if cause), "")


def _describe_coming(inputs: StatusInputs) -> str:
    """Return the pod that replaces one on a node that is being emptied; empty without one."""
    nodes = inputs.targets.evacuation.departures or {}
    names = [pod.name for pod in inputs.observed.pods if not (pod.is_ready or pod.leaves_with(nodes))]
    return f"; pod {min(names)} takes its place once it is Ready" if names else ""


def _describe_leaving(inputs: StatusInputs) -> str:
    """Return which replica finishes its requests and leaves, and by when; empty for a quick end."""
    leaving = {pod.name: pod.leaving_since for pod in inputs.observed.pods if pod.leaving_since is not None}
    if not leaving or inputs.now < min(leaving.values()) + WAIT_SECONDS:
        return ""
    first = min(leaving)
    ends_by = render_time(leaving[first] + inputs.spec.pod.grace_seconds)
    others = f", and {len(leaving) - 1} more" if len(leaving) > 1 else ""
    return f"; pod {first} finishes its requests and goes by {ends_by}{others}"


def _judge_rollout(inputs: StatusInputs) -> Truth:
    revision, desired, canary = inputs.revision, inputs.count.desired, inputs.targets.progress.canary
    num_ready = inputs.observed.state(revision).num_ready
    if canary is None or not canary.is_serving:
        most = desired if canary is None or canary.most is None else canary.most
        text = f"revision {revision} has {num_ready} of {most} replicas ready"
        text += "" if canary is None or canary.most is None else " as a canary"
        return Truth("Progressing", True, Reason.ROLLING_OUT, text + _describe_homeless(inputs))
    text = f"{num_ready} of {canary.replicas} replicas of revision {revision} serve as a canary"
    if len(inputs.targets.step.counts) > 1:
        text += f" beside revision {inputs.current_revision}"
    if canary.ends_at is not None:
        text += f" until {render_time(canary.ends_at)}; then it is promoted"
        return Truth("Progressing", True, Reason.CANARY, text)
    text += f"; to go on write kubectl millrace promote {inputs.place}"
    text += f", to give it up kubectl millrace abort {inputs.place}"
    return Truth("Progressing", True, Reason.AWAITING_PROMOTION, text)


def _explain_order(inputs: StatusInputs) -> str:
    """Return the error of a rollout's annotation; empty if it can be read."""
    try:
        find_order(inputs.snapshot.service)
    except OrderError as error:
        return f"; the annotation {ROLLOUT_ANNOTATION} is not obeyed: {error}"
    return ""


def explain_rollback(inputs: StatusInputs) -> str:
    """Return which revision was given up, and why."""
    rejected = inputs.targets.choice.rejected or {}
    words = f": {rejected['message']}" if rejected.get("message") else ""
    what = _REJECTIONS.get(rejected.get("reason", ""), _REJECTIONS["DeadlineExceeded"])
    asked = inputs.targets.choice.asked
    return (
        f"revision {asked} {what} to {inputs.revision}{words}. It is not tried again until the "
        f"spec changes, or somebody writes kubectl millrace promote {inputs.place}"
    )
