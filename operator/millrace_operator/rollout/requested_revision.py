"""Which revision a spec asks for. Pure.

What `kubectl millrace refresh` writes is an input of the revision beside the spec. So a Job asks the source
as for any new revision. Until the source has answered, the revision of the same spec goes on that was asked
for before. Where the source has the model of a revision of the same spec, that one is asked for, and nothing
restarts.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from millrace_operator.api.annotations.refresh import Refresh, can_change, is_looked_at
from millrace_operator.api.types import Spec
from millrace_operator.kube.kinds import Obj
from millrace_operator.rollout.revision import (
    Inputs,
    Revision,
    hash_inputs,
    leave_out_refresh,
    read_refresh,
    refresh_inputs,
    revision_inputs,
)


class Asked(NamedTuple):
    """A revision that is asked for."""

    hash: str
    inputs: Inputs
    before: str | None = None
    """What the spec asks for apart from the refresh; None of a revision that is none."""


def find_asked(service: Obj, spec: Spec, revisions: Mapping[str, Revision]) -> Asked:
    """Return what is asked for: of the revisions of the same spec the one that was asked for last.

    One that was never made, as its model was refused, comes after those that were.
    """
    inputs = revision_inputs(spec)
    digest, last = hash_inputs(inputs), service.get("status", {}).get("updateRevision")
    same = [one for one in revisions.values() if digest in (one.hash, _hash_spec(one))]
    made = [one for one in same if not one.is_pending]
    chosen = max(made or same, key=lambda one: (one.hash == last, one.number), default=None)
    refresh = Refresh.find(service)
    is_named = refresh is not None and refresh.revision in {digest, *(one.hash for one in same)}
    is_asked = can_change(spec.model.uri) or (is_looked_at(spec.model.uri) and not made)
    if is_named and is_asked:
        inputs = refresh_inputs(inputs, str(refresh))
        return Asked(hash_inputs(inputs), inputs, chosen.hash if chosen and made else digest)
    return Asked(digest, inputs) if chosen is None else Asked(chosen.hash, chosen.inputs or inputs)


def find_same(made: Revision, revisions: Iterable[Revision], current: str | None) -> Revision:
    """Return the revision of the same spec and model: the `current` one, or else the oldest."""
    if made.model is None or made.model.revision is None:
        return made
    known = (one for one in revisions if one.model and not one.is_pending)
    same = [one for one in known if one.model and one.model.revision == made.model.revision]
    same = [one for one in same if _hash_spec(one) == _hash_spec(made)]
    return min([made, *same], key=lambda one: (one.hash != current, one.number))


def find_idle(revisions: Mapping[str, Revision], service: Obj) -> frozenset[str]:
    """Return those that never run and that nobody asks for: the source was asked anew, and had nothing new.

    The one that the annotation names stays, or its source would be asked again.
    """
    refresh = Refresh.find(service)
    kept = {None, None if refresh is None else str(refresh)}
    refreshed = [one for one in revisions.values() if read_refresh(one.inputs) not in kept]
    return frozenset(
        one.hash for one in refreshed if find_same(one, revisions.values(), None).hash != one.hash
    )


def _hash_spec(revision: Revision) -> str:
    return hash_inputs(leave_out_refresh(revision.inputs))
