"""The conditions of a service, those of other files among them. Pure.

The messages of AccessReady name no other service, because a tenant need not know whose service claims the
same name.
"""

from collections.abc import Mapping

from millrace_kubernetes.model_names import Standing
from millrace_operator.api.access_types import SecretRef
from millrace_operator.api.annotations import PIN_ANNOTATION, PinError, find_pin
from millrace_operator.api.conditions import Reason, Truth
from millrace_operator.api.scaling_types import ScalingMode
from millrace_operator.kube.answers import REMOVED_FIELDS
from millrace_operator.kube.kinds import ObjectId
from millrace_operator.observed.pods import Pod, describe_fetch
from millrace_operator.observed.snapshot import Fetched, explain_left_over
from millrace_operator.render.pod_template import served_name
from millrace_operator.scaling.count import describe_pin
from millrace_operator.status.causes import Cause
from millrace_operator.status.inputs import StatusInputs, explain_conflict
from millrace_operator.status.rollout_conditions import (
    count_replicas,
    explain_rollback,
    judge_progressing,
    judge_up_to_date,
)
from millrace_operator.status.scaling_conditions import judge_objectives, judge_scaling

_MAKE_ROOM = (
    "No old replica makes room for the new one: write rollout.strategy: Replace to let one go first, which "
    "with a single replica means that nothing serves until the new one is ready"
)
ACCESS_READY = "AccessReady"
_WHY: Mapping[Standing, str] = {
    Standing.SHARED: "services of other namespaces claim it too",
    Standing.PINNED: "the platform gives it to another service (the chart's gateway.shortNames)",
    Standing.ADDRESS: "it reads as the address of a service in another namespace",
}
_REFUSED = "The gateway refuses all requests until then"


def list_truths(inputs: StatusInputs) -> list[Truth]:
    """Return all conditions, in the order in which status has them."""
    causes = inputs.causes()
    ready, progress = _judge_ready(inputs, causes), judge_progressing(inputs)
    degraded, scaling = _judge_degraded(inputs, inputs.grave_causes()), judge_scaling(inputs)
    truths = [
        ready,
        progress,
        degraded,
        judge_up_to_date(ready, progress, degraded, scaling),
        _judge_model(inputs),
        _judge_access(inputs),
        scaling,
        judge_objectives(inputs),
        _judge_pin(inputs),
        _judge_fields(inputs),
    ]
    return [truth for truth in truths if truth is not None]


def _judge_ready(inputs: StatusInputs, causes: list[Cause]) -> Truth:
    desired, num_ready = inputs.count.desired, inputs.observed.num_ready
    own_name = ObjectId("Service", inputs.snapshot.service["metadata"]["name"])
    if own_name in inputs.names.foreign:
        return Truth("Ready", False, Reason.CONFLICT, explain_conflict(*own_name))
    if inputs.names.left_over:
        return Truth("Ready", False, Reason.STARTING, explain_left_over(inputs.names.left_over))
    if num_ready:
        return Truth("Ready", True, Reason.SERVING, count_replicas(num_ready, desired, "answer"))
    if desired == 0:
        return _describe_rest(inputs)
    waiting = _describe_wait("Ready", inputs, causes)
    if inputs.wake is None:
        return waiting
    return Truth("Ready", True, Reason.WAKING, inputs.wake.describe(waiting.message))


def _describe_rest(inputs: StatusInputs) -> Truth:
    if not inputs.spec.scaling.may_rest:
        return Truth("Ready", False, Reason.SCALED_TO_ZERO, "spec.replicas is 0; write 1 or more to serve")
    idle = inputs.spec.scaling.scale_to_zero_after
    text = f"no request has come for {idle}; the next one starts a replica, and is answered by it"
    return Truth("Ready", True, Reason.SCALED_TO_ZERO, text)


def _describe_wait(condition: str, inputs: StatusInputs, causes: list[Cause]) -> Truth:
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
    return min(pods, key=_rank_by_progress, default=None)


def find_fetched(inputs: StatusInputs) -> Fetched | None:
    """Return the progress of the fetch that status speaks of; None if it is unknown."""
    if inputs.pending:
        return inputs.pending.fetched
    pod = _find_farthest(inputs)
    return None if pod is None else inputs.snapshot.model.fetched.get(pod.name)


def _rank_by_progress(pod: Pod) -> tuple[bool, bool, bool, str]:
    """Sort the pod that has come furthest to the front."""
    return (not pod.is_running, not pod.is_fetching, pod.placed_seconds is None, pod.name)


def _judge_degraded(inputs: StatusInputs, causes: list[Cause]) -> Truth:
    if causes:
        more = f". {_MAKE_ROOM}" if inputs.waits_for_its_owner else ""
        text = (causes[0].message.removesuffix(".") if more else causes[0].message) + more
        return Truth("Degraded", True, causes[0].reason, text)
    if inputs.targets.choice.rejected:
        return Truth("Degraded", True, Reason.ROLLED_BACK, explain_rollback(inputs))
    if inputs.is_late:
        truth = _describe_wait("Degraded", inputs, inputs.causes())
        return Truth("Degraded", True, Reason.DEADLINE_EXCEEDED, truth.message)
    return Truth("Degraded", False, Reason.HEALTHY, "nothing fails")


