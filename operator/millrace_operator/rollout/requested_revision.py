"""Which revision the spec asks for, and whether it can be made. Pure.

`kubectl millrace refresh` writes an annotation, which is an input of the revision beside the spec. So a Job
asks the source, as for any new revision. Until the source has answered, the earlier revision of the same spec
goes on. If the source has the model of an earlier revision of the same spec, that revision is asked for, and
nothing restarts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from millrace_operator.api.annotations import Refresh
from millrace_operator.api.conditions import Reason, find_condition
from millrace_operator.api.model_uri import can_change, is_fetched, is_looked_at
from millrace_operator.api.types import Spec
from millrace_operator.kube.kinds import (
    CONTROLLER_REVISION,
    DEPLOYMENT,
    JOB,
    Obj,
    ObjectId,
    is_owned,
    object_id,
)
from millrace_operator.model.claims import judge_claim
from millrace_operator.model.fit import judge_fit
from millrace_operator.model.found_model import FoundModel, find_place
from millrace_operator.model.job_plan import explain_unread, find_report, note_asking
from millrace_operator.model.pending_revision import (
    Pending,
    Stage,
    find_filling,
    find_lateness,
    find_looking,
    is_begun,
)
from millrace_operator.observed.pods import read_pod
from millrace_operator.observed.snapshot import GatewayKey, Snapshot
from millrace_operator.render.child import revision_name
from millrace_operator.render.model_source import find_claim
from millrace_operator.render.pod_template import render_pod_template
from millrace_operator.render.settings import GatewayKeyError, RenderSettings, UnmadeError
from millrace_operator.rollout.revision import (
    Inputs,
    Revision,
    hash_inputs,
    leave_out_refresh,
    next_number,
    read_refresh,
    read_revisions,
    refresh_inputs,
    revision_inputs,
)
from millrace_runtime import contract

_REFUSED = frozenset({Reason.DOES_NOT_FIT, Reason.MODEL_INVALID, Reason.SETTINGS_INVALID})


class Asked(NamedTuple):
    """A revision that the spec asks for."""

    hash: str
    inputs: Inputs
    before: str | None = None
    """The revision that the spec asks for apart from the refresh; None without a refresh."""


class Known(NamedTuple):
    """The revisions of a service, and which of them the spec asks for."""

    revisions: dict[str, Revision]
    """By hash."""
    asked: str
    error: UnmadeError | None = None
    """Why the requested revision cannot be made. Then the last revision that served is asked for."""
    pending: Pending | None = None
    """Why it can't be made yet. Then the last revision that served is asked for, if there is one."""
    refreshed: Revision | None = None
    """A refresh whose source had the model of the requested revision."""
    answered: Revision | None = None
    """The pending revision, once its model is known: its record has the model, and nothing else."""

    @property
    def model(self) -> FoundModel | None:
        """What is known of the model that the spec asks for."""
        if self.pending is not None:
            return self.pending.found
        return self.revisions[self.asked].model if self.error is None else None


def find_asked(service: Obj, spec: Spec, revisions: Mapping[str, Revision]) -> Asked:
    """Return the requested revision: of those with the same spec, the last requested one.

    A revision that was never made, because its model was refused, comes after those that were made.
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
    """Return the revisions that never run: refreshes whose source had nothing new.

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


def find_revisions(settings: RenderSettings, snapshot: Snapshot, spec: Spec, now: float) -> Known:
    """Return the revisions with the one that the spec asks for. A new one is made here.

    Raises UnmadeError if that one cannot be made, and no revision has served before.
    """
    revisions = read_revisions(list(snapshot.owned().values()))
    asked, served = find_asked(snapshot.service, spec, revisions), snapshot.status.get("currentRevision")
    recorded = revisions.get(asked.hash)
    if recorded is not None and not recorded.is_pending:
        return _choose_same(revisions, recorded, served)
    try:
        made = _make_revision(settings, snapshot, spec, asked, revisions)
    except UnmadeError as error:
        if served not in revisions:
            raise
        return Known(revisions, served, error)
    known = _choose_same({**revisions, made.hash: made}, made, served)
    if known.refreshed is not None:
        return known
    is_read = _is_read(snapshot.pods, made, revisions.get(served or ""))
    pending = _find_pending(snapshot, spec, made, now, is_read=is_read)
    if pending is None:
        return _put(known, replace(made, is_pending=None if recorded is None else False))
    if made.model is not None:
        answered = replace(made, template={}, is_pending=True)
        known = _put(known, answered)._replace(answered=answered)
    pending = replace(note_asking(pending, snapshot.jobs, snapshot.service), known_as=asked.before)
    return known._replace(asked=_choose_meanwhile(snapshot.status, revisions, asked), pending=pending)


