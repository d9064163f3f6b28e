"""Which revision a spec asks for. Pure.

What `kubectl millrace refresh` writes is an input of the revision beside the spec. So a Job asks the source
as for any new revision. Where the source has the model of a revision of the same spec, that revision is asked
for, and nothing restarts.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from millrace_operator.api.refresh import Refresh, can_change
from millrace_operator.api.types import Spec
from millrace_operator.kube.kinds import Obj
from millrace_operator.rollout.revision import (
    Inputs,
    Revision,
    hash_inputs,
    leave_out_refresh,
    refresh_inputs,
    revision_inputs,
)


class Asked(NamedTuple):
    """A revision that is asked for."""

    hash: str
    inputs: Inputs


def find_asked(service: Obj, spec: Spec, revisions: Mapping[str, Revision]) -> Asked:
    """Return what is asked for: of the revisions of the same spec the one that was asked for last.

    One that was never made, as its model was refused, comes after those that were.
    """
    inputs = revision_inputs(spec)
    digest, last = hash_inputs(inputs), service.get("status", {}).get("updateRevision")
    same = [one for one in revisions.values() if digest in (one.hash, _hash_spec(one))]
    refresh = Refresh.find(service) if can_change(spec.model.uri) else None
    if refresh is not None and any(one.hash == refresh.revision for one in same):
        inputs = refresh_inputs(inputs, str(refresh))
        return Asked(hash_inputs(inputs), inputs)
    chosen = max(same, key=lambda one: (not one.is_pending, one.hash == last, one.number), default=None)
    return Asked(digest, inputs) if chosen is None else Asked(chosen.hash, chosen.inputs or inputs)


def find_same(made: Revision, revisions: Iterable[Revision], current: str | None) -> Revision:
    """Return the revision of the same spec and model: the `current` one, or else the oldest."""
    if made.model is None or made.model.revision is None:
        return made
    known = (one for one in revisions if one.model and not one.is_pending)
    same = [one for one in known if one.model and one.model.revision == made.model.revision]
    same = [one for one in same if _hash_spec(one) == _hash_spec(made)]
    return min([made, *same], key=lambda one: (one.hash != current, one.number))


def _hash_spec(revision: Revision) -> str:
    return hash_inputs(leave_out_refresh(revision.inputs))
