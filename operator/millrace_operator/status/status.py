"""The whole status of a service, from what is observed. Pure. No text in it changes by time alone."""

from typing import Any

from millrace_fit.facts import ModelFacts
from millrace_fit.verdict import Answer
from millrace_operator.api.annotations.pin import ANNOTATION, PinError, find_pin
from millrace_operator.api.conditions import (
    Reason,
    Truth,
    find_condition,
    merge_conditions,
    render_time,
)
from millrace_operator.api.types import ScalingMode
from millrace_operator.model.fit import judge_fit
from millrace_operator.model.found_model import FoundModel
from millrace_operator.observed.pods import Pod, describe_fetch
from millrace_operator.observed.previous_owner import explain_left_over
from millrace_operator.observed.snapshot import Fetched, ObjectId
from millrace_operator.render.metadata import replica_labels
from millrace_operator.render.pod_template import served_name
from millrace_operator.rollout.revision import Revision
from millrace_operator.scaling.count import describe_pin
from millrace_operator.status.access import judge_access
from millrace_operator.status.causes import Cause
from millrace_operator.status.inputs import StatusInputs, explain_conflict
from millrace_operator.status.objectives import judge_objectives
from millrace_operator.status.replica_device import choose_replica
from millrace_operator.status.rollout_conditions import (
    count_replicas,
    explain_rollback,
    judge_up_to_date,
    progressing,
)
from millrace_operator.status.scaling_status import judge_scaling

_MAKE_ROOM = (
    "No old replica makes room for the new one: write rollout.strategy: Replace to let one go first, which "
    "with a single replica means that nothing serves until the new one is ready"
)


def render_status(inputs: StatusInputs) -> dict[str, Any]:
    """Return the status to write."""
    metadata = inputs.snapshot.service["metadata"]
    generation = int(metadata.get("generation", 0))
    rollout, truths = inputs.rollout(), _truths(inputs)
    status = {
        "observedGeneration": generation,
        "conditions": merge_conditions(inputs.old.get("conditions", []), truths, generation, inputs.now),
        "replicas": _count_replicas(inputs, is_rolling_out=rollout is not None),
        "readyReplicas": inputs.observed.num_ready,
        "selector": ",".join(
            f"{key}={value}" for key, value in replica_labels(inputs.snapshot.service).items()
        ),
        "url": inputs.settings.url(metadata["namespace"], metadata["name"]),
        "currentRevision": inputs.current_revision,
        "updateRevision": inputs.pending.name if inputs.pending else inputs.choice.asked,
        "rejectedRevision": inputs.choice.rejected,
        "spentOrder": inputs.spent_order,
        "model": _describe_model(inputs, truths),
        "rollout": rollout,
        "replacement": _describe_replacement(inputs),
    }
    return {key: value for key, value in status.items() if value is not None}


def _count_replicas(inputs: StatusInputs, *, is_rolling_out: bool) -> int:
    """Return `status.replicas`: without the extra one of a rollout or a replacement, which an HPA would copy.

    So it never rises above the desired count. Above that it can only fall, as replicas go one by one.
    """
    num_pods, desired = len(inputs.observed.pods), inputs.count.desired
    return min(num_pods, desired if is_rolling_out else max(desired, inputs.old.get("replicas", 0)))


def _describe_replacement(inputs: StatusInputs) -> dict[str, Any] | None:
    return {"startedAt": render_time(inputs.evacuation.since)} if inputs.evacuation.pods else None


def _describe_model(inputs: StatusInputs, truths: list[Truth]) -> dict[str, Any]:
    """Return `status.model`. What is known of a replica is of the revision that serves, and goes with it."""
    old = inputs.old
    revision = inputs.current_revision or inputs.revision
    is_same = revision == (old.get("currentRevision") or old.get("updateRevision"))
    before = old.get("model", {}) if is_same else {}
    names = [pod.name for pod in inputs.observed.pods_of(revision)]
    replica = choose_replica(before, (one for name in names if (one := inputs.snapshot.replicas.get(name))))
    fetched = _find_fetched(inputs) if _is_fetching(truths) else None
    model = {
        **_describe_source(inputs),
        "fetched": fetched and fetched.summarize(),
        **replica,
    }
    return {field: value for field, value in model.items() if value is not None}


def _is_fetching(truths: list[Truth]) -> bool:
    """Whether ModelReady says that the model is being fetched."""
    return any(truth.type == "ModelReady" and truth.reason is Reason.FETCHING for truth in truths)


def _describe_source(inputs: StatusInputs) -> dict[str, Any]:
    """Return the model that the revision to run has, which need not be the one in the spec."""
    recorded = inputs.target.inputs.get("model")
    if inputs.runs_another and recorded is not None:
        name, found = recorded.get("servedName", inputs.name), inputs.target.model
        told = {"servedName": name, "uri": recorded["uri"], **_describe_found(found)}
        return {**told, "cache": _describe_cache(inputs.target)}
    name = served_name(inputs.snapshot.service, inputs.spec)
    told = {"servedName": name, "uri": inputs.spec.model.uri, **_describe_found(inputs.model)}
    told["cache"] = None if inputs.pending else _describe_cache(inputs.target)
    facts = inputs.model and inputs.model.facts
    return {**told, **_describe_fit(inputs, facts)} if facts else told


