"""What is rolled out of a branch that is followed, and when its source is asked again. Pure.

What the source said last is in status alone. Without it the service stays with what it has, and the source is
asked anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from millrace_operator.cluster.kinds import JOB
from millrace_operator.reconcile.asking import explain_unread
from millrace_operator.reconcile.causes import Cause, explain_refusal
from millrace_operator.reconcile.family import Asked, Family, Followed
from millrace_operator.reconcile.filling import find_lateness
from millrace_operator.reconcile.found_model import FoundModel
from millrace_operator.reconcile.jobs import explain_delay, find_job
from millrace_operator.reconcile.pending import Pending, Stage
from millrace_operator.reconcile.render.metadata import follow_name
from millrace_operator.reconcile.render.model_source import is_fetched
from millrace_operator.reconcile.resolution import find_told
from millrace_operator.reconcile.revision import Revision, revision_inputs
from millrace_operator.reconcile.snapshot import ObjectId, Snapshot
from millrace_operator.resources.ask_times import find_next_ask
from millrace_operator.resources.conditions import parse_time, render_time
from millrace_operator.resources.model_types import Model
from millrace_operator.resources.status_types import MOST_LETTERS
from millrace_operator.resources.types import Spec


@dataclass(frozen=True)
class Following:
    """A branch that is followed."""

    followed: Followed | None = None
    ask: Pending | None = None
    """The Job that is to ask now; None while none is."""
    due_at: float | None = None
    """When to ask next, in seconds since 1970; None where something else comes first."""

    def render(self, old: Mapping[str, Any]) -> dict[str, Any]:
        """Return `status.model.followed`.

        What kept a Job from an answer is told until there is one: between two tries nothing is wrong for a
        moment, and while the service rests nobody tries.
        """
        told = {} if self.followed is None else self.followed.render()
        cause = self.ask and (self.ask.late or self.ask.cause)
        has_answer = any(old.get(field) != told.get(field) for field in ("revision", "askedAt"))
        before = None if has_answer else old.get("message")
        message = cause.message[:MOST_LETTERS] if cause else before
        return told if message is None else {**told, "message": message}


def find_asked(snapshot: Snapshot, spec: Spec, revisions: Mapping[str, Revision], now: float) -> Asked:
    """Return the revision that the spec asks for: the one of its family that has what the branch has.

    Where no branch is followed it stays the one that it was.
    """
    status: dict[str, Any] = snapshot.service.get("status", {})
    first, followed = revision_inputs(spec), _find_followed(status, spec)
    family = Family.find(first, revisions, followed)
    if not family.members:
        return Asked(family.first, first, followed if family.is_last(status, followed) else None)
    is_followed = _is_followed(spec.model)
    kept = family.choose_kept(snapshot, is_followed=is_followed)
    if not is_followed:
        return family.name(kept)
    followed = followed if family.is_last(status, followed) else None
    asked = family.name(kept) if followed is None else family.choose_moved(kept, followed.revision)
    found = _find_answer(snapshot, follow_name(snapshot.service, asked.hash), followed, now)
    if found is None or found.revision is None or not _is_due(snapshot, spec.model, followed, now):
        return asked._replace(followed=followed)
    answer = Followed(found.revision, render_time(now))
    if followed is not None and followed.revision == found.revision:
        return asked._replace(followed=answer)
    return family.choose_moved(kept, found.revision)._replace(followed=answer)


def _find_answer(snapshot: Snapshot, job: str, followed: Followed | None, now: float) -> FoundModel | None:
    """Return what a Job has found that was made after the last answer, and is not on its way out.

    A last answer of a time to come says nothing of the Job: the clock was ahead.
    """
    metadata = find_job(snapshot, job).get("metadata", {})
    made_at = parse_time(metadata.get("creationTimestamp")) or 0.0
    asked_at = (parse_time(followed.asked_at) if followed else None) or 0.0
    is_old = "deletionTimestamp" in metadata or made_at <= asked_at <= now
    return None if is_old else find_told(snapshot, job)


def find_first_answer(spec: Spec, asked: Asked, found: FoundModel | None, now: float) -> Followed | None:
    """Return what the source said last: `found`, where it was asked for the first revision of a spec."""
    revision = None if found is None else found.revision
    if not _is_followed(spec.model) or revision is None or asked.model_revision is not None:
        return asked.followed
    is_known = asked.followed is not None and asked.followed.revision == revision
    return asked.followed if is_known else Followed(revision, render_time(now))


def _find_followed(status: Mapping[str, Any], spec: Spec) -> Followed | None:
    return Followed.read(status) if _is_followed(spec.model) else None


def _is_followed(model: Model) -> bool:
    return model.follow_seconds is not None and is_fetched(model.uri)


def _is_due(snapshot: Snapshot, model: Model, followed: Followed | None, now: float) -> bool:
    due_at = _find_due_time(snapshot, model, followed, now)
    return due_at is None or now >= due_at


def _find_due_time(snapshot: Snapshot, model: Model, followed: Followed | None, now: float) -> float | None:
    """Return when the source is asked again; None where it was never asked, or nobody knows when.

    A clock that was ahead once must not stop the asking: a time that is a whole period away is none.
    """
    asked_at = parse_time(followed.asked_at) if followed else None
    if asked_at is None or model.follow_seconds is None or asked_at > now + model.follow_seconds:
        return None
    return find_next_ask(asked_at, model.follow_seconds, snapshot.uid)


def plan_following(
    snapshot: Snapshot,
    spec: Spec,
    revision: str,
    followed: Followed | None,
    now: float,
    *,
    may_begin: bool,
    may_go_on: bool,
) -> Following | None:
    """Return what becomes of a branch after a revision; None where it is not followed.

    `may_go_on` is whether the service is at rest with that revision, and `may_begin` whether it serves
    completely. A Job that asks outlives the end of a single pod.
    """
    if not _is_followed(spec.model):
        return None
    job = follow_name(snapshot.service, revision)
    is_due = _is_due(snapshot, spec.model, followed, now)
    if not may_go_on or (is_due and not (may_begin or find_job(snapshot, job))):
        return Following(followed)
    if not is_due:
        return Following(followed, due_at=_find_due_time(snapshot, spec.model, followed, now))
    if find_told(snapshot, job) is not None:  # of another time: it is deleted, and then made anew
        return Following(followed)
    ask = Pending(revision, spec.model.uri, Stage.FOLLOW, explain_unread(snapshot, [job]))
    if ask.cause is not None:
        return Following(followed, ask)
    ask = replace(ask, cause=_explain_refusal(snapshot, job) or explain_delay(snapshot, job))
    return Following(followed, find_lateness(ask, snapshot, spec, job, now))


def _explain_refusal(snapshot: Snapshot, job: str) -> Cause | None:
    message = snapshot.refusals.get(ObjectId(JOB.kind, job))
    return None if message is None else explain_refusal(JOB.kind, job, message)
