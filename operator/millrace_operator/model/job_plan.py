"""Which Jobs a revision needs that cannot be made yet, and when to look at them. Pure."""

from collections.abc import Iterator

from millrace_operator.api.model_uri import is_fetched
from millrace_operator.api.types import Spec
from millrace_operator.kube.kinds import CONTROLLER_REVISION, JOB, Obj
from millrace_operator.model.claims import find_look
from millrace_operator.model.fill import seconds_to_lateness
from millrace_operator.model.pending_revision import Pending, Stage
from millrace_operator.model.retry import find_ask_time
from millrace_operator.observed.drift import APPLIED, seal
from millrace_operator.observed.snapshot import ObjectId, Snapshot
from millrace_operator.render.apply_order import Child, Need, need
from millrace_operator.render.fill_job import render_fill_job
from millrace_operator.render.metadata import fill_name, render_service_account, revision_name
from millrace_operator.render.resolve_job import render_look_job, render_resolve_job
from millrace_operator.render.settings import RenderSettings


def render_jobs(
    settings: RenderSettings, snapshot: Snapshot, spec: Spec, pending: Pending, now: float
) -> list[Child]:
    """Return the Job that is waited for, if any; none that has ended and not done its work."""
    job = _render_job(settings, snapshot, spec, pending, now)
    if job is None or _is_outdated(snapshot, job := seal(job), pending):
        return []
    needs = need(render_service_account(snapshot.service))
    if pending.stage is Stage.FILL:  # the record alone knows which model it is
        needs += (Need(_find_record(snapshot, pending.revision)),)
    return [Child(job, needs, is_optional=not is_fetched(pending.uri))]


def _render_job(
    settings: RenderSettings, snapshot: Snapshot, spec: Spec, pending: Pending, now: float
) -> Obj | None:
    service, revision = snapshot.service, pending.revision
    left, asks_at = (
        _seconds_to_loss(snapshot, pending, now),
        find_ask_time(snapshot.jobs, snapshot.service, pending),
    )
    if (left is not None and left <= 0) or (asks_at is not None and asks_at <= now):
        return None  # it is made anew once it is gone
    if pending.stage is Stage.LOOK:
        return render_look_job(settings, service, spec, revision)
    if pending.stage is Stage.FILL and pending.found is not None:
        return render_fill_job(settings, service, spec, revision, pending.found)
    is_asked = pending.stage is Stage.RESOLVE or pending.is_asked_again
    return render_resolve_job(settings, service, spec, revision) if is_asked else None


def _is_outdated(snapshot: Snapshot, job: Obj, pending: Pending) -> bool:
    """Whether the Job that is there does not get on, and would be made otherwise now: then it is made anew.

    An operator with another image, or of a newer version, mends what it made before. What works stays, and so
    does what has told of the model already, whatever a container of others in its pod comes to.
    """
    name = job["metadata"]["name"]
    if pending.found is not None and snapshot.jobs.find_words(name) is not None:
        return False
    seen = snapshot.jobs.find(name).get("metadata", {}).get("annotations", {}).get(APPLIED)
    is_another = seen not in (None, job["metadata"]["annotations"][APPLIED])
    return is_another and snapshot.jobs.explain_delay(name) is not None


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
    asks_at = find_ask_time(snapshot.jobs, snapshot.service, pending)
    if asks_at is not None and asks_at > now:
        yield asks_at - now + 1
    if pending.until is not None:
        yield pending.until - now + 1
    late = seconds_to_lateness(spec, pending, now)
    if late is not None:
        yield late + 1


def _seconds_to_loss(snapshot: Snapshot, pending: Pending, now: float) -> float | None:
    """Return for how long to wait for the Job that works now, where it has ended; None of any other."""
    is_filling = pending.stage is Stage.FILL
    name = (fill_name if is_filling else revision_name)(snapshot.service, pending.revision)
    has_told = pending.is_asked_again and snapshot.jobs.find_words(name) is not None
    return None if has_told else snapshot.jobs.seconds_to_loss(name, now)


def list_witnesses(snapshot: Snapshot, revision: str) -> frozenset[ObjectId]:
    """Return the Jobs that alone know something of a revision that its record is to have."""
    names = (name(snapshot.service, revision) for name in (revision_name, fill_name))
    return frozenset(ObjectId(JOB.kind, name) for name in names)


def _find_record(snapshot: Snapshot, revision: str) -> ObjectId:
    return ObjectId(CONTROLLER_REVISION.kind, revision_name(snapshot.service, revision))
