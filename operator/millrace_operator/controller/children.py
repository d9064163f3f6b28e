"""The children that a service is to have, and the writes that create, correct and delete them. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from millrace_operator.kube.kinds import CONTROLLER_REVISION, JOB, Obj, ObjectId, object_id
from millrace_operator.model.job_plan import list_witnesses
from millrace_operator.render.child import Child, Need, has_drifted, need, revision_name, seal
from millrace_operator.render.settings import RenderSettings
from millrace_operator.render.workload import (
    render_controller_revision,
    render_deployment,
    render_disruption_budget,
    render_headless_service,
    render_service,
    render_service_account,
)
from millrace_operator.rollout.requested_revision import find_idle
from millrace_operator.rollout.revision import HISTORY_LIMIT, find_expired, read_hash
from millrace_operator.rollout.targets import Targets
from millrace_runtime import contract


@dataclass(frozen=True, kw_only=True)
class Apply:
    """An object to create, or to correct."""

    obj: Obj
    seen: Obj | None
    """The existing object; None without one."""
    why: str
    needs: tuple[Need, ...] = ()
    """Objects that must exist before this one is created."""
    is_optional: bool = False
    """Whether the rest of the plan goes on if this object can't be created for any reason."""
    is_recreated: bool = False
    """Whether the existing object is deleted first, because it cannot be changed."""


@dataclass(frozen=True)
class Delete:
    """An object of ours that is no longer needed."""

    obj: Obj
    why: str


def render_children(
    settings: RenderSettings, service: Obj, targets: Targets, counts: dict[str, int], placed: int
) -> list[Child]:
    """Return the children that are to exist, each after those that it needs.

    `placed` is the number of replicas that the budget counts on.
    """
    revisions = [targets.known.revisions[digest] for digest in counts if digest in targets.counts]
    account = seal(render_service_account(service))
    recorded = [
        *revisions,
        *(one for one in (targets.known.refreshed, targets.known.answered) if one is not None),
    ]
    records = {one.hash: seal(render_controller_revision(service, one)) for one in recorded}
    budget = render_disruption_budget(service, placed, holds_last=targets.evacuation.holds_last)
    return [
        Child(account),
        Child(seal(render_headless_service(service))),
        Child(seal(render_service(settings, service))),
        *map(Child, records.values()),
        *(
            Child(
                seal(render_deployment(service, one, counts[one.hash])),
                _need_these(account, records[one.hash]),
            )
            for one in revisions
        ),
        Child(seal(budget)),
    ]


def _need_these(account: Obj, record: Obj) -> tuple[Need, ...]:
    """Return the needs of a Deployment. A record of another model is deleted first, and created again."""
    return (*need(account), Need(object_id(record), lambda seen: not _is_outdated(seen, record)))


def find_applies(
    children: Iterable[Child], owned: Mapping[ObjectId, Obj], taken: frozenset[ObjectId]
) -> Iterable[Apply]:
    """Yield the children to create or to change, without those whose names others have (`taken`)."""
    for child in children:
        obj, observed = child.obj, owned.get(child.id)
        if observed is None:
            if child.id not in taken:
                yield Apply(
                    obj=obj,
                    seen=None,
                    why="it does not exist",
                    needs=child.needs,
                    is_optional=child.is_optional,
                )
        elif "deletionTimestamp" in observed["metadata"]:
            continue
        elif _is_outdated(observed, obj):
            yield Apply(
                obj=obj,
                seen=observed,
                why="the model of its revision is known now, or is another one",
                is_recreated=True,
            )
        elif _needs_apply(obj, observed):
            why = _explain_drift(obj, observed)
            yield Apply(obj=obj, seen=observed, why=why, is_optional=child.is_optional)


def _needs_apply(obj: Obj, observed: Obj) -> bool:
    if obj["kind"] in (CONTROLLER_REVISION.kind, JOB.kind):  # their content cannot be changed
        obj = {"metadata": {field: obj["metadata"][field] for field in ("labels", "ownerReferences")}}
    return has_drifted(obj, observed)


def _explain_drift(obj: Obj, observed: Obj) -> str:
    before, after = (found.get("spec", {}).get("replicas") for found in (observed, obj))
    return "it differs from what is wanted" if before == after else f"replicas {before} -> {after}"


def find_deletes(
    wanted: Iterable[Obj], service: Obj, owned: Mapping[ObjectId, Obj], targets: Targets
) -> Iterable[Delete]:
    """Yield the children that no plan needs."""
    records = {object_id(obj): obj for obj in wanted if _is_record(obj)}
    kept = {object_id(obj) for obj in wanted}
    for key, obj in records.items():
        if key not in owned or _is_outdated(owned[key], obj):
            kept |= list_witnesses(service, read_hash(obj))
    in_use = frozenset(targets.step.counts) | {targets.stable}
    idle = find_idle(targets.known.revisions, service) - in_use
    expired = find_expired((one for d, one in targets.known.revisions.items() if d not in idle), in_use)
    old = {revision_name(service, digest) for digest in idle | expired}
    for key, obj in owned.items():
        is_history = key.kind == "ControllerRevision" and key.name not in old and key not in records
        if key not in kept and not is_history and "deletionTimestamp" not in obj["metadata"]:
            yield Delete(obj, _explain_delete(key))


def _is_record(obj: Obj) -> bool:
    return bool(obj["kind"] == CONTROLLER_REVISION.kind)


def _is_outdated(seen: Obj, wanted: Obj) -> bool:
    """Whether a pending revision's record must be replaced, as it is made now or has another model."""
    if not _is_record(seen) or not _is_pending(seen):
        return False
    return not _is_pending(wanted) or seen["data"].get("model") != wanted["data"].get("model")


def _is_pending(record: Obj) -> bool:
    return bool(record["metadata"].get("labels", {}).get(contract.LABEL_PENDING) == "true")


def _explain_delete(key: ObjectId) -> str:
    if key.kind == "ControllerRevision":
        return f"of revisions that have served the {HISTORY_LIMIT} newest unused ones are kept"
    return "its revision has no replicas" if key.kind == "Deployment" else "no plan wants it"