def _describe_fit(inputs: StatusInputs, facts: ModelFacts) -> dict[str, Any]:
    """Return whether the model fits. What nodes tell of a revision that was made is told once.

    It changes nothing any more, and a status that followed each node would be written with each that goes.
    """
    fit, before = judge_fit(inputs.spec, facts), inputs.old.get("model", {})
    if fit.verdict.answer is not Answer.UNKNOWN:
        return fit.render()
    if inputs.is_judged and before.get("fit", Answer.UNKNOWN) != Answer.UNKNOWN:
        return fit.render() | {field: before[field] for field in ("fit", "fitMessage") if field in before}
    return judge_fit(inputs.spec, facts, inputs.snapshot.gpu_nodes.values()).render()


def _describe_found(found: FoundModel | None) -> dict[str, Any]:
    return {} if found is None else {"resolvedRevision": found.revision, "sizeBytes": found.num_bytes}


def _describe_cache(revision: Revision) -> dict[str, Any] | None:
    return None if revision.cached is None else revision.cached.render()


def describe_status(status: dict[str, Any]) -> str:
    """Return the gravest reason and the counts, for the log. A spec that was never read has no counts."""
    degraded, ready = (find_condition(status, name) or {} for name in ("Degraded", "Ready"))
    reason = degraded.get("reason") if degraded.get("status") == "True" else ready.get("reason")
    desired = status.get("scaling", {}).get("desiredReplicas")
    if desired is None:
        return str(reason)
    return f"{reason}, {count_replicas(status.get('readyReplicas', 0), desired, 'ready')}"


def _truths(inputs: StatusInputs) -> list[Truth]:
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
    ]
    return [truth for truth in truths if truth is not None]


def _ready(inputs: StatusInputs, causes: list[Cause]) -> Truth:
    desired, num_ready = inputs.count.desired, inputs.observed.num_ready
    own_name = ObjectId("Service", inputs.snapshot.service["metadata"]["name"])
    if own_name in inputs.foreign:
        return Truth("Ready", False, Reason.CONFLICT, explain_conflict(*own_name))
    if inputs.left_over:
        return Truth("Ready", False, Reason.STARTING, explain_left_over(inputs.left_over))
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
        words = describe_fetch(pod, _find_fetched(inputs))
        return Truth(condition, False, Reason.FETCHING, words)
    step = "waits for a node" if pod.placed_seconds is None else "has a node; its container is being created"
    return Truth(condition, False, Reason.STARTING, f"pod {pod.name} {step}")


def _find_farthest(inputs: StatusInputs) -> Pod | None:
    """Return the pod of the revision that is farthest on its way."""
    pods = [pod for pod in inputs.observed.pods_of(inputs.revision) if not pod.is_ready]
    return min(pods, key=_by_progress, default=None)


def _find_fetched(inputs: StatusInputs) -> Fetched | None:
    """Return how far the fetch is that is told of; None where nobody has said it."""
    if inputs.pending:
        return inputs.pending.fetched
    pod = _find_farthest(inputs)
    return None if pod is None else inputs.snapshot.fetched.get(pod.name)


def _by_progress(pod: Pod) -> tuple[bool, bool, bool, str]:
    """Sort the pod that is farthest on its way to the front."""
    return (not pod.is_running, not pod.is_fetching, pod.placed_seconds is None, pod.name)


def _degraded(inputs: StatusInputs, causes: list[Cause]) -> Truth:
    if causes:
        more = f". {_MAKE_ROOM}" if inputs.waits_for_its_owner else ""
        text = (causes[0].message.removesuffix(".") if more else causes[0].message) + more
        return Truth("Degraded", True, causes[0].reason, text)
    if inputs.choice.rejected:
        return Truth("Degraded", True, Reason.ROLLED_BACK, explain_rollback(inputs))
    if inputs.is_late:
        truth = _waiting("Degraded", inputs, inputs.causes())
        return Truth("Degraded", True, Reason.DEADLINE_EXCEEDED, truth.message)
    return Truth("Degraded", False, Reason.HEALTHY, "nothing fails")


def _model_ready(inputs: StatusInputs) -> Truth:
    if inputs.choice.rejected:
        return Truth("ModelReady", False, Reason.ROLLED_BACK, explain_rollback(inputs))
    if inputs.unserved:
        return Truth("ModelReady", False, Reason.SETTINGS_INVALID, str(inputs.unserved))
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
    """Return a pin to write, within the bounds. The command computes the time: one written here lapses."""
    most = inputs.spec.scaling.max_replicas
    return f"write for example kubectl millrace pin {inputs.name} {most} --for 2h -n {inputs.namespace}"


def _pinned(inputs: StatusInputs) -> Truth | None:
    """Whether the annotation millrace.dev/pin holds the count; None without one."""
    try:
        pin = find_pin(inputs.snapshot.service)
    except PinError as error:
        text = f"the annotation {ANNOTATION} is not obeyed: {error}; {_explain_pinning(inputs)}"
        return Truth("Pinned", False, Reason.PIN_INVALID, text)
    if pin is None:
        return None
    if inputs.spec.scaling.mode is ScalingMode.EXTERNAL:
        text = f"in mode External the annotation {ANNOTATION} is not obeyed: write spec.replicas"
        return Truth("Pinned", False, Reason.EXTERNAL, text)
    if inputs.now >= pin.until:
        return Truth("Pinned", False, Reason.PIN_LAPSED, f"the pin {pin} has lapsed")
    return Truth("Pinned", True, Reason.PINNED, describe_pin(inputs.spec, pin))
