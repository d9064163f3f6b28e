"""The objects as last seen. Our own writes are put in at once, so that no plan repeats a write."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from millrace_operator.cluster.kinds import (
    INFERENCE_SERVICE,
    POD,
    Kind,
    Listing,
    Obj,
    ObjectKey,
    ServiceKey,
)
from millrace_runtime import contract


class Cache:
    """Raw objects by kind, namespace and name, and by the service that they belong to."""

    def __init__(self) -> None:
        self._objects: dict[ObjectKey, Obj] = {}
        self._by_service: dict[ServiceKey, set[ObjectKey]] = defaultdict(set)
        self._graves: set[str] | None = None

    def __len__(self) -> int:
        return len(self._objects)

    def put(self, obj: Obj) -> bool:
        """Store an object unless the one held is newer. Return whether its version is new to us."""
        key = _key_of(obj)
        held = self._objects.get(key)
        if held is not None and _version(held) > _version(obj) and _uid(held) == _uid(obj):
            return False
        if held is not None:
            self._unlink(key, held)
        # Who manages which field is half of an object's size and of no use here.
        obj["metadata"].pop("managedFields", None)
        self._objects[key] = obj
        owner = owner_of(obj)
        if owner is not None and obj["kind"] != INFERENCE_SERVICE.kind:
            self._by_service[owner].add(key)
        return held is None or _version(held) != _version(obj)

    def forget(self, obj: Obj) -> None:
        """Forget an object that was deleted. Another object that has its name by now stays."""
        self._bury(obj)
        held = self._objects.get(_key_of(obj))
        if held is not None and _uid(held) == _uid(obj):
            del self._objects[_key_of(obj)]
            self._unlink(_key_of(obj), held)

    def drop(self, kind: Kind, namespace: str, name: str) -> None:
        """Forget an object."""
        key = ObjectKey(kind.kind, namespace, name)
        obj = self._objects.pop(key, None)
        if obj is not None:
            self._unlink(key, obj)

    def service(self, key: ServiceKey) -> Obj | None:
        """Return the service, or None."""
        return self._objects.get(ObjectKey(INFERENCE_SERVICE.kind, *key))

    def children(self, key: ServiceKey) -> tuple[Obj, ...]:
        """Return the objects that belong to the service, pods left out, by kind and name."""
        return tuple(obj for obj in self._belongings(key) if obj["kind"] != POD.kind)

    def pods(self, key: ServiceKey) -> tuple[Obj, ...]:
        """Return the pods that belong to the service, by name."""
        return tuple(obj for obj in self._belongings(key) if obj["kind"] == POD.kind)

    def service_keys(self) -> list[ServiceKey]:
        """Return the keys of all services."""
        found = (key for key in self._objects if key.kind == INFERENCE_SERVICE.kind)
        return [ServiceKey(key.namespace, key.name) for key in found]

    @contextmanager
    def listing(self) -> Iterator[None]:
        """Remember what is deleted while entered: a list that was made before has it still."""
        self._graves = set()
        try:
            yield
        finally:
            self._graves = None

    def sweep(self, kind: Kind, listing: Listing) -> list[Obj]:
        """Bring a kind up to date with a complete list. Return what is gone.

        What came while the list was under way is newer than it, and what went meanwhile does not come back.
        """
        alive = {_key_of(obj) for obj in listing.objects}
        ghosts = [
            obj
            for key, obj in self._objects.items()
            if key.kind == kind.kind and key not in alive and _version(obj) <= listing.version
        ]
        for ghost in ghosts:
            self.drop(kind, ghost["metadata"]["namespace"], ghost["metadata"]["name"])
        for obj in listing.objects:
            if _uid(obj) not in (self._graves or ()):
                self.put(obj)
        return ghosts

    def _bury(self, obj: Obj) -> None:
        if self._graves is not None:
            self._graves.add(_uid(obj))

    def _unlink(self, key: ObjectKey, obj: Obj) -> None:
        owner = owner_of(obj)
        if owner is not None and owner in self._by_service:
            self._by_service[owner].discard(key)
            if not self._by_service[owner]:
                del self._by_service[owner]

    def _belongings(self, key: ServiceKey) -> list[Obj]:
        return [self._objects[object_key] for object_key in sorted(self._by_service.get(key, ()))]


def owner_of(obj: Obj) -> ServiceKey | None:
    """Return the key of the service that an object is or belongs to; None for none.

    Its controller says so, or else its label: a label can be lost, and a pod's controller is a ReplicaSet.
    """
    metadata = obj["metadata"]
    if obj["kind"] == INFERENCE_SERVICE.kind:
        return ServiceKey(metadata["namespace"], metadata["name"])
    name = _find_controller(metadata) or metadata.get("labels", {}).get(contract.LABEL_SERVICE)
    return None if name is None else ServiceKey(metadata["namespace"], name)


def _find_controller(metadata: Obj) -> str | None:
    """Return the name of the InferenceService that controls an object."""
    for reference in metadata.get("ownerReferences", []):
        group = reference.get("apiVersion", "").partition("/")[0]
        if reference.get("controller") and (group, reference.get("kind")) == (contract.GROUP, contract.KIND):
            return str(reference["name"])
    return None


def _key_of(obj: Obj) -> ObjectKey:
    metadata = obj["metadata"]
    return ObjectKey(obj["kind"], metadata.get("namespace", ""), metadata["name"])


def _version(obj: Obj) -> int:
    return int(obj["metadata"].get("resourceVersion", 0))


def _uid(obj: Obj) -> str:
    return str(obj["metadata"].get("uid", ""))
