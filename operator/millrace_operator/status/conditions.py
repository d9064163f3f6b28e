"""The conditions of a service, those of other files among them. Pure."""

from millrace_operator.api.annotations import PIN_ANNOTATION, PinError, find_pin
from millrace_operator.api.conditions import (
    Reason,
    Truth,
)
from millrace_operator.api.scaling_types import ScalingMode
from millrace_operator.kube.answers import REMOVED_FIELDS
from millrace_operator.observed.pods import Pod, describe_fetch
from millrace_operator.observed.snapshot import Fetched, ObjectId, explain_left_over
from millrace_operator.scaling.count import describe_pin
from millrace_operator.status.access_conditions import judge_access
from millrace_operator.status.causes import Cause
from millrace_operator.status.inputs import StatusInputs, explain_conflict
from millrace_operator.status.rollout_conditions import (
    count_replicas,
    explain_rollback,
    judge_up_to_date,
    progressing,
)
from millrace_operator.status.scaling_conditions import judge_objectives, judge_scaling

_MAKE_ROOM = (
    "No old replica makes room for the new one: write rollout.strategy: Replace to let one go first, which "
    "with a single replica means that nothing serves until the new one is ready"
)


def list_truths(inputs: StatusInputs) -> list[Truth]:
    """Return all conditions, in the order in which status has them."""
    causes = inputs.causes()
    ready, progress = _ready(inputs, causes), progressing(inputs)
    degraded, scaling = _degraded(inputs, inputs.grave_causes()), judge_scaling(inputs)
    truths = [
        ready,
        progress,
        degraded,
        judge_up_to_date(ready, progress, degraded, scaling),
        _model_ready(inputs),
        judge_access(inputs),
        scaling,
        judge_objectives(inputs),
        _pinned(inputs),
        _spec_current(inputs),
    ]
    return [truth for truth in truths if truth is not None]


def _ready(inputs: StatusInputs, causes: list[Cause]) -> Truth:
    desired, num_ready = inputs.count.desired, inputs.observed.num_ready
    own_name = ObjectId("Service", inputs.snapshot.service["metadata"]["name"])
    if own_name in inputs.names.foreign:
        return Truth("Ready", False, Reason.CONFLICT, explain_conflict(*own_name))
    if inputs.names.left_over:
        return Truth("Ready", False, Reason.STARTING, explain_left_over(inputs.names.left_over))
    if num_ready:
        return Truth("Ready", True, Reason.SERVING, count_replicas(num_ready, desired, "answer"))
    if desired == 0:
        return _at_zero(inputs)
    waiting = _waiting("Ready", inputs, causes)
    if inputs.wake is None:
        return waiting
    return Truth("Ready", True, Reason.WAKING, inputs.wake.describe(waiting.message))


def _at_zero(inputs: StatusInputs) -> Truth:
    if not inputs.spec.scaling.may_rest:
        return Truth("Ready", False, Reason.SCALED_TO_ZERO, "spec.replicas is 0; write 1 or more to serve")
    idle = inputs.spec.scaling.scale_to_zero_after
    text = f"no request has come for {idle}; the next one starts a replica, and is answered by it"
    return Truth("Ready", True, Reason.SCALED_TO_ZERO, text)


def _waiting(condition: str, inputs: StatusInputs, causes: list[Cause]) -> Truth:
    if causes:
        return Truth(condition, False, causes[0].reason, causes[0].message)
    if inputs.pending:
        return Truth(condition, False, inputs.pending.reason, inputs.pending.describe())
    pod = _find_farthest(inputs)
    if pod is None:
        return Truth(condition, False, Reason.STARTING, "the replicas' pods are being created")
    if pod.is_running:
        loads = "has loaded the model, and is not Ready yet"
        words = loads if pod.has_started else "is loading the model"
        return Truth(condition, False, Reason.LOADING, f"pod {pod.name} {words}")
    if pod.is_fetching:
        words = describe_fetch(pod, find_fetched(inputs))
        return Truth(condition, False, Reason.FETCHING, words)
    step = "waits for a node" if pod.placed_seconds is None else "has a node; its container is being created"
    return Truth(condition, False, Reason.STARTING, f"pod {pod.name} {step}")


