"""The objects as they were last seen. Our own writes enter at once, so that no plan repeats a write."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from millrace_kubernetes.model_names import ModelNames, Standing
from millrace_operator.api.types import Spec
from millrace_operator.controller.objects import (
    Group,
    Place,
    RunningNames,
    find_groups,
    find_place,
    find_running,
    key_of,
    lacks_room,
    leave_out_foreign,
    name_unreadable,
    owner_of,
    uid_of,
    version_of,
)
from millrace_operator.kube.answers import compact
from millrace_operator.kube.kinds import Kind, Listing, Obj, ObjectKey, Role, Scope, ServiceKey, kind_of
from millrace_operator.kube.node import GpuNode


class ParsedSpec(NamedTuple):
    """A raw spec, and its parsed form."""

    raw: Any
    spec: Spec


class Swept(NamedTuple):
    """The changes that a complete list made."""

    ghosts: list[Obj]
    """Objects that are gone."""
    added: list[Obj]
    """Objects that were not there."""
    edited: list[Obj]
    """Objects that were there in another version."""
    known: list[Obj]
    """All objects that are there, without the unreadable ones."""
    unreadable: dict[str, Exception]
    """The errors of the unreadable objects by name, without those of the previous list."""


class Cache:
    """Raw objects by kind, namespace and name, and by the service that they belong to.

    `names` has the services' claims to model names.
    """

    def __init__(self, names: ModelNames[ServiceKey] | None = None) -> None:
        self._names = names or ModelNames({})
        self._objects: dict[ObjectKey, Obj] = {}
        self._services: dict[ServiceKey, Obj] = {}
        self._scaled: dict[ServiceKey, None] = {}
        """The services about whose count the operator decides, in the order of their arrival."""
        self._specs: dict[ServiceKey, ParsedSpec] = {}
        self._running = RunningNames(self._names)
        self._members: dict[Group, defaultdict[ServiceKey, set[ObjectKey]]] = {
            group: defaultdict(set) for group in Group
        }
        self._departures: dict[str, str] = {}
        """Why a node is being emptied, by its name."""
        self._gpu_nodes: dict[str, GpuNode] = {}
        self._graves: set[str] = set()
        """The uids of objects that were deleted while a late answer may still bring them."""
        self._num_awaited = 0
        self._unreadable: dict[Scope, frozenset[str]] = {}
        """The unreadable objects of the last list of each scope."""

    def __len__(self) -> int:
        return len(self._objects)

    def put(self, obj: Obj) -> bool:
        """Store an object, unless this version or a newer one is held. Return whether the version is new."""
        return self._store(obj, is_compact=False)

    def _store(self, obj: Obj, *, is_compact: bool) -> bool:
        key, version = key_of(obj), version_of(obj)
        held = self._objects.get(key)
        if held is not None and 0 < version <= version_of(held) and uid_of(held) == uid_of(obj):
            return False
        obj, place = leave_out_foreign(obj if is_compact else compact(obj)), find_place(obj)
        if held is not None:
            self._unlink(key, held)
        self._objects[key] = obj
        self._link(key, obj, place)
        before = None if held is None else find_running(held, owner_of(held))
        self._running.count(before, place.running)
        return True

    def renew(self, found: Obj, before: Obj | None) -> bool:
        """Store what a look by name has found, as `put` does. `before` was held under that name, if any."""
        is_as_before = self.find(found) is None if before is None else self.holds(before)
        return (is_as_before or self.holds(found)) and self.put(found)

    def find(self, obj: Obj) -> Obj | None:
        """Return the object that is held under this object's name, of any version and uid."""
        return self._objects.get(key_of(obj))

    def holds(self, obj: Obj) -> bool:
        """Whether this object is held, in any version. Another object of the same name does not count."""
        held = self.find(obj)
        return held is not None and uid_of(held) == uid_of(obj)

    def forget(self, obj: Obj) -> None:
        """Forget a deleted object. Another object of the same name stays."""
        self._bury(obj)
        if self.holds(obj):
            self._remove(key_of(obj))

    def drop(self, kind: Kind, namespace: str, name: str) -> None:
        """Forget an object."""
        self._remove(ObjectKey(kind.kind, namespace, name))

    def _remove(self, key: ObjectKey) -> None:
        obj = self._objects.pop(key, None)
        if obj is None:
            return
        self._unlink(key, obj)
        self._running.count(find_running(obj, owner_of(obj)), None)
        if kind_of(obj).role is Role.SERVICE:
            self._specs.pop(ServiceKey(key.namespace, key.name), None)
            self._names.remove(ServiceKey(key.namespace, key.name))

    def service(self, key: ServiceKey) -> Obj | None:
        """Return the service; None if there is none."""
        return self._services.get(key)

    def standing(self, key: ServiceKey) -> Standing:
        """Return the standing of a service's claim to its model name."""
        return self._names.judge(key)

    def list_former_names(self, key: ServiceKey) -> list[str]:
        """Return the model names that lead to a service only because its replicas still run with them."""
        return self._names.list_former(key)

    def service_uid(self, key: ServiceKey) -> str | None:
        """Return the uid of the service that has this name now; None without one."""
        service = self._services.get(key)
        return None if service is None else uid_of(service)

    def spec(self, key: ServiceKey) -> Spec:
        """Return the service's spec, parsed once. Raises ValueError for an unreadable one."""
        raw, held = self._services.get(key, {}).get("spec"), self._specs.get(key)
        if held is None or held.raw is not raw:
            is_same = held is not None and held.raw == raw
            held = ParsedSpec(raw, held.spec if held and is_same else Spec.model_validate(raw))
            self._specs[key] = held
        return held.spec

    def fetching(self) -> dict[ServiceKey, tuple[Obj, ...]]:
        """Return, for each service, the pods with a container that fetches a model or restarts to do so."""
        return {
            key: self._look_up(Group.FETCHING, key)
            for key in self._members[Group.FETCHING]
            if key in self._services
        }

    def children(self, key: ServiceKey) -> tuple[Obj, ...]:
        """Return the objects that belong to the service, without pods, by kind and name."""
        return self._look_up(Group.CHILDREN, key)

    def pods(self, key: ServiceKey) -> tuple[Obj, ...]:
        """Return the pods of the service's replicas, by name."""
        return self._look_up(Group.PODS, key)

    def job_pods(self, key: ServiceKey) -> tuple[Obj, ...]:
        """Return the pods of the service's Jobs, by name."""
        return self._look_up(Group.JOB_PODS, key)

    def departures(self) -> Mapping[str, str]:
        """Return the nodes that are being emptied, and why."""
        return self._departures

    def gpu_nodes(self) -> Mapping[str, GpuNode]:
        """Return the nodes that have GPUs, by name."""
        return self._gpu_nodes

    def services_on(self, nodes: Collection[str]) -> list[ServiceKey]:
        """Return the services that have pods on any of these nodes."""
        return [
            service
            for service, keys in self._members[Group.PODS].items()
            if any(self._objects[key].get("spec", {}).get("nodeName") in nodes for key in keys)
        ]

    def services_without_room(self) -> list[ServiceKey]:
        """Return the services whose status says that their model fits on no device."""
        return [key for key, service in self._services.items() if lacks_room(service)]

    def service_keys(self) -> list[ServiceKey]:
        """Return the keys of all services."""
        return list(self._services)

    def scaled_keys(self) -> list[ServiceKey]:
        """Return the keys of the services in another mode than External."""
        return list(self._scaled)

    @contextmanager
    def noting_ends(self) -> Iterator[None]:
        """Remember deletions while entered, because the answer to a list or a creation is awaited.

        The answer may still have a deleted object, if the API server made it before the deletion. So may
        other answers that arrive meanwhile.
        """
        self._num_awaited += 1
        try:
            yield
        finally:
            self._num_awaited -= 1
            if not self._num_awaited:
                self._graves.clear()

    def has_noted_end(self, obj: Obj) -> bool:
        """Whether this object was deleted while an answer was awaited that is still awaited."""
        return uid_of(obj) in self._graves

    def sweep(self, scope: Scope, listing: Listing) -> Swept:
        """Bring a scope up to date with a complete list of it.

        An event that came while the list was on its way is newer than the list, and a deletion stays. An
        unreadable object stays as it was known.
        """
        alive, swept = set[ObjectKey](), Swept([], [], [], [], {})
        for obj in listing.objects:
            try:
                alive.add(key_of(obj))
                before = self.find(obj)
                if not self.has_noted_end(obj) and self._store(obj, is_compact=True):
                    (swept.added if before is None else swept.edited).append(obj)
            except Exception as error:  # noqa: BLE001  an unreadable object must not hide the others
                swept.unreadable[name_unreadable(scope.kind, obj)] = error
            else:
                swept.known.append(obj)
        earlier = self._unreadable.get(scope, frozenset())
        self._unreadable[scope] = frozenset(swept.unreadable)
        for name in earlier & swept.unreadable.keys():
            del swept.unreadable[name]
        swept.ghosts.extend(self._remove_ghosts(scope, alive, listing.version))
        return swept

    def _remove_ghosts(self, scope: Scope, alive: Collection[ObjectKey], version: int) -> list[Obj]:
        """Remove and return the objects that a list of this version would have if they still existed."""
        ghosts = [
            obj
            for key, obj in self._objects.items()
            if key.kind == scope.kind.kind
            and scope.namespace in (None, key.namespace)
            and key not in alive
            and version_of(obj) <= version
        ]
        for ghost in ghosts:
            self._bury(ghost)
            self._remove(key_of(ghost))
        return ghosts

    def _bury(self, obj: Obj) -> None:
        if self._num_awaited:
            self._graves.add(uid_of(obj))

    def _link(self, key: ObjectKey, obj: Obj, place: Place) -> None:
        if place.served_name is not None:
            self._services[ServiceKey(key.namespace, key.name)] = obj
            self._names.put(ServiceKey(key.namespace, key.name), place.served_name)
        if place.is_scaled:
            self._scaled[ServiceKey(key.namespace, key.name)] = None
        if place.departure:
            self._departures[key.name] = place.departure
        if place.gpus:
            self._gpu_nodes[key.name] = place.gpus
        if place.owner is not None:
            for group in place.groups:
                self._members[group][place.owner].add(key)

    def _unlink(self, key: ObjectKey, obj: Obj) -> None:
        role, owner = kind_of(obj).role, owner_of(obj)
        if role is Role.SERVICE:
            del self._services[ServiceKey(key.namespace, key.name)]
            self._scaled.pop(ServiceKey(key.namespace, key.name), None)
        elif role is Role.NODE:
            self._departures.pop(key.name, None)
            self._gpu_nodes.pop(key.name, None)
        elif owner is not None:
            for group in find_groups(obj):
                members = self._members[group]
                members[owner].discard(key)
                if not members[owner]:
                    del members[owner]

    def _look_up(self, group: Group, key: ServiceKey) -> tuple[Obj, ...]:
        members = self._members[group].get(key, ())
        return tuple(self._objects[object_key] for object_key in sorted(members))
