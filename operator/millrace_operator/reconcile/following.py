"""What is rolled out of a branch that is followed, and when its source is asked again. Pure.

The revisions of a spec that differ in nothing but what its model's source had are a family. Of all but the
first one the inputs name what was found later. What the source said last is in status alone; without it the
family stays with what it has, and the source is asked anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from millrace_operator.cluster.kinds import DEPLOYMENT
from millrace_operator.reconcile.filling import find_lateness
from millrace_operator.reconcile.found_model import FoundModel
from millrace_operator.reconcile.jobs import explain_delay, find_job
from millrace_operator.reconcile.pending import Pending, Stage
from millrace_operator.reconcile.render.metadata import follow_name, revision_name
from millrace_operator.reconcile.render.model_source import is_fetched
from millrace_operator.reconcile.resolution import find_told
from millrace_operator.reconcile.revision import (
    Inputs,
    Revision,
    find_resolved,
    hash_inputs,
    leave_out_resolved,
    resolve_inputs,
    revision_inputs,
)
from millrace_operator.reconcile.snapshot import ObjectId, Snapshot
from millrace_operator.resources.ask_times import find_next_ask
from millrace_operator.resources.conditions import parse_time, render_time
from millrace_operator.resources.model_types import Model
from millrace_operator.resources.status_types import MOST_LETTERS
from millrace_operator.resources.types import Spec


@dataclass(frozen=True)
class Followed:
    """What the source of a branch said last."""

    revision: str
    asked_at: str
    """As the API writes times."""

    @classmethod
    def read(cls, status: Mapping[str, Any]) -> Self | None:
        """Return what status keeps of it; None where it was not asked, or this is lost."""
        raw = status.get("model", {}).get("followed", {})
        revision, asked_at = raw.get("revision"), raw.get("askedAt")
        return cls(revision, asked_at) if isinstance(revision, str) and isinstance(asked_at, str) else None


class Asked(NamedTuple):
    """The revision that the spec asks for, of its family."""

    hash: str
    inputs: Inputs
    followed: Followed | None = None

    @property
    def model_revision(self) -> str | None:
        """The revision of the model that was found later; None of the family's first one."""
        return find_resolved(self.inputs)


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

        What kept a Job from an answer is told until it has one, or is wanted no more: between two tries of
        its container nothing is wrong for a moment.
        """
        told = {} if self.followed is None else _render(self.followed)
        cause = self.ask and (self.ask.late or self.ask.cause)
        message = cause.message[:MOST_LETTERS] if cause else old.get("message") if self.ask else None
        return told if message is None else {**told, "message": message}


def _render(followed: Followed) -> dict[str, Any]:
    return {"revision": followed.revision, "askedAt": followed.asked_at}


def find_asked(snapshot: Snapshot, spec: Spec, revisions: Mapping[str, Revision], now: float) -> Asked:
    """Return the revision that the spec asks for: the one of its family that has what the branch has.

    Where no branch is followed it stays the one that it was.
    """
    status: dict[str, Any] = snapshot.service.get("status", {})
    first, followed = revision_inputs(spec), _find_followed(status, spec)
    family = _Family.find(first, revisions, followed)
    if not family.members:
        return Asked(family.first, first, followed if family.is_last(status, followed) else None)
    kept = family.choose_kept(snapshot, spec.model)
    if not _is_followed(spec.model):
        return family.name(kept)
    followed = followed if family.is_last(status, followed) else None
    asked = family.name(kept) if followed is None else family.choose_moved(kept, followed.revision)
    found = find_told(snapshot, follow_name(snapshot.service, asked.hash))
    if found is None or not _is_due(snapshot, spec.model, followed, now):
        return asked._replace(followed=followed)
    answer = Followed(found.revision, render_time(now))
    if followed is not None and followed.revision == found.revision:
        return asked._replace(followed=answer)
    return family.choose_moved(kept, found.revision)._replace(followed=answer)


def find_first_answer(spec: Spec, asked: Asked, found: FoundModel | None, now: float) -> Followed | None:
    """Return what the source said last: `found`, where it was asked for the first revision of a spec."""
    if not _is_followed(spec.model) or found is None or asked.model_revision is not None:
        return asked.followed
    is_known = asked.followed is not None and asked.followed.revision == found.revision
    return asked.followed if is_known else Followed(found.revision, render_time(now))


def _find_followed(status: Mapping[str, Any], spec: Spec) -> Followed | None:
    return Followed.read(status) if _is_followed(spec.model) else None


def _is_followed(model: Model) -> bool:
    return model.follow_seconds is not None and is_fetched(model.uri)


@dataclass(frozen=True)
class _Family:
    """The revisions that differ in what the model's source had."""

    inputs: Inputs
    """Of the first one, which names nothing that was found."""
    first: str
    members: dict[str, Revision]

    @classmethod
    def find(cls, inputs: Inputs, revisions: Mapping[str, Revision], followed: Followed | None) -> Self:
        first = hash_inputs(inputs)
        # A record that was deleted by hand names no inputs any more. What was found last tells its hash.
        later = followed and hash_inputs(resolve_inputs(inputs, followed.revision))
        members = {
            one.hash: one for one in revisions.values() if one.hash in (first, later) or _is_of(one, first)
        }
        return cls(inputs, first, members)

    def name(self, digest: str) -> Asked:
        """Return one of the family as what is asked for."""
        member = self.members[digest]
        return Asked(digest, member.inputs or self.inputs)

    def is_last(self, status: Mapping[str, Any], followed: Followed | None) -> bool:
        """Whether the spec asked for one of the family before. What was said then is of its branch."""
        if followed is None:
            return False
        moved = hash_inputs(resolve_inputs(self.inputs, followed.revision))
        return status.get("updateRevision") in {self.first, moved, *self.members}

    def choose_kept(self, snapshot: Snapshot, model: Model) -> str:
        """Return the one that was asked for last. Without a status that is the newest that has a Deployment.

        Who stops to follow a branch keeps what serves, where the newest was given up.
        """
        status = snapshot.service.get("status", {})
        last, rejected = status.get("updateRevision"), status.get("rejectedRevision", {}).get("revision")
        if not _is_followed(model) and last == rejected:
            last = status.get("currentRevision")
        if last in self.members:
            return str(last)
        owned, service = snapshot.owned(), snapshot.service
        running = [
            one
            for one in self.members.values()
            if ObjectId(DEPLOYMENT.kind, revision_name(service, one.hash)) in owned
        ]
        return max(running or self.members.values(), key=lambda one: one.number).hash

    def choose_moved(self, kept: str, revision: str) -> Asked:
        """Return the newest that has this revision of the model, or one that is to be made."""
        same = [one for one in self.members.values() if one.model and one.model.revision == revision]
        if same:
            return self.name(kept if kept in {one.hash for one in same} else _find_newest(same))
        inputs = resolve_inputs(self.inputs, revision)
        return Asked(hash_inputs(inputs), inputs)


def _find_newest(revisions: list[Revision]) -> str:
    return max(revisions, key=lambda one: one.number).hash


def _is_of(revision: Revision, first: str) -> bool:
    has_found = find_resolved(revision.inputs) is not None
    return has_found and hash_inputs(leave_out_resolved(revision.inputs)) == first


def _is_due(snapshot: Snapshot, model: Model, followed: Followed | None, now: float) -> bool:
    due_at = _find_due_time(snapshot, model, followed)
    return due_at is None or now >= due_at


def _find_due_time(snapshot: Snapshot, model: Model, followed: Followed | None) -> float | None:
    """Return when the source is asked again; None where it was never asked, or nobody knows when."""
    asked_at = parse_time(followed.asked_at) if followed else None
    if asked_at is None or model.follow_seconds is None:
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
        return Following(followed, due_at=_find_due_time(snapshot, spec.model, followed))
    if find_told(snapshot, job) is not None:  # of another time: it is deleted, and then made anew
        return Following(followed)
    ask = Pending(revision, spec.model.uri, Stage.FOLLOW, explain_delay(snapshot, job))
    return Following(followed, find_lateness(ask, snapshot, spec, job, now))
