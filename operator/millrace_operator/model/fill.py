"""A model on its way into a claim: what a revision waits for until all of it is there. Pure."""

from dataclasses import replace

from millrace_operator.api.conditions import Reason
from millrace_operator.api.types import Spec
from millrace_operator.kube.kinds import CONTROLLER_REVISION
from millrace_operator.model.cached_model import find_place
from millrace_operator.model.claims import judge_claim
from millrace_operator.model.found_model import FoundModel
from millrace_operator.model.pending_revision import Pending, Stage
from millrace_operator.observed.pod_status import read_fetch
from millrace_operator.observed.snapshot import Fetched, ObjectId, Snapshot
from millrace_operator.render.metadata import fill_name, revision_name
from millrace_operator.status.causes import Cause
from millrace_runtime import contract


def find_filling(
    snapshot: Snapshot, spec: Spec, revision: str, found: FoundModel, now: float
) -> Pending | None:
    """Return what a model that is known waits for; None where its pods can have it."""
    place = find_place(spec.model, found)
    if place is None:
        return None
    fault = judge_claim(spec, snapshot.claim)
    if fault is not None:
        return Pending(
            revision=revision, uri=spec.model.uri, stage=Stage.CLAIM, cause=fault, found=found, place=place
        )
    name = fill_name(snapshot.service, revision)
    if spec.model.cache.is_on_nodes or snapshot.jobs.is_complete(name):
        return None
    fetched = _find_progress(snapshot, name)
    pending = Pending(
        revision=revision,
        uri=spec.model.uri,
        stage=Stage.FILL,
        cause=snapshot.jobs.explain_delay(name),
        found=found,
        place=place,
        fetched=fetched,
    )
    return find_lateness(pending, snapshot, spec, name, now)


def find_lateness(pending: Pending, snapshot: Snapshot, spec: Spec, job: str, now: float) -> Pending:
    """Return the same with since when its Job gets no farther, and that this is too long."""
    is_filling = pending.stage is Stage.FILL
    since = snapshot.jobs.find_standstill(job, now) if is_filling else snapshot.jobs.find_made(job)
    pending = replace(pending, since=since)
    is_late = since is not None and now >= since + spec.rollout.progress_deadline_seconds
    return replace(pending, late=_explain_lateness(pending, snapshot, spec, job)) if is_late else pending


def is_begun(snapshot: Snapshot, revision: str) -> bool:
    """Whether a revision was made, or its model is on its way into a claim: no node takes that back."""
    name = revision_name(snapshot.service, revision)
    record = snapshot.owned().get(ObjectId(CONTROLLER_REVISION.kind, name))
    labels = None if record is None else record["metadata"].get("labels", {})
    is_made = labels is not None and labels.get(contract.LABEL_PENDING) != "true"
    return is_made or bool(snapshot.jobs.find(fill_name(snapshot.service, revision)))


def seconds_to_lateness(spec: Spec, pending: Pending, now: float) -> float | None:
    """Return after how many seconds a Job that gets no farther is late; None where it is, or is not there."""
    if pending.since is None or pending.late is not None:
        return None
    return pending.since + spec.rollout.progress_deadline_seconds - now


def _find_progress(snapshot: Snapshot, name: str) -> Fetched | None:
    """Return how far the Job's newest pod is that tells it."""
    names = (pod["metadata"]["name"] for pod in snapshot.jobs.list_working(name))
    return next((snapshot.fetched[pod] for pod in names if pod in snapshot.fetched), None)


def _explain_lateness(pending: Pending, snapshot: Snapshot, spec: Spec, job: str) -> Cause:
    place = f"{job} -n {snapshot.service['metadata']['namespace']}"
    failures = (read_fetch(pod.get("status", {})).failure for pod in snapshot.jobs.list_working(job))
    before = next((f"; it failed before: {failure}" for failure in failures if failure), "")
    return Cause(
        Reason.DEADLINE_EXCEEDED,
        f"Job {job} has got no farther for longer than rollout.progressDeadline "
        f"({spec.rollout.progress_deadline}): {pending.describe()}{before}; see kubectl describe job "
        f"{place}, which says where a quota refuses its pod, and its pod's Events and log",
    )
