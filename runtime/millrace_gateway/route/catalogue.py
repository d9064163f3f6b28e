"""The services and replicas of the cluster, and the route of a model name. Pure: events in, lookups out.

A service has a Host, the name `<namespace>/<name>`, and served names: that of its spec, and those of its
Ready replicas. A served name leads to a service if only services of one namespace claim it, or if the
platform pins the name to the service. Services of one namespace with the same served name share its requests.

An event costs the same in a large cluster. Lookups make no objects: a route is made when a service changes,
or a name of several services is first asked for.
"""

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from millrace_gateway.route.objects import Object, Replica, Service, ServiceKey, read_key, read_service
from millrace_gateway.route.replicas import Replicas
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
    def namespace(self) -> str:
        """The namespace of all of them."""
        return self.services[0].key.namespace

    @cached_property
    def sleeper(self) -> Service:
        """The service that a request wakes if the route has no replica."""
        return max(self.services, key=lambda service: service.hold_seconds > 0)


class Catalogue:
    """Owner of the services and replicas as last seen. Lookups never wait and never raise.

    `clock` returns the seconds of a monotonic clock. `pins` has the services of pinned names.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        pins: Mapping[str, ServiceKey] | None = None,
    ) -> None:
        self._services: dict[ServiceKey, Service] = {}
        self._routes: dict[ServiceKey, Route] = {}
        """The route to each service alone."""
        self._shared: dict[str, Route] = {}
        """The routes of names that several services have, as far as they were asked for."""
        self._names = ModelNames(pins or {})
        self._replicas = Replicas(clock, self._put_running)
        self._namespaces: Counter[str] = Counter()
        """The number of services in each."""
        self._service_names: Counter[str] = Counter()

    @property
    def on_gone(self) -> Callable[[str], None]:
        """It gets the uid of each replica whose Pod object is deleted: its requests can only fail."""
        return self._replicas.on_gone

    @on_gone.setter
    def on_gone(self, subscriber: Callable[[str], None]) -> None:
        self._replicas.on_gone = subscriber

    @property
    def num_changes(self) -> int:
        """Number of changes of replicas."""
        return self._replicas.num_changes

    # Events in.

    def replace_services(self, items: Iterable[Object], namespace: str | None = None) -> None:
        """Replace all services of a namespace, None: of all, with this complete list."""
        for _ in self.replacing_services(items, namespace):
            pass

    def replacing_services(self, items: Iterable[Object], namespace: str | None) -> Iterator[None]:
        """Replace all services of a namespace, None: of all, with this complete list, in short steps."""
        listed: set[ServiceKey] = set()
        for item in items:
            listed.add(read_key(item))
            self.apply_service(item)
            yield
        for key in [key for key in self._services if key not in listed]:
            if namespace in (None, key.namespace):
                self._forget(key)
                yield

    def apply_service(self, item: Object) -> None:
        """Add or replace one service."""
        service = read_service(item)
        if service != self._services.get(service.key):
            self._keep(service)

    def delete_service(self, item: Object) -> None:
        """Remove one service, if it is there."""
        self._forget(read_key(item))

    def replace_replicas(self, items: Iterable[Object], namespace: str | None = None) -> None:
        """Replace all replicas of a namespace, None: of all, with this complete list of Pods."""
        for _ in self.replacing_replicas(items, namespace):
            pass

    def replacing_replicas(self, items: Iterable[Object], namespace: str | None) -> Iterator[None]:
        """Replace all replicas of a namespace, None: of all, with this list of Pods, in short steps."""
        return self._replicas.replace(items, namespace)

    def apply_replica(self, item: Object) -> ServiceKey | None:
        """Add or replace one replica. Return its service; None if the pod is no replica."""
        return self._replicas.apply(item)

    def delete_replica(self, item: Object) -> None:
        """Remove one replica, if it is there."""
        self._replicas.delete(item)

    # Lookups out.

    def find(self, key: ServiceKey) -> Route | None:
        """Return the route to one service by its namespace and name."""
        return self._routes.get(key)

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
        list_ready = self._replicas.list_ready
        if len(route.services) == 1:
            return list_ready(route.services[0].key)
        return tuple(replica for service in route.services for replica in list_ready(service.key))

    def list_replicas(self, key: ServiceKey) -> tuple[Replica, ...]:
        """Return the Ready replicas of one service."""
        return self._replicas.list_ready(key)

    def renew(self, route: Route) -> Route | None:
        """Return the route with the present state of its services; None if all are deleted."""
        present = [self._services[one.key] for one in route.services if one.key in self._services]
        if len(present) == 1:
            return self._routes[present[0].key]
        if len(present) == len(route.services) and all(map(operator.is_, present, route.services)):
            return route
        return Route(tuple(present)) if present else None

    def list_leaving(self) -> frozenset[str]:
        """Return the uids of replicas that get a new request only if there is no other."""
        return frozenset(self._replicas.leaving)

    def list_ready(self) -> list[str]:
        """Return the uids of all replicas that can take a request now."""
        return self._replicas.list_all_ready()

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
        return names | {str(key): self._routes[key] for key in others}

    def list_pinned(self) -> dict[str, Route]:
        """Return the routes of the pinned names whose services exist."""
        return self._find_all(self._names.list_pinned())

    def _find_short(self, name: str) -> Route | None:
        route = self._shared.get(name)
        if route is not None:
            return route
        keys = self._names.find(name)
        if len(keys) < 2:
            return self._routes[keys[0]] if keys else None
        services = sorted((self._services[key] for key in keys), key=lambda one: one.age_rank)
        self._shared[name] = route = Route(tuple(services))
        return route

    def _find_all(self, names: Iterable[str]) -> dict[str, Route]:
        return {name: route for name in sorted(names) if (route := self._find_short(name))}

    def _keep(self, service: Service) -> None:
        key = service.key
        if key not in self._services:
            self._namespaces[key.namespace] += 1
            self._service_names[key.name] += 1
        self._forget_shared(key)
        self._services[key] = service
        self._routes[key] = Route((service,))
        self._names.put(key, service.served_name)
        self._forget_shared(key)

    def _forget(self, key: ServiceKey) -> None:
        if self._services.pop(key, None) is None:
            return
        del self._routes[key]
        self._forget_shared(key)
        self._names.remove(key)
        for counts, name in ((self._namespaces, key.namespace), (self._service_names, key.name)):
            counts[name] -= 1
            if not counts[name]:
                del counts[name]

    def _put_running(self, key: ServiceKey, names: frozenset[str]) -> None:
        before = self._names.list_claimed(key)
        self._names.put_running(key, names)
        for name in before ^ self._names.list_claimed(key):
            self._shared.pop(name, None)

    def _forget_shared(self, key: ServiceKey) -> None:
        """Forget the shared routes of all names that a service claims."""
        for name in self._names.list_claimed(key):
            self._shared.pop(name, None)

    def check_integrity(self) -> None:
        """Assert that every index agrees with the objects."""
        self._replicas.check_integrity()
        assert self._namespaces == Counter(key.namespace for key in self._services)
        assert self._service_names == Counter(key.name for key in self._services)
        assert self._routes == {key: Route((service,)) for key, service in self._services.items()}
        for name, shared in self._shared.items():
            assert {service.key for service in shared.services} == set(self._names.find(name))
        for route in self.list_models().values():
            assert len({service.key.namespace for service in route.services}) == 1
            assert all(self._services[service.key] is service for service in route.services)
