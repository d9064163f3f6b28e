"""The Jobs of a revision that cannot be made yet: their reports, which Job is needed, and when to look.

The operator calls no address that a tenant chose, and reads no Secret. So a Job in the service's namespace
asks the model's source. The revision's record keeps the answer, so that all replicas get the same model.

The operator asks the source again if no pod can serve the model, or if nobody can read the answer: somebody
may convert the files or move a tag. The answer counts until another one comes. The pauses double with the
time for which the model was not ready, so nobody has to count.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from millrace_operator.api.conditions import Reason, find_condition, parse_time
from millrace_operator.api.model_uri import can_change, is_fetched, is_looked_at
from millrace_operator.api.types import Spec
from millrace_operator.kube.kinds import CONTROLLER_REVISION, JOB, Obj, ObjectId
from millrace_operator.model.claims import find_look
from millrace_operator.model.found_model import FoundModel
from millrace_operator.model.pending_revision import Pending, Stage, seconds_to_lateness
from millrace_operator.observed.job_reports import Jobs
from millrace_operator.observed.pod_status import find_fetcher, find_state
from millrace_operator.observed.snapshot import Snapshot
from millrace_operator.render.child import APPLIED, Child, Need, fill_name, need, revision_name, seal
from millrace_operator.render.jobs import render_fill_job, render_look_job, render_resolve_job
from millrace_operator.render.settings import RenderSettings
from millrace_operator.render.workload import render_service_account
from millrace_operator.status.causes import Cause

FIRST_SECONDS, LAST_SECONDS = 60.0, 3600.0
"""Between the creations of two Jobs: at first, and in the end."""
_QUOTED_LETTERS = 200
_AGAIN = "its source is asked again, ever more slowly and in the end once an hour"
_NOW = f"{_AGAIN}, and at once by {{way}}"
_FINAL = "{uri} never has another content: another model is another address in spec.model.uri"
_LOOK = "once another model is in the claim, write {way}"


def render_jobs(
    settings: RenderSettings, snapshot: Snapshot, spec: Spec, pending: Pending, now: float
) -> list[Child]:
    """Return the needed Job, if any; none that has ended without its work."""
    job = _render_job(settings, snapshot, spec, pending, now)
    if job is None or _is_outdated(snapshot.jobs, job := seal(job), pending):
        return []
    needs = need(render_service_account(snapshot.service))
    if pending.stage is Stage.FILL:  # only the record has the model
        needs += (Need(_find_record(snapshot.service, pending.revision)),)
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
        return None  # the next plan creates it again, once it is gone
    if pending.stage is Stage.LOOK:
        return render_look_job(settings, service, spec, revision)
    if pending.stage is Stage.FILL and pending.found is not None:
        return render_fill_job(settings, service, spec, revision, pending.found)
    is_asked = pending.stage is Stage.RESOLVE or pending.is_asked_again
    return render_resolve_job(settings, service, spec, revision) if is_asked else None


def _is_outdated(jobs: Jobs, job: Obj, pending: Pending) -> bool:
    """Whether the existing Job makes no progress and would be rendered differently now. Then it is replaced.

    So an operator with another image or of a newer version corrects its older Jobs. A working Job stays, and
    so does one that has reported the model, even if somebody else's container in its pod fails.
    """
    name = job["metadata"]["name"]
    if pending.found is not None and jobs.find_report_text(name) is not None:
        return False
    seen = jobs.find(name).get("metadata", {}).get("annotations", {}).get(APPLIED)
    is_another = seen not in (None, job["metadata"]["annotations"][APPLIED])
    return is_another and jobs.explain_delay(name) is not None


def _find_record(service: Obj, revision: str) -> ObjectId:
    return ObjectId(CONTROLLER_REVISION.kind, revision_name(service, revision))


def list_job_looks(snapshot: Snapshot, spec: Spec, pending: Pending | None, now: float) -> Iterator[float]:
    """Yield after how many seconds to look again: at Jobs that ended, stalled or are due, at a claim."""
    look = find_look(spec, snapshot.model.claim)
    if look is not None:
        yield look
    if pending is None:
        return
    left = _seconds_to_loss(snapshot, pending, now)
    if left is not None and left > 0:  # otherwise it is deleted now, and its end is an event
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
    """Return for how long to wait for a Job that has ended; None for any other."""
    is_filling = pending.stage is Stage.FILL
    name = (fill_name if is_filling else revision_name)(snapshot.service, pending.revision)
    has_reported = pending.is_asked_again and snapshot.jobs.find_report_text(name) is not None
    return None if has_reported else snapshot.jobs.seconds_to_loss(name, now)


def list_witnesses(service: Obj, revision: str) -> frozenset[ObjectId]:
    """Return the Jobs that may know a fact which the revision's record still lacks."""
    names = (name(service, revision) for name in (revision_name, fill_name))
    return frozenset(ObjectId(JOB.kind, name) for name in names)


def find_report(jobs: Jobs, job: str, uri: str) -> FoundModel | None:
    """Return what the Job of a revision has reported; None until it has.

    A model in a claim gets no revision from it, and counts only with facts.
    """
    pods = jobs.list_pods(job)
    found = [one for one in map(_read_report, pods) if one is not None]
    if is_fetched(uri):
        return next((one for one in found if one.revision is not None), None)
    return next((replace(one, revision=None) for one in found if one.facts is not None), None)


def _read_report(pod: Obj) -> FoundModel | None:
    ended: dict[str, Any] = find_state(find_fetcher(pod.get("status", {})), "terminated") or {}
    if ended.get("exitCode") != 0:
        return None
    try:
        return FoundModel.read(json.loads(ended.get("message", "")))
    except (ValueError, RecursionError):
        return None


def find_ask_time(jobs: Jobs, service: Obj, pending: Pending) -> float | None:
    """Return when to ask the source again, in seconds since 1970; None if not, or if it is due now."""
    name = revision_name(service, pending.revision)
    made_at = jobs.find_made(name)
    if not pending.is_asked_again or made_at is None or jobs.find_report_text(name) is None:
        return None
    condition = find_condition(service.get("status", {}), "ModelReady") or {}
    since = parse_time(condition.get("lastTransitionTime")) or made_at
    return made_at + min(LAST_SECONDS, max(FIRST_SECONDS, made_at - since))


def explain_unread(jobs: Jobs, job: str) -> Cause | None:
    """Return the cause that this Job's report is unreadable; None without a report."""
    words = jobs.find_report_text(job)
    if words is None:
        return None
    said = words.strip()[:_QUOTED_LETTERS] or "it was empty"
    return Cause(Reason.FETCH_FAILED, f"a Job's report about the model's source can't be read: {said}")


def note_asking(pending: Pending, jobs: Jobs, service: Obj) -> Pending:
    """Return the pending revision, with whether the operator asks the source again, also in words.

    A look at a claim is not repeated without a request: its pod would hold the claim for a while each time.
    """
    job = revision_name(service, pending.revision)
    is_unread = pending.found is None and jobs.find_report_text(job) is not None
    if pending.cause is None or not (is_unread or pending.stage is Stage.NEVER):
        return pending
    if is_unread:
        words = _AGAIN
    elif can_change(pending.uri):
        words = _NOW
    else:
        words = _LOOK if is_looked_at(pending.uri) else _FINAL
    way = "kubectl millrace refresh {name} -n {namespace}".format_map(service["metadata"])
    text = f"{pending.cause.message}; {words.format(uri=pending.uri, way=way)}"
    return replace(pending, cause=Cause(pending.cause.reason, text), is_asked_again=words in (_AGAIN, _NOW))
