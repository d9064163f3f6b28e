"""The services and replicas of the cluster, and the route of a model name. Pure: events in, lookups out.

A service has a Host, the name `<namespace>/<name>`, and served names: that of its spec, and those of its
Ready replicas. A served name leads to a service if only services of one namespace claim it, or if the
platform pins the name to the service. Services of one namespace with the same served name share its requests.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from millrace_gateway.route.objects import (
    Object,
    Replica,
    Service,
    ServiceKey,
    read_key,
    read_replica,
    read_service,
)
from millrace_kubernetes.model_names import ModelNames


@dataclass(frozen=True)
class Route:
    """The destination of a request: services with one model name, the oldest first."""

    services: tuple[Service, ...]

    @property
    def served_name(self) -> str:
        """The model name in the spec."""
        return self.services[0].served_name

    @property
    def sleeper(self) -> Service:
        """The service that a request wakes if the route has no replica."""
        return max(self.services, key=lambda service: service.hold_seconds > 0)


class Catalogue:
    """Owner of the services and replicas as last seen. Lookups never wait and never raise.

    `clock` returns the seconds of a monotonic clock. `pins` has the services of pinned names.
    """

    def __init__(self, clock: Callable[[], float], pins: Mapping[str, ServiceKey] | None = None) -> None:
        self.num_changes = 0
        """Number of changes of replicas."""
        self._clock = clock
        self._listed: set[str | None] = set()
        """The namespaces whose replicas have been listed; None: all."""
        self._services: dict[ServiceKey, Service] = {}
        self._replicas: dict[str, Replica] = {}
        self._ready: dict[ServiceKey, tuple[Replica, ...]] = {}
        self._names = ModelNames(pins or {})
        self._namespaces: Counter[str] = Counter()
        """The number of services in each."""
        self._service_names: Counter[str] = Counter()

    # Events in.

    def replace_services(self, items: Iterable[Object], namespace: str | None = None) -> None:
        """Replace all services of a namespace, None: of all, with this complete list."""
        found = {service.key: service for service in map(read_service, items)}
        for key in [key for key in self._services if namespace in (None, key.namespace)]:
            if key not in found:
                self._forget(key)
        for service in found.values():
            self._keep(service)

    def apply_service(self, item: Object) -> None:
        """Add or replace one service."""
        self._keep(read_service(item))

    def delete_service(self, item: Object) -> None:
        """Remove one service, if it is there."""
        self._forget(read_key(item))

    def replace_replicas(self, items: Iterable[Object], namespace: str | None = None) -> None:
        """Replace all replicas of a namespace, None: of all, with this complete list of Pods."""
        found = [self._note_ready(replica) for replica in map(read_replica, items) if replica]
        self._listed.add(namespace)
        self.num_changes += 1
        former = [one for one in self._replicas.values() if namespace in (None, one.key.namespace)]
        for replica in former:
            del self._replicas[replica.uid]
        self._replicas |= {replica.uid: replica for replica in found}
        for key in {replica.key for replica in (*former, *found)}:
            self._index(key)

    def apply_replica(self, item: Object) -> ServiceKey | None:
        """Add or replace one replica. Return its service; None if the pod is no replica."""
        replica = read_replica(item)
        noted = self._note_ready(replica) if replica else None
        self.delete_replica(item)
        if noted is None:
            return None
        self._replicas[noted.uid] = noted
        self._index(noted.key)
        return noted.key

    def delete_replica(self, item: Object) -> None:
        """Remove one replica, if it is there."""
        self.num_changes += 1
        former = self._replicas.pop(item["metadata"]["uid"], None)
        if former:
            self._index(former.key)

    # Lookups out.

    def find(self, key: ServiceKey) -> Route | None:
        """Return the route to one service by its namespace and name."""
        service = self._services.get(key)
        return Route((service,)) if service else None

    def find_model(self, model: str) -> Route | None:
        """Return the route of a request's `model`: a pinned name, `<namespace>/<name>`, or a served name."""
        if not self._names.is_pinned(model):
            namespace, slash, name = model.partition("/")
            exact = self.find(ServiceKey(namespace, name)) if slash else None
            if exact:
                return exact
        return self._find_short(model)

    def is_name_of(self, route: Route, model: str) -> bool:
        """Whether a model name means a service of this route, at the service's own address."""
        return any(self._names.is_name_of(model, service.key) for service in route.services)

    def ready_replicas(self, route: Route) -> tuple[Replica, ...]:
        """Return the replicas that can take a request now, with those that are marked to leave."""
        if len(route.services) == 1:
            return self._ready.get(route.services[0].key, ())
        return tuple(r for service in route.services for r in self._ready.get(service.key, ()))

    def renew(self, route: Route) -> Route | None:
        """Return the route with the present state of its services; None if all are deleted."""
        services = tuple(self._services[one.key] for one in route.services if one.key in self._services)
        return Route(services) if services else None

    def list_leaving(self) -> frozenset[str]:
        """Return the uids of replicas that get a new request only if there is no other."""
        return frozenset(replica.uid for replica in self._replicas.values() if replica.is_leaving)

    def list_ready(self) -> list[str]:
        """Return the uids of all replicas that can take a request now."""
        return [replica.uid for replicas in self._ready.values() for replica in replicas]

    def has_namespace(self, namespace: str) -> bool:
        """Whether any service lives in this namespace."""
        return namespace in self._namespaces

    def has_service_named(self, name: str) -> bool:
        """Whether a service of any namespace has this name."""
        return name in self._service_names

    @property
    def keys(self) -> frozenset[ServiceKey]:
        """Every service there is."""
        return frozenset(self._services)

    def list_models(self) -> dict[str, Route]:
        """Return routes by name: the short names, and `<namespace>/<name>` of services without one."""
        names = self._find_all(self._names.list_held())
        named = {service.key for route in names.values() for service in route.services}
        others = sorted(self._services.keys() - named)
        return names | {str(key): Route((self._services[key],)) for key in others}

    def list_pinned(self) -> dict[str, Route]:
        """Return the routes of the pinned names whose services exist."""
        return self._find_all(self._names.list_pinned())

    def _find_short(self, name: str) -> Route | None:
        services = [self._services[key] for key in self._names.find(name)]
        return Route(tuple(sorted(services, key=lambda one: one.age_rank))) if services else None

    def _find_all(self, names: Iterable[str]) -> dict[str, Route]:
        return {name: route for name in sorted(names) if (route := self._find_short(name))}

    def _keep(self, service: Service) -> None:
        if service.key not in self._services:
            self._namespaces[service.key.namespace] += 1
            self._service_names[service.key.name] += 1
        self._services[service.key] = service
        self._names.put(service.key, service.served_name)

    def _forget(self, key: ServiceKey) -> None:
        if self._services.pop(key, None):
            self._namespaces -= Counter({key.namespace: 1})  # what is zero goes
            self._service_names -= Counter({key.name: 1})
        self._names.remove(key)

    def _note_ready(self, replica: Replica) -> Replica:
        """Return the replica with the time at which it became Ready; replicas of the first list have none."""
        former = self._replicas.get(replica.uid)
        if former and former.is_ready:
            return replace(replica, ready_at=former.ready_at)
        is_new = not self._listed.isdisjoint((None, replica.key.namespace))
        return replace(replica, ready_at=self._clock()) if is_new else replica

    def _index(self, key: ServiceKey) -> None:
        ready = tuple(r for r in self._replicas.values() if r.key == key and r.is_ready)
        if ready:
            self._ready[key] = ready
        else:
            self._ready.pop(key, None)
        self._names.put_running(key, frozenset(r.served_name for r in ready if r.served_name is not None))

    def check_integrity(self) -> None:
        """Assert that every index agrees with the objects."""
        indexed = {replica.uid for replicas in self._ready.values() for replica in replicas}
        assert indexed == {uid for uid, replica in self._replicas.items() if replica.is_ready}
        assert self._namespaces == Counter(key.namespace for key in self._services)
        assert self._service_names == Counter(key.name for key in self._services)
        for route in self.list_models().values():
            assert len({service.key.namespace for service in route.services}) == 1
            assert all(self._services[service.key] is service for service in route.services)
