"""Revisions of a service: which inputs make a new one, and how an old one is found again.

Inputs are compared, and never rendered manifests, so that an operator that renders pods differently restarts
none of them. Fields at their defaults are left out, so that a new field makes no new revision either.
"""

import hashlib
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from millrace_operator.api.types import Spec
from millrace_operator.kube.kinds import Obj
from millrace_operator.model.found_model import CachedModel, FoundModel
from millrace_runtime import contract

HASH_LENGTH = 10
HISTORY_LIMIT = 10
"""Revisions that were made, and that an edit may go back to."""
INPUTS = {"model", "engine", "parallelism", "resources", "pod"}
"""The fields of the spec that decide what a replica is."""
Inputs = dict[str, Any]
REFRESH = "resolved"
"""Beside the model's own fields: what tells revisions of one spec apart, whose source was asked anew."""


@dataclass(frozen=True, kw_only=True)
class Revision:
    """One revision, with the pod template that was rendered when it was made."""

    hash: str
    number: int
    inputs: Inputs
    template: Obj
    """Empty of one that is pending: whoever makes it renders it."""
    model: FoundModel | None = None
    """What its model's source told when the revision was made; None where it is not fetched."""
    cached: CachedModel | None = None
    """Where its pods read the model; None where each pod fetches it, or it was at hand before."""
    is_pending: bool | None = None
    """Whether it has still to be made: its record says what its model is. None: it never had to be told."""


def revision_inputs(spec: Spec) -> Inputs:
    """Return what of the spec decides what a replica is."""
    dumped = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, include=INPUTS)
    for amounts in dumped.get("resources", {}).values():
        amounts.update({name: str(amount) for name, amount in amounts.items()})
    return dumped


def refresh_inputs(inputs: Inputs, text: str) -> Inputs:
    """Return the inputs of a revision for which the model's source is asked anew."""
    return {**inputs, "model": {**inputs["model"], REFRESH: text}}


def leave_out_refresh(inputs: Inputs) -> Inputs:
    """Return what the spec said of the inputs."""
    model = {name: value for name, value in inputs.get("model", {}).items() if name != REFRESH}
    return {**inputs, "model": model}


def read_refresh(inputs: Inputs) -> str | None:
    """Return which refresh made a revision with these inputs; None where none did."""
    text: str | None = inputs.get("model", {}).get(REFRESH)
    return text


def hash_inputs(inputs: Inputs) -> str:
    """Return the revision's name part: the same for equal inputs, in any order of keys."""
    text = json.dumps(inputs, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]


def read_revisions(children: Collection[Obj]) -> dict[str, Revision]:
    """Return the revisions recorded in ControllerRevisions, by hash.

    One whose record was deleted by hand is read from its Deployment, so that its pods keep running.
    """
    deployed = [_salvage_revision(child) for child in children if child["kind"] == "Deployment"]
    recorded = [_read_revision(child) for child in children if child["kind"] == "ControllerRevision"]
    return {revision.hash: revision for revision in (*deployed, *recorded)}


def read_hash(child: Obj) -> str:
    """Return the hash that the name of a Deployment or ControllerRevision ends in. A label may be lost."""
    return str(child["metadata"]["name"]).rpartition("-")[2]


def _salvage_revision(deployment: Obj) -> Revision:
    template = deployment["spec"]["template"]
    return Revision(hash=read_hash(deployment), number=0, inputs={}, template=template)


def _read_revision(obj: Obj) -> Revision:
    data = obj.get("data", {})
    return Revision(
        hash=read_hash(obj),
        number=int(obj.get("revision", 0)),
        inputs=data.get("inputs", {}),
        template=data.get("template", {}),
        model=FoundModel.read(data.get("model")),
        cached=CachedModel.read(data.get("cache")),
        is_pending=_read_label(obj["metadata"].get("labels", {}).get(contract.LABEL_PENDING)),
    )


def _read_label(text: str | None) -> bool | None:
    return None if text is None else text == "true"


def next_number(revisions: Iterable[Revision]) -> int:
    """Return the number of a revision made now."""
    return max((revision.number for revision in revisions), default=0) + 1


def find_expired(revisions: Iterable[Revision], in_use: frozenset[str]) -> frozenset[str]:
    """Return the hashes of those that nothing uses: beyond the newest HISTORY_LIMIT, and never made."""
    unused = sorted((r for r in revisions if r.hash not in in_use), key=lambda r: r.number, reverse=True)
    pending = [revision for revision in unused if revision.is_pending]
    made = [revision for revision in unused if not revision.is_pending]
    return frozenset(revision.hash for revision in [*pending, *made[HISTORY_LIMIT:]])