def _find_farthest(inputs: StatusInputs) -> Pod | None:
    """Return the pod of the revision that has come furthest."""
    pods = [pod for pod in inputs.observed.pods_of(inputs.revision) if not pod.is_ready]
    return min(pods, key=_by_progress, default=None)


def find_fetched(inputs: StatusInputs) -> Fetched | None:
    """Return the progress of the fetch that status speaks of; None if it is unknown."""
    if inputs.pending:
        return inputs.pending.fetched
    pod = _find_farthest(inputs)
    return None if pod is None else inputs.snapshot.model.fetched.get(pod.name)


def _by_progress(pod: Pod) -> tuple[bool, bool, bool, str]:
    """Sort the pod that has come furthest to the front."""
    return (not pod.is_running, not pod.is_fetching, pod.placed_seconds is None, pod.name)


def _degraded(inputs: StatusInputs, causes: list[Cause]) -> Truth:
    if causes:
        more = f". {_MAKE_ROOM}" if inputs.waits_for_its_owner else ""
        text = (causes[0].message.removesuffix(".") if more else causes[0].message) + more
        return Truth("Degraded", True, causes[0].reason, text)
    if inputs.targets.choice.rejected:
        return Truth("Degraded", True, Reason.ROLLED_BACK, explain_rollback(inputs))
    if inputs.is_late:
        truth = _waiting("Degraded", inputs, inputs.causes())
        return Truth("Degraded", True, Reason.DEADLINE_EXCEEDED, truth.message)
    return Truth("Degraded", False, Reason.HEALTHY, "nothing fails")


def _model_ready(inputs: StatusInputs) -> Truth:
    if inputs.targets.choice.rejected:
        return Truth("ModelReady", False, Reason.ROLLED_BACK, explain_rollback(inputs))
    if inputs.targets.known.error:
        return Truth("ModelReady", False, Reason.SETTINGS_INVALID, str(inputs.targets.known.error))
    if inputs.pending:
        return _waiting("ModelReady", inputs, [inputs.pending.cause] if inputs.pending.cause else [])
    if inputs.observed.state(inputs.revision).num_ready:
        return Truth("ModelReady", True, Reason.LOADED, f"{inputs.spec.model.uri} is loaded")
    if inputs.count.desired == 0:
        return Truth("ModelReady", None, Reason.SCALED_TO_ZERO, "no replica has the model loaded")
    own = inputs.observed.pods_of(inputs.revision)
    causes = [cause for cause in map(inputs.find_cause, own) if cause] if own else inputs.own_causes()
    return _waiting("ModelReady", inputs, causes)


def _explain_pinning(inputs: StatusInputs) -> str:
    """Return a pin to write, within the bounds. The command computes the time, which would lapse here."""
    most = inputs.spec.scaling.max_replicas
    return f"write for example kubectl millrace pin {inputs.name} {most} --for 2h -n {inputs.namespace}"


def _pinned(inputs: StatusInputs) -> Truth | None:
    """Return whether the annotation millrace.dev/pin holds the count; None without one."""
    try:
        pin = find_pin(inputs.snapshot.service)
    except PinError as error:
        text = f"the annotation {PIN_ANNOTATION} is not obeyed: {error}; {_explain_pinning(inputs)}"
        return Truth("Pinned", False, Reason.PIN_INVALID, text)
    if pin is None:
        return None
    if inputs.spec.scaling.mode is ScalingMode.EXTERNAL:
        text = f"in mode External the annotation {PIN_ANNOTATION} is not obeyed: write spec.replicas"
        return Truth("Pinned", False, Reason.EXTERNAL, text)
    if inputs.now >= pin.until:
        return Truth("Pinned", False, Reason.PIN_LAPSED, f"the pin {pin} has lapsed")
    return Truth("Pinned", True, Reason.PINNED, describe_pin(inputs.spec, pin))


def _spec_current(inputs: StatusInputs) -> Truth | None:
    """Return that the manifest has fields that this version's spec lacks; None if it has none."""
    removed = inputs.snapshot.service["metadata"].get(REMOVED_FIELDS)
    if not removed:
        return None
    is_one = len(removed) == 1
    text = (
        f"{' and '.join(removed)} {'is' if is_one else 'are'} not in this version's schema and "
        f"{'has' if is_one else 'have'} no effect; remove {'it' if is_one else 'them'} from the manifest"
    )
    return Truth("SpecCurrent", False, Reason.FIELDS_REMOVED, text)
