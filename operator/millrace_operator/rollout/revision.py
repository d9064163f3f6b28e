"""Revisions of a service: which inputs make a new one, and how an old one is found again.

Inputs are compared, never rendered manifests. So an operator that renders pods differently restarts none of
them. Fields with default values are left out. So a new field makes no new revision either.
"""

import hashlib
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from millrace_operator.api.access_types import AuthenticationMode
from millrace_operator.api.types import Spec
from millrace_operator.kube.kinds import Obj
from millrace_operator.model.found_model import CachedModel, FoundModel
from millrace_runtime import contract

HASH_LENGTH = 10
HISTORY_LIMIT = 10
"""Revisions that were made, to which an edit may go back."""
INPUTS = {"model", "engine", "parallelism", "resources", "pod"}
"""The fields of the spec that decide what a replica is. Beside them, whether clients need keys."""
Inputs = dict[str, Any]
REFRESH = "resolved"
"""Beside the model's own fields: it distinguishes revisions of one spec whose source was asked again."""


@dataclass(frozen=True, kw_only=True)
class Revision:
    """One revision, with the pod template that was rendered when it was made."""

    hash: str
    number: int
    inputs: Inputs
    template: Obj
    """Empty while it is pending: the operator that makes it renders it."""
    model: FoundModel | None = None
    """The source's report when the revision was made; None if the model is not fetched."""
    cached: CachedModel | None = None
    """Where its pods read the model; None if each pod fetches it, or if it needs no fetch."""
    is_pending: bool | None = None
    """Whether it still has to be made, so that its record has only the model. None: it never waited."""


def revision_inputs(spec: Spec) -> Inputs:
    """Return the part of the spec that decides what a replica is.

    The spec has the platform's mode of authentication, if it has none of its own: replicas of a service whose
    clients need keys answer only gateways.
    """
    dumped = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, include=INPUTS)
    for amounts in dumped.get("resources", {}).values():
        amounts.update({name: str(amount) for name, amount in amounts.items()})
    if spec.access.needs_keys:
        dumped["access"] = {"authentication": {"mode": AuthenticationMode.API_KEY.value}}
    return dumped


def refresh_inputs(inputs: Inputs, text: str) -> Inputs:
    """Return the inputs of a revision for which a Job asks the model's source again."""
    return {**inputs, "model": {**inputs["model"], REFRESH: text}}


def leave_out_refresh(inputs: Inputs) -> Inputs:
    """Return the spec's part of the inputs."""
    model = {name: value for name, value in inputs.get("model", {}).items() if name != REFRESH}
    return {**inputs, "model": model}


def read_refresh(inputs: Inputs) -> str | None:
    """Return the refresh that made a revision with these inputs; None without one."""
    text: str | None = inputs.get("model", {}).get(REFRESH)
    return text


def hash_inputs(inputs: Inputs) -> str:
    """Return the revision's part of names: the same for equal inputs, in any order of keys."""
    text = json.dumps(inputs, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]


def read_revisions(children: Collection[Obj]) -> dict[str, Revision]:
    """Return the recorded revisions of ControllerRevisions, by hash.

    If somebody has deleted a record, its Deployment takes its place, so that its pods keep running.
    """
    deployed = [_salvage_revision(child) for child in children if child["kind"] == "Deployment"]
    recorded = [_read_revision(child) for child in children if child["kind"] == "ControllerRevision"]
    return {revision.hash: revision for revision in (*deployed, *recorded)}


def read_hash(child: Obj) -> str:
    """Return the hash at the end of a Deployment's or ControllerRevision's name. A label may be lost."""
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
    """Return the hashes of unused revisions: beyond the newest HISTORY_LIMIT, or never made."""
    unused = sorted((r for r in revisions if r.hash not in in_use), key=lambda r: r.number, reverse=True)
    pending = [revision for revision in unused if revision.is_pending]
    made = [revision for revision in unused if not revision.is_pending]
    return frozenset(revision.hash for revision in [*pending, *made[HISTORY_LIMIT:]])
