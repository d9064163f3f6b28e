"""An API server in memory, for faults that a test cannot cause in a real one.

It has resourceVersions, uids, create-only applies, uid preconditions and conflicts. It has no defaulting, no
validation except of names, and no field ownership: the tests of the real one cover those.
`testing/api_contract.py` has what both must do alike.
"""

import copy
import itertools
import re
from collections import deque
from collections.abc import Callable
from typing import Any

from millrace_operator.kube.answers import compact
from millrace_operator.kube.errors import AbsentError, ClusterError, ConflictError, RefusedError
from millrace_operator.kube.kinds import (
    EVENT,
    LEASE,
    Kind,
    Listing,
    Obj,
    ObjectKey,
    Scope,
    kind_of,
)
from millrace_operator.kube.protocol import Cluster

_NAME = re.compile("[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class FakeCluster(Cluster):
    """An API server that can fail. Each write removes the first of `faults`, and raises it if not None.

    Each read does the same with `read_faults`.
    """

    def __init__(self) -> None:
        self.objects: dict[ObjectKey, Obj] = {}
        self.writes: list[tuple[str, str, str]] = []
        self.events: list[Obj] = []
        self.faults: deque[ClusterError | None] = deque()
        self.read_faults: deque[ClusterError | None] = deque()
        self.refuse: Callable[[Obj], str | None] = lambda _obj: None
        """Returns why a child is refused, as by a quota or an admission policy; None if it is not."""
        self.refuse_other: dict[str, str] = {}
        """Why another write is refused, by its verb: `annotate`, `delete`."""
        self._versions = itertools.count(10)

    def put(self, obj: Obj) -> Obj:
        """Store `obj` as if somebody else had written it, and return it with its new resourceVersion."""
        metadata = obj["metadata"]
        key = ObjectKey(obj["kind"], metadata.get("namespace", ""), metadata["name"])
        stored = copy.deepcopy(obj)
        version = next(self._versions)
        stored["metadata"].setdefault("uid", f"uid-{version}")
        stored["metadata"]["resourceVersion"] = str(version)
        self.objects[key] = stored
        return copy.deepcopy(stored)

    def remove(self, kind: Kind, namespace: str, name: str) -> None:
        """Remove an object as if somebody else had deleted it."""
        self.objects.pop(ObjectKey(kind.kind, namespace, name), None)

    async def fetch(self, kind: Kind, namespace: str, name: str) -> Obj | None:
        _raise_first(self.read_faults)
        return copy.deepcopy(self.objects.get(ObjectKey(kind.kind, namespace, name)))

    async def fetch_all(self, scope: Scope, label_selector: str | None = None) -> Listing:
        """List objects. A selector names a label that they must have."""
        _raise_first(self.read_faults)
        found = [
            compact(
                {
                    "apiVersion": obj.get("apiVersion", ""),
                    "kind": obj["kind"],
                    **scope.kind.trim(copy.deepcopy(obj)),
                }
            )
            for obj in self.objects.values()
            if obj["kind"] == scope.kind.kind
            and scope.namespace in (None, obj["metadata"].get("namespace"))
            and (label_selector is None or label_selector in obj["metadata"].get("labels", {}))
        ]
        return Listing(found, next(self._versions))

    async def apply_new(self, obj: Obj) -> Obj:
        self._record("create", obj)
        if not _NAME.fullmatch(obj["metadata"]["name"]):
            raise RefusedError(f"metadata.name: Invalid value: {obj['metadata']['name']}")
        self._admit(obj)
        metadata = obj["metadata"]
        if ObjectKey(obj["kind"], metadata["namespace"], metadata["name"]) in self.objects:
            raise ConflictError(f"{metadata['name']} exists")
        return self.put(obj)

    async def apply_owned(self, obj: Obj, uid: str, version: str | None = None) -> Obj:
        self._record("apply", obj)
        self._admit(obj)
        old = self._require(obj, uid, version)
        if "data" in obj and obj["data"] != old.get("data"):
            raise RefusedError("data: Invalid value: field is immutable")
        return self._store_if_changed(old, _merge(old, obj))

    async def apply_status(self, obj: Obj) -> Obj:
        self._record("status", obj)
        old = self._find(obj)
        if old["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]:
            raise ConflictError("the object has been modified")
        return self._store_if_changed(old, {**old, "status": copy.deepcopy(obj["status"])})

    async def write_scale(self, service: Obj, replicas: int) -> None:
        self._record("scale", service)
        self._admit(service)
        metadata = service["metadata"]
        old = self._require(service, metadata["uid"], metadata["resourceVersion"])
        self._store_if_changed(old, {**old, "spec": {**old["spec"], "replicas": replicas}})

    async def annotate(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        uid: str,
        annotations: dict[str, str | None],
        *,
        version: str | None = None,
    ) -> Obj:
        obj: Obj = {"kind": kind.kind, "metadata": {"namespace": namespace, "name": name}}
        self._record("annotate", obj)
        old = self._find(obj)
        self._require(obj, uid, version)
        merged = {**old["metadata"].get("annotations", {}), **annotations}
        kept = {key: value for key, value in merged.items() if value is not None}
        return self._store_if_changed(old, _merge(old, {"metadata": {"annotations": None}}, kept))

    async def change_data(self, obj: Obj, data: dict[str, str | None]) -> Obj:
        self._record("change", obj)
        self._admit(obj)
        old = self._find(obj)
        self._require(obj, obj["metadata"]["uid"], obj["metadata"]["resourceVersion"])
        changed = {**(old.get("data") or {}), **data}
        kept = {name: value for name, value in changed.items() if value is not None}
        return self._store_if_changed(old, {**old, "data": kept})

    async def delete(
        self, kind: Kind, namespace: str, name: str, uid: str, version: str | None = None
    ) -> None:
        obj: Obj = {"kind": kind.kind, "metadata": {"namespace": namespace, "name": name}}
        self._record("delete", obj)
        if ObjectKey(kind.kind, namespace, name) in self.objects:
            self._require(obj, uid, version)
            self.remove(kind, namespace, name)

    async def create_event(self, event: Obj) -> Obj:
        _raise_first(self.faults)
        version = str(next(self._versions))
        name = f"{event['metadata']['generateName']}{version}"
        metadata = {**event["metadata"], "name": name, "uid": f"uid-{version}", "resourceVersion": version}
        self.events.append(copy.deepcopy({**event, "kind": EVENT.kind, "metadata": metadata}))
        return copy.deepcopy(self.events[-1])

    async def change_event(self, namespace: str, name: str, fields: Obj) -> None:
        _raise_first(self.faults)
        wanted = (namespace, name)
        for event in self.events:
            if (event["metadata"]["namespace"], event["metadata"]["name"]) == wanted:
                event.update(fields)
                return
        raise AbsentError(f"events {name!r} not found")

    async def create_lease(self, lease: Obj) -> Obj:
        return await self.apply_new({**lease, "kind": LEASE.kind})

    async def replace_lease(self, lease: Obj) -> Obj:
        self._record("replace", lease)
        old = self._require(lease, None)
        if old["metadata"]["resourceVersion"] != lease["metadata"].get("resourceVersion"):
            raise ConflictError("the Lease has been modified")
        return self.put(lease)

    def _record(self, verb: str, obj: Obj) -> None:
        self.writes.append((verb, kind_of(obj).kind, obj["metadata"]["name"]))
        _raise_first(self.faults)
        if verb in self.refuse_other:
            raise RefusedError(self.refuse_other[verb])

    def _admit(self, obj: Obj) -> None:
        message = self.refuse(obj)
        if message is not None:
            raise RefusedError(message)

    def _find(self, obj: Obj) -> Obj:
        metadata = obj["metadata"]
        old = self.objects.get(ObjectKey(obj["kind"], metadata["namespace"], metadata["name"]))
        if old is None:
            raise AbsentError(f"{metadata['name']} not found")
        return old

    def _require(self, obj: Obj, uid: str | None, version: str | None = None) -> Obj:
        metadata = obj["metadata"]
        old = self.objects.get(ObjectKey(obj["kind"], metadata["namespace"], metadata["name"]))
        if old is None or (uid is not None and old["metadata"]["uid"] != uid):
            raise ConflictError(f"{metadata['name']} is gone or another object")
        if version not in (None, old["metadata"]["resourceVersion"]):
            raise ConflictError(f"{metadata['name']} has been modified")
        return old

    def _store_if_changed(self, old: Obj, new: Obj) -> Obj:
        return copy.deepcopy(old) if new == old else self.put(new)


def _raise_first(faults: deque[ClusterError | None]) -> None:
    fault = faults.popleft() if faults else None
    if fault is not None:
        raise fault


def _merge(old: Any, new: Any, annotations: dict[str, str] | None = None) -> Any:
    """Return `old` with `new`'s fields over it, recursively in mappings. Lists are replaced."""
    if annotations is not None:
        return {**old, "metadata": {**old["metadata"], "annotations": annotations}}
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return copy.deepcopy(new)
    return {**old, **{key: _merge(old.get(key), value) for key, value in new.items()}}
