"""A model on its way into a claim: what a revision waits for until all of it is there. Pure."""

from millrace_operator.reconcile.cached_model import find_place
from millrace_operator.reconcile.causes import Cause
from millrace_operator.reconcile.claims import judge_claim
from millrace_operator.reconcile.found_model import FoundModel
from millrace_operator.reconcile.jobs import explain_delay, is_complete, list_pods
from millrace_operator.reconcile.pending import Pending, Stage
from millrace_operator.reconcile.render.metadata import fill_name
from millrace_operator.reconcile.snapshot import Fetched, Snapshot
from millrace_operator.resources.conditions import Reason
from millrace_operator.resources.types import Spec


def find_filling(
    snapshot: Snapshot, spec: Spec, revision: str, found: FoundModel, now: float
) -> Pending | None:
    """Return what a model that is known waits for; None where its pods can have it."""
    place = find_place(spec.model, found)
    if place is None:
        return None
    fault = judge_claim(spec, snapshot.claim)
    if fault is not None:
        return Pending(revision, spec.model.uri, Stage.CLAIM, fault, found, place)
    name = fill_name(snapshot.service, revision)
    if is_complete(snapshot, name):
        return None
    told = _find_progress(snapshot, name)
    late = told and _explain_lateness(spec, *told, now)
    return Pending(
        revision,
        spec.model.uri,
        Stage.FILL,
        explain_delay(snapshot, name),
        found,
        place,
        told and told[1],
        late,
    )


def seconds_to_lateness(spec: Spec, pending: Pending, now: float) -> float | None:
    """Return after how many seconds a Job that gets nothing more is late; None where it is, or is silent."""
    if pending.fetched is None or pending.late is not None:
        return None
    return pending.fetched.at + spec.rollout.progress_deadline_seconds - now


def _find_progress(snapshot: Snapshot, name: str) -> tuple[str, Fetched] | None:
    """Return the Job's pod that tells how far it is, and what it tells."""
    names = (pod["metadata"]["name"] for pod in list_pods(snapshot, name))
    return next(((pod, snapshot.fetched[pod]) for pod in names if pod in snapshot.fetched), None)


def _explain_lateness(spec: Spec, pod: str, fetched: Fetched, now: float) -> Cause | None:
    if now < fetched.at + spec.rollout.progress_deadline_seconds:
        return None
    return Cause(
        Reason.DEADLINE_EXCEEDED,
        f"pod {pod} has got nothing more of the model for longer than rollout.progressDeadline "
        f"({spec.rollout.progress_deadline}): raise that, or read the pod's log and delete the pod",
    )