def _make_revision(
    settings: RenderSettings, snapshot: Snapshot, spec: Spec, asked: Asked, revisions: dict[str, Revision]
) -> Revision:
    """Return the revision that the spec asks for, as it is made now. Raises UnmadeError if that can't be."""
    keys = _list_gateway_keys(snapshot.gateways.key, spec)
    recorded = revisions.get(asked.hash)
    job = revision_name(snapshot.service, asked.hash)
    reported = find_report(snapshot.jobs, job, spec.model.uri)
    model = reported or (None if recorded is None else recorded.model)
    return Revision(
        hash=asked.hash,
        number=next_number(revisions.values()) if recorded is None else recorded.number,
        inputs=asked.inputs,
        template=render_pod_template(settings, snapshot.service, spec, asked.hash, model, gateway_keys=keys),
        model=model,
        cached=find_place(spec.model, model),
    )


def _list_gateway_keys(found: GatewayKey | None, spec: Spec) -> list[str]:
    """Return the public keys that its replicas are to know. Raises GatewayKeyError if none is known yet."""
    if not spec.access.needs_keys:
        return []
    if found is None or found.public is None:
        why = "the operator has not read it yet" if found is None else found.fault
        raise GatewayKeyError(
            "no replica can be made that answers only gateways: there is no key of the gateways, which is in "
            f"Secret {contract.SECRET_GATEWAY_KEY} of the operator's namespace: {why}"
        )
    return [found.public]


def _is_read(pods: Sequence[Obj], made: Revision, serving: Revision | None) -> bool:
    """Whether serving replicas read the same model from the same folder, so that the model is there."""
    if serving is None or made.cached is None or serving.cached != made.cached:
        return False
    return any(pod.revision == serving.hash and pod.is_ready for pod in map(read_pod, pods))


def _put(known: Known, revision: Revision) -> Known:
    return known._replace(revisions={**known.revisions, revision.hash: revision})


def _choose_meanwhile(status: Obj, revisions: dict[str, Revision], wanted: Asked) -> str:
    """Return what runs until the wanted revision can be made.

    A refresh stops no rollout: the revision requested before it goes on, unless it was given up.
    """
    served, before = status.get("currentRevision"), revisions.get(wanted.before or "")
    rejected = status.get("rejectedRevision", {}).get("revision")
    if before is not None and not before.is_pending and before.hash != rejected:
        return find_same(before, revisions.values(), served).hash
    return served if served in revisions else wanted.hash


def _choose_same(revisions: dict[str, Revision], wanted: Revision, served: str | None) -> Known:
    """Return the requested revision: an earlier one, if it has the model of `wanted`."""
    same = find_same(wanted, revisions.values(), served)
    return Known(revisions, same.hash, refreshed=None if same.hash == wanted.hash else wanted)


def _find_pending(
    snapshot: Snapshot, spec: Spec, made: Revision, now: float, *, is_read: bool
) -> Pending | None:
    """Return why a revision can't be made yet, or never; None if it can.

    `is_read` means that serving replicas read the model already.
    """
    if made.model is not None:
        refusal = _find_refusal(snapshot, spec, made)
        if refusal is not None:
            return refusal
        return None if is_read else find_filling(snapshot, spec, made.hash, made.model, now)
    if not is_fetched(spec.model.uri):
        return find_looking(snapshot, spec, made.hash, now)
    job = revision_name(snapshot.service, made.hash)
    unread = explain_unread(snapshot.jobs, job)
    cause = snapshot.jobs.explain_delay(job) or unread or judge_claim(spec, snapshot.model.claim)
    pending = Pending(revision=made.hash, uri=spec.model.uri, cause=cause)
    return find_lateness(pending, snapshot, spec, job, now)


def _find_refusal(snapshot: Snapshot, spec: Spec, made: Revision) -> Pending | None:
    """Return that no pod can serve the model of a revision; None if one may.

    A model in a claim has started on any node that an autoscaler added. So the labels of the present nodes
    refuse nothing there.
    """
    is_free = is_begun(snapshot, made.hash) or not is_fetched(spec.model.uri)
    nodes = () if is_free else snapshot.nodes.gpus.values()
    facts = None if made.model is None else made.model.facts
    cause = judge_fit(spec, facts, nodes).refusal if facts else None
    if cause is None:
        return None
    return Pending(revision=made.hash, uri=spec.model.uri, stage=Stage.NEVER, cause=cause, found=made.model)


class Awaited(NamedTuple):
    """A look at a model for which a service waits."""

    claim: str
    revision: str
    is_new: bool
    """Whether the wait begins now: the model was refused, and the refusing record is gone."""
    has_job: bool
    """Whether the Job that looks exists."""


def find_awaited(service: Obj, spec: Spec, children: Iterable[Obj]) -> Awaited | None:
    """Return the look at a model in a claim whose revision is still to be made; None for any other."""
    claim = find_claim(spec.model.uri)
    if claim is None:
        return None
    own = {object_id(child): child for child in children if is_owned(child, service["metadata"]["uid"])}
    name = revision_name(service, find_asked(service, spec, read_revisions(own.values())).hash)
    if own.keys() & {ObjectId(CONTROLLER_REVISION.kind, name), ObjectId(DEPLOYMENT.kind, name)}:
        return None
    has_job = ObjectId(JOB.kind, name) in own
    condition = find_condition(service.get("status", {}), "ModelReady") or {}
    return Awaited(claim, name, condition.get("reason") in _REFUSED, has_job)
