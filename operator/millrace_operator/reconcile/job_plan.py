"""Which Jobs a revision needs that cannot be made yet, and when to look at them. Pure."""

from collections.abc import Iterator

from millrace_operator.cluster.kinds import CONTROLLER_REVISION, JOB, Obj
from millrace_operator.reconcile.asking import choose_askers, find_ask_time, find_working
from millrace_operator.reconcile.claims import find_look
from millrace_operator.reconcile.drift import APPLIED, seal
from millrace_operator.reconcile.filling import seconds_to_lateness
from millrace_operator.reconcile.jobs import explain_delay, find_job, find_words, seconds_to_loss
from millrace_operator.reconcile.pending import Pending, Stage
from millrace_operator.reconcile.render.fill_job import render_fill_job
from millrace_operator.reconcile.render.metadata import (
    again_name,
    fill_name,
    revision_name,
    told_name,
)
from millrace_operator.reconcile.render.network import render_service_account
from millrace_operator.reconcile.render.resolve_job import (
    render_look_job,
    render_resolve_job,
    render_told_job,
)
from millrace_operator.reconcile.render.settings import RenderSettings
from millrace_operator.reconcile.resolution import find_kept
from millrace_operator.reconcile.snapshot import ObjectId, Snapshot
from millrace_operator.reconcile.steps import Child, need
from millrace_operator.resources.model_uri import is_fetched
from millrace_operator.resources.types import Spec

_NAMES = {
    Stage.LOOK: revision_name,
    Stage.FILL: fill_name,
}
"""Of the Job that works, by what is waited for."""


def render_jobs(
    settings: RenderSettings, snapshot: Snapshot, spec: Spec, pending: Pending, now: float
) -> list[Child]:
    """Return the Jobs that are waited for, without one that has ended and not done its work."""
    account = need(render_service_account(snapshot.service))
    return [
        Child(job, account, is_optional=not is_fetched(pending.uri))
        for job in map(seal, _render_jobs_of(settings, snapshot, spec, pending, now))
        if not _is_outdated(snapshot, job, pending)
    ]


def _render_jobs_of(
    settings: RenderSettings, snapshot: Snapshot, spec: Spec, pending: Pending, now: float
) -> Iterator[Obj]:
    service, revision = snapshot.service, pending.revision
    left = _seconds_to_loss(snapshot, pending, now)
    is_lost = left is not None and left <= 0
    if not is_fetched(pending.uri):
        yield from _render_look_jobs(settings, snapshot, spec, pending, is_lost=is_lost)
    else:
        for asker in choose_askers(snapshot, pending, now):
            yield render_resolve_job(settings, service, spec, revision, asker=asker)
    if pending.stage is Stage.FILL and pending.found is not None and not is_lost:
        yield render_fill_job(settings, service, spec, revision, pending.found)


def _render_look_jobs(
    settings: RenderSettings, snapshot: Snapshot, spec: Spec, pending: Pending, *, is_lost: bool
) -> Iterator[Obj]:
    """Yield the Job that looks at a model in its claim, until another one keeps that no pod can serve it."""
    service, revision = snapshot.service, pending.revision
    if not is_lost and find_kept(snapshot, revision) is None:
        yield render_look_job(settings, service, spec, revision)
    if pending.found is not None:
        keeper = render_told_job(settings, service, spec, revision, pending.found)
        if not snapshot.find_foreign([keeper]):
            yield keeper


def _is_outdated(snapshot: Snapshot, job: Obj, pending: Pending) -> bool:
    """Whether the Job that is there does not get on, and would be made otherwise now: then it is made anew.

    An operator with another image, or of a newer version, mends what it made before. What works stays, and so
    does what has told of the model already, whatever a container of others in its pod comes to.
    """
    name = job["metadata"]["name"]
    if pending.found is not None and find_words(snapshot, name) is not None:
        return False
    seen = find_job(snapshot, name).get("metadata", {}).get("annotations", {}).get(APPLIED)
    return seen not in (None, job["metadata"]["annotations"][APPLIED]) and bool(explain_delay(snapshot, name))


def list_job_looks(snapshot: Snapshot, spec: Spec, pending: Pending | None, now: float) -> Iterator[float]:
    """Yield after how many seconds to look again: at Jobs that ended, stand still or are due, at a claim."""
    look = find_look(spec, snapshot.claim)
    if look is not None:
        yield look
    if pending is None:
        return
    left = _seconds_to_loss(snapshot, pending, now)
    if left is not None and left > 0:  # else it is deleted now, and its end is an event
        yield left + 1
    asks_at = find_ask_time(snapshot, pending)
    if asks_at is not None and asks_at > now:
        yield asks_at - now + 1
    if pending.until is not None:
        yield pending.until - now + 1
    late = seconds_to_lateness(spec, pending, now)
    if late is not None:
        yield late + 1


def _seconds_to_loss(snapshot: Snapshot, pending: Pending, now: float) -> float | None:
    """Return for how long to wait for the Job that works now, where it has ended; None of any other."""
    name = _find_working(snapshot, pending)
    return None if name is None else seconds_to_loss(snapshot, name, now)


def _find_working(snapshot: Snapshot, pending: Pending) -> str | None:
    """Return the name of the Job that works now; None where there is none, or it has done its work."""
    if pending.stage is Stage.RESOLVE or pending.is_asked_again:
        return find_working(snapshot, pending)
    name = _NAMES.get(pending.stage)
    return None if name is None else name(snapshot.service, pending.revision)


def list_witnesses(snapshot: Snapshot, revision: str) -> frozenset[ObjectId]:
    """Return the Jobs that alone know a revision's model, until its record is written."""
    service = snapshot.service
    if ObjectId(CONTROLLER_REVISION.kind, revision_name(service, revision)) in snapshot.owned():
        return frozenset()
    names = (name(service, revision) for name in (revision_name, again_name, fill_name, told_name))
    return frozenset(ObjectId(JOB.kind, name) for name in names)
