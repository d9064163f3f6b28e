"""The status of a service whose spec cannot be read or served. Pure.

The operator does not follow such an edit. So only the conditions that report this have its generation, and
`kubectl wait` for any other condition keeps waiting. Replicas stay, and status reports their state without
the spec.
"""

from typing import Any

from pydantic import ValidationError

from millrace_operator.api.conditions import (
    UNREAD,
    Reason,
    Truth,
    find_condition,
    merge_conditions,
)
from millrace_operator.kube.kinds import Obj
from millrace_operator.observed.revisions import Observed
from millrace_operator.render.settings import UnmadeError
from millrace_operator.status.causes import Cause
from millrace_operator.status.rollout_conditions import TYPE as UP_TO_DATE
from millrace_operator.status.rollout_conditions import count_replicas

Json = dict[str, Any]
_SILENT = Cause(Reason.STARTING, "no replica answers")
_OF_MODELS = "Input should "
_OF_VALIDATORS = "Value error, "


def render_refused_status(service: Obj, observed: Observed, error: ValueError) -> Json:
    """Return the old status, with the error and the state of the replicas."""
    metadata, old, now = service["metadata"], service.get("status", {}), observed.moment.now
    generation = int(metadata.get("generation", 0))
    message = _explain(error)
    truths = [
        Truth("Degraded", True, Reason.SETTINGS_INVALID, message),
        Truth(UP_TO_DATE, False, Reason.SETTINGS_INVALID, message),
    ]
    if "scaling" not in old:  # no revision was ever made, and none will be before another edit
        first = ("Ready", "Progressing")
        truths = [*(Truth(name, False, Reason.SETTINGS_INVALID, message) for name in first), *truths]
    counts = _count(old, observed)
    before = old.get("conditions", [])
    names = {truth.type for truth in truths}
    kept = [one for one in _update_readiness({**old, **counts}, observed, now) if one["type"] not in names]
    conditions = kept + merge_conditions(before, truths, generation, now)
    return {**old, **counts, "observedGeneration": generation, "conditions": conditions}


def _explain(error: ValueError) -> str:
    """Return the error in plain words, with the fields that it concerns."""
    if isinstance(error, UnmadeError):
        return str(error)
    if isinstance(error, ValidationError):
        return f"{UNREAD}: " + "; ".join(
            _describe_field(one["loc"], one["type"], one["msg"])
            for one in error.errors(include_url=False, include_input=False, include_context=False)
        )
    return f"{UNREAD}: {error}"


def _describe_field(place: tuple[int | str, ...], kind: str, words: str) -> str:
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
    if kind == "missing":
        return f"{name} is missing"
    if words.startswith(_OF_MODELS):
        return f"{name} should {words.removeprefix(_OF_MODELS)}"
    return f"{name}: {words.removeprefix(_OF_VALIDATORS)}"


def _count(old: Json, observed: Observed) -> Json:
    """Return the counts of replicas; nothing if no count was ever decided."""
    desired = old.get("scaling", {}).get("desiredReplicas")
    if desired is None:
        return {}
    most = max(desired, old.get("replicas", 0))
    return {"replicas": min(len(observed.pods), most), "readyReplicas": observed.num_ready}


def _update_readiness(status: Json, observed: Observed, now: float) -> list[Json]:
    """Return the old conditions, with whether replicas answer. Their generation is the earlier spec's."""
    truths = {truth.type: truth for truth in _list_seen(status, observed)}
    found = []
    for one in status.get("conditions", []):
        truth = truths.get(one["type"])
        again = (
            [] if truth is None else merge_conditions([one], [truth], one.get("observedGeneration", 0), now)
        )
        found += again or [one]
    return found


def _list_seen(status: Json, observed: Observed) -> list[Truth]:
    """Return the conditions that follow from the replicas alone."""
    desired = status.get("scaling", {}).get("desiredReplicas")
    ready = find_condition(status, "Ready") or {}
    is_newer = ready.get("status") == "True" and ready.get("reason") != Reason.SERVING
    if not desired or ready.get("reason") == Reason.CONFLICT or (observed.num_ready and is_newer):
        return []
    if observed.num_ready:
        return [Truth("Ready", True, Reason.SERVING, count_replicas(observed.num_ready, desired, "answer"))]
    found = next((pod.cause for pod in observed.pods if pod.cause), _SILENT)
    return [Truth(name, False, found.reason, found.message) for name in ("Ready", "ModelReady")]
