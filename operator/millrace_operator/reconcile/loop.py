"""Snapshot, plan, act: the only file of this package with I/O, all of it through a Cluster."""

import logging
import time
from collections.abc import Callable
from typing import Protocol

from millrace_operator.cluster.errors import ClusterError, ConflictError, RefusedError
from millrace_operator.cluster.kinds import BY_NAME, INFERENCE_SERVICE, Kind, Obj, kind_of
from millrace_operator.cluster.protocol import Cluster
from millrace_operator.reconcile.plan import Apply, Delete, Note, Plan, object_id, plan
from millrace_operator.reconcile.render.settings import RenderSettings
from millrace_operator.reconcile.snapshot import Advice, ObjectId, Snapshot, is_owned
from millrace_operator.resources.conditions import render_time

LOG = logging.getLogger(__name__)
Key = tuple[str, str]
"""Namespace and name of a service."""

AGAIN_NOW = 0.0


class Store(Protocol):
    """The cache as this loop needs it."""

    def service(self, key: Key) -> Obj | None:
        """Return the service, or None."""

    def children(self, key: Key) -> tuple[Obj, ...]:
        """Return the objects that carry the service's label, pods left out."""

    def pods(self, key: Key) -> tuple[Obj, ...]:
        """Return the pods that carry the service's label."""

    def put(self, obj: Obj) -> None:
        """Take in an object that is at least as new as the one held."""

    def drop(self, kind: Kind, namespace: str, name: str) -> None:
        """Forget an object."""


class Reconciler:
    """Brings one service at a time nearer to what it wants."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        settings: RenderSettings,
        advice: Callable[[Key], Advice | None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._settings = settings
        self._advice = advice
        self._clock = clock
        self._conflicts: dict[Key, frozenset[ObjectId]] = {}
        self._refusals: dict[Key, dict[ObjectId, str]] = {}

    async def reconcile(self, key: Key) -> float | None:
        """Plan and act once. Returns the seconds after which to look again, None to wait for an event.

        Raises ClusterError when a write failed in a way worth another try; what was written stands.
        """
        service = self._store.service(key)
        conflicts, refusals = self._conflicts.pop(key, frozenset()), self._refusals.pop(key, {})
        if service is None:
            return None
        conflicts = await self._confirm(key, service, conflicts)
        snapshot = Snapshot(
            service, self._store.children(key), self._store.pods(key), self._advice(key), conflicts, refusals
        )
        chosen = plan(self._settings, snapshot, self._clock())
        if conflicts:
            self._conflicts[key] = conflicts
        return await self._act(key, service, chosen)

    async def _confirm(self, key: Key, service: Obj, conflicts: frozenset[ObjectId]) -> frozenset[ObjectId]:
        """Return the conflicts that still stand: foreign objects carry no label, so no watch sees them."""
        standing = set()
        for kind_name, name in conflicts:
            kind = BY_NAME[kind_name]
            found = await self._cluster.fetch(kind, key[0], name)
            if found is not None and not is_owned(found, service["metadata"]["uid"]):
                standing.add((kind_name, name))
        return frozenset(standing)

    async def _act(self, key: Key, service: Obj, chosen: Plan) -> float | None:
        if chosen.status is not None:
            await self._write_status(service, chosen)
        for note in chosen.events:
            await self._record(service, note)
        for mark in chosen.marks:
            self._store.put(await self._cluster.annotate_pod(key[0], mark.pod, mark.uid, mark.annotations))
        is_blocked = False
        for apply in chosen.applies:
            is_blocked |= not await self._apply(key, service, apply)
        for delete in chosen.deletes:
            await self._delete(key, delete)
        return AGAIN_NOW if chosen.marks or is_blocked else chosen.requeue_after

    async def _write_status(self, service: Obj, chosen: Plan) -> None:
        """Write the decision before anything follows it; a leader with an old view stops here with a 409."""
        metadata = {field: service["metadata"][field] for field in ("name", "namespace", "resourceVersion")}
        head = {"apiVersion": INFERENCE_SERVICE.api_version, "kind": INFERENCE_SERVICE.kind}
        self._store.put(
            await self._cluster.apply_status({**head, "metadata": metadata, "status": chosen.status})
        )

    async def _apply(self, key: Key, service: Obj, apply: Apply) -> bool:
        """Apply one child; return False when something new stands in its way, which the next plan reports."""
        identity = object_id(apply.obj)
        try:
            if apply.uid is None:
                self._store.put(await self._cluster.apply_new(apply.obj))
            else:
                self._store.put(await self._cluster.apply_owned(apply.obj, apply.uid))
        except ConflictError:
            return await self._settle_conflict(key, service, identity)
        except RefusedError as error:
            known = self._refusals.setdefault(key, {})
            known[identity] = str(error)
            return _has_reported(service, str(error))
        return True

    async def _settle_conflict(self, key: Key, service: Obj, identity: ObjectId) -> bool:
        kind = BY_NAME[identity[0]]
        found = await self._cluster.fetch(kind, key[0], identity[1])
        if found is None:
            self._store.drop(kind, key[0], identity[1])
        elif is_owned(found, service["metadata"]["uid"]):
            self._store.put(found)
        else:
            self._store.drop(kind, key[0], identity[1])
            self._conflicts[key] = self._conflicts.get(key, frozenset()) | {identity}
        return False

    async def _delete(self, key: Key, delete: Delete) -> None:
        metadata, kind = delete.obj["metadata"], kind_of(delete.obj)
        await self._cluster.delete(kind, key[0], metadata["name"], metadata["uid"])
        self._store.drop(kind, key[0], metadata["name"])

    async def _record(self, service: Obj, note: Note) -> None:
        try:
            await self._cluster.create_event(render_event(service, note, self._clock()))
        except ClusterError as error:  # an Event is a courtesy: the conditions say the same
            LOG.warning("event not recorded: %s", error)


def _has_reported(service: Obj, message: str) -> bool:
    """Whether the conditions already say this refusal, so that there is nothing to plan again for now."""
    conditions = service.get("status", {}).get("conditions", [])
    return any(message in condition.get("message", "") for condition in conditions)


def render_event(service: Obj, note: Note, now: float) -> Obj:
    """Return an Event on the service."""
    metadata, stamp = service["metadata"], render_time(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": service["apiVersion"],
            "kind": service["kind"],
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": "Warning" if note.is_warning else "Normal",
        "reason": note.reason,
        "message": note.message[:1024],
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
        "source": {"component": "millrace-operator"},
    }