def _judge_model(inputs: StatusInputs) -> Truth:
    if inputs.targets.choice.rejected:
        return Truth("ModelReady", False, Reason.ROLLED_BACK, explain_rollback(inputs))
    if inputs.targets.known.error:
        return Truth("ModelReady", False, Reason.SETTINGS_INVALID, str(inputs.targets.known.error))
    if inputs.pending:
        return _describe_wait("ModelReady", inputs, [inputs.pending.cause] if inputs.pending.cause else [])
    if inputs.observed.state(inputs.revision).num_ready:
        return Truth("ModelReady", True, Reason.LOADED, f"{inputs.spec.model.uri} is loaded")
    if inputs.count.desired == 0:
        return Truth("ModelReady", None, Reason.SCALED_TO_ZERO, "no replica has the model loaded")
    own = inputs.observed.pods_of(inputs.revision)
    causes = [cause for cause in map(inputs.find_cause, own) if cause] if own else inputs.own_causes()
    return _describe_wait("ModelReady", inputs, causes)


def _judge_access(inputs: StatusInputs) -> Truth:
    """Return whether clients reach the service. Without readable keys none does, whatever its name."""
    needs_keys = inputs.spec.access.needs_keys
    return (_find_fault_of_keys(inputs) if needs_keys else None) or _judge_name(inputs)


def _find_fault_of_keys(inputs: StatusInputs) -> Truth | None:
    """Return why the gateway has no keys of the service's clients; None if it may read them."""
    secret = _find_secret(inputs)
    if secret is None:
        text = (
            "clients need keys, and no Secret with keys is named: write "
            "spec.access.authentication.secretName, or have the platform name one (the chart's "
            f"gateway.access.authentication). {_REFUSED}"
        )
        return Truth(ACCESS_READY, False, Reason.SECRET_NAME_MISSING, text)
    if inputs.settings.access.can_read(secret.namespace):
        return None
    text = (
        f"clients need keys, and the gateway may not read Secret {secret.name} of namespace "
        f"{secret.namespace}: have the platform add {secret.namespace} to the chart's "
        f"gateway.secretNamespaces{_find_other_way(inputs)}. {_REFUSED}"
    )
    return Truth(ACCESS_READY, False, Reason.SECRET_NAMESPACE_NOT_READABLE, text)


def _find_secret(inputs: StatusInputs) -> SecretRef | None:
    return inputs.settings.access.find_secret(inputs.namespace, inputs.spec.access)


def _find_other_way(inputs: StatusInputs) -> str:
    if inputs.settings.access.secret_name is None:
        return ""
    return ", or leave spec.access.authentication.secretName out for the platform's keys"


def _judge_name(inputs: StatusInputs) -> Truth:
    """Return whether the name alone leads to the service. Its address and its full name always do."""
    settings, namespace, own = inputs.settings, inputs.namespace, inputs.name
    name, full = served_name(inputs.snapshot.service, inputs.spec), f"{namespace}/{own}"
    always = f'"{full}", or call {settings.url(namespace, own)}'
    if former := inputs.snapshot.name.former:
        shown = " and ".join(f'"{one}"' for one in former)
        always += f". Replicas still run with the name {shown}, which leads here until they are replaced"
    why = _WHY.get(inputs.snapshot.name.standing)
    if why is not None:
        text = (
            f'the model name "{name}" alone does not lead here: {why}. Clients write "model": {always}. Or '
            "the platform pins the name: the chart's gateway.shortNames"
        )
        return Truth(ACCESS_READY, False, Reason.NAME_SHADOWED, text)
    text = f'clients write "model": "{name}" or {always}'
    if inputs.spec.access.needs_keys:
        text = f"each client shows a key of {_name_secret(inputs)}; {text}"
        return Truth(ACCESS_READY, True, Reason.KEYS_READABLE, text)
    return Truth(ACCESS_READY, True, Reason.NAME_HELD, text)


def _name_secret(inputs: StatusInputs) -> str:
    own = inputs.spec.access.secret_name
    return "the platform's Secret" if own is None else f"Secret {own}"


def _explain_pinning(inputs: StatusInputs) -> str:
    """Return a pin to write, within the bounds. The command computes the time, which would lapse here."""
    most = inputs.spec.scaling.max_replicas
    return f"write for example kubectl millrace pin {inputs.name} {most} --for 2h -n {inputs.namespace}"


def _judge_pin(inputs: StatusInputs) -> Truth | None:
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


def _judge_fields(inputs: StatusInputs) -> Truth | None:
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
