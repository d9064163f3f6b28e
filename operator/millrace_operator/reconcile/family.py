"""The revisions of a spec that differ in nothing but what its model's source had: a family. Pure.

Of all but the first one the inputs name what was found later, on a branch that is followed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from millrace_operator.cluster.kinds import DEPLOYMENT
from millrace_operator.reconcile.render.metadata import revision_name
from millrace_operator.reconcile.revision import (
    Inputs,
    Revision,
    find_resolved,
    hash_inputs,
    leave_out_resolved,
    resolve_inputs,
)
from millrace_operator.reconcile.snapshot import ObjectId, Snapshot


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

    def render(self) -> dict[str, Any]:
        """Return it as status keeps it."""
        return {"revision": self.revision, "askedAt": self.asked_at}


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
class Family:
    """The revisions that differ in what the model's source had."""

    inputs: Inputs
    """Of the first one, which names nothing that was found."""
    first: str
    members: dict[str, Revision]

    @classmethod
    def find(cls, inputs: Inputs, revisions: Mapping[str, Revision], followed: Followed | None) -> Self:
        """Return the family of the first one's `inputs`; `followed` is what status says of the branch."""
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

    def choose_kept(self, snapshot: Snapshot, *, is_followed: bool) -> str:
        """Return the one that was asked for last.

        Where the spec asked for something else meanwhile, or status is lost, it is the newest that has a
        Deployment, else the newest that served: a later one may have been given up. Who stops to follow a
        branch keeps what serves, where the newest was given up.
        """
        status = snapshot.service.get("status", {})
        last, rejected = status.get("updateRevision"), status.get("rejectedRevision", {}).get("revision")
        if not is_followed and last == rejected:
            last = status.get("currentRevision")
        if last in self.members:
            return str(last)
        owned, service = snapshot.owned(), snapshot.service
        running = [
            one
            for one in self.members.values()
            if ObjectId(DEPLOYMENT.kind, revision_name(service, one.hash)) in owned
        ]
        served = [one for one in self.members.values() if one.has_served]
        return _find_newest(running or served or [*self.members.values()])

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
