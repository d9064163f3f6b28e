"""What watches report goes into the cache, and its owner's key into the queue. Kopf's watch is of services.

Kopf never calls a failed event handler again. So this does no I/O, and no odd object makes it fail.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import math
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import kopf

from millrace_operator.controller.cache import Cache
from millrace_operator.controller.changes import is_late, is_news
from millrace_operator.controller.owners import owner_of, tell_odd
from millrace_operator.controller.queue import Cause, WorkQueue
from millrace_operator.kube.kinds import (
    EVERYWHERE,
    INFERENCE_SERVICE,
    Kind,
    Listing,
    Obj,
    Role,
    Scope,
    ServiceKey,
)
from millrace_operator.kube.node import GpuNode
from millrace_operator.model.gpu_candidates import read_candidate

RecordEvent = Callable[[Kind, str | None, Obj], None]
"""Called with the kind, the event's type (None: a first listing) and the object."""


class Ingest:
    """Puts watched objects into the cache and their owners' keys into the queue."""

    def __init__(
        self,
        cache: Cache,
        queue: WorkQueue,
        clock: Callable[[], float] = time.monotonic,
        *,
        scopes: Sequence[Scope] = EVERYWHERE,
    ) -> None:
        self.scopes = scopes
        """What is looked after."""
        self._cache = cache
        self._queue = queue
        self._clock = clock
        self._expected_since: dict[str, float] = {}
        """By kind, since when an event is due: each kind has a watch of its own, which may die alone."""
        self._lived_at: dict[Scope, float] = {}
        """When the watch of each scope that we follow ourselves gave its last sign of life."""
        self._failing: set[Scope] = set()
        """Those of which the last try failed."""
        self._away_until = -math.inf
        """When all of them failed last: the API server was away, and no event could come."""
        self._listed: set[Scope] = set()
        self._awaited: set[Scope] = set()
        self._missing: set[Scope] = set()
        self._is_listed = asyncio.Event()
        self._is_listed.set()
        self.last_event_at = clock()
        self.has_lost = asyncio.Event()
        """Set where an event could not be recorded. Kopf never brings it again, so services are listed."""

    def put_written(self, obj: Obj) -> bool:
        """Put what a write of ours returned into the cache. Return whether it is new: so an event is due."""
        is_gone = self._cache.has_noted_end(obj) or is_late(self._cache.find(obj), obj)
        is_new = not is_gone and self._cache.put(obj)
        if is_new:
            self._expected_since.setdefault(obj["kind"], self._clock())
        return is_new

    def overdue_seconds(self) -> float:
        """Return how long the event after a write of ours has not come; 0 when none is due.

        None is while all watches say that they try and fail: then the API server is away, and we are well.
        """
        if not self._expected_since or self._is_away():
            return 0.0
        return self._clock() - max(self._away_until, min(self._expected_since.values()))

    def _is_away(self) -> bool:
        return bool(self._lived_at) and self._failing >= self._lived_at.keys()

    def expect_list(self, scope: Scope) -> None:
        """Know that a watch of this scope begins, and that a complete list of it is on its way."""
        self._awaited.add(scope)
        self._is_listed.clear()
        self.note_life(scope)

    def note_life(self, scope: Scope) -> None:
        """Know that the watch of this scope goes on."""
        now = self._clock()
        if self._is_away():
            self._away_until = now
        self._failing.discard(scope)
        self._lived_at[scope] = now

    def note_failure(self, scope: Scope) -> None:
        """Know that the watch of this scope goes on, and that its last try failed."""
        self.note_life(scope)
        self._failing.add(scope)

    def silent_seconds(self) -> float:
        """Return how long the stillest watch has shown no life: no event, bookmark, list or failed try.

        It needs no write of ours, so it tells on a replica that does not lead, and for each namespace alone.
        Kopf's watch is not among them: it ends by itself without a bookmark for 70 s, and is started again.
        """
        return self._clock() - min(self._lived_at.values()) if self._lived_at else 0.0

    async def wait_for_lists(self, seconds: float) -> None:
        """Wait until every list that is on its way has come, but no longer than so."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_listed.wait()

    def give_up_list(self, scope: Scope) -> None:
        """Know that a list does not come: its namespace is gone, or there is no Role in it."""
        self._awaited.discard(scope)
        if not self._awaited:
            self._is_listed.set()

    def is_known(self, namespace: str) -> bool:
        """Whether all kinds of a namespace have been listed, so that no plan is made of half of them."""
        return not self._missing or not any(
            scope.namespace in (None, namespace) and scope.kind.role is not Role.SERVICE
            for scope in self._missing
        )

    def note_missing(self, scopes: Iterable[Scope]) -> None:
        """Know that nothing is known of these scopes until a watch lists them."""
        self._missing = set(scopes) - self._listed

    def find_unlisted(self) -> list[Scope]:
        """Return the scopes of which no watch has brought a complete list, and each change since then."""
        return [scope for scope in self.scopes if scope not in self._listed]

    def record_list(self, scope: Scope, listing: Listing) -> None:
        """Record a watch's complete list of a scope: what the cache has of it beside that is gone."""
        self._listed.add(scope)
        self._missing.discard(scope)
        self._awaited.discard(scope)
        if not self._awaited:
            self._is_listed.set()
        self.last_event_at = self._clock()
        self._expected_since.pop(scope.kind.kind, None)
        with self._watching_nodes(scope.kind):
            swept = self._cache.sweep(scope, listing)
        tell_odd(swept.odd)
        for obj in (*swept.ghosts, *swept.known):
            owner = owner_of(obj)
            if owner is not None:
                self._queue.add(owner, Cause.LISTING)

    def record_event(self, kind: Kind, event_type: str | None, raw: Obj) -> None:
        """Record one event of a watch. Its type is None for an object of the first listing.

        A node's are none of the last event's age: they come every few seconds, whatever else is silent.
        """
        if kind.role is not Role.NODE:
            self.last_event_at = self._clock()
        self._expected_since.pop(kind.kind, None)
        obj = {**raw, "apiVersion": kind.api_version, "kind": kind.kind}
        owner, before = owner_of(obj), self._cache.find(obj)
        with self._watching_nodes(kind, raw["metadata"]["name"]):
            if event_type == "DELETED":
                self._cache.forget(obj)
            else:
                self._cache.put(obj)
        if owner is not None and (event_type is None or is_news(before, self._cache.find(obj))):
            self._queue.add(owner, find_cause(event_type))

    @contextlib.contextmanager
    def _watching_nodes(self, kind: Kind, name: str | None = None) -> Iterator[None]:
        """Queue the services that a change inside concerns, of one node or of a list of them.

        Those are the ones on nodes of which it changes whether they are being emptied, and those of which no
        pod was made as their model fits on no node, where such a node's GPUs change.
        """
        if kind.role is not Role.NODE:
            yield
            return
        departures, gpus = dict(self._cache.departures()), self._see_gpus(name)
        yield
        changed = {name for name, _ in departures.items() ^ self._cache.departures().items()}
        for key in self._cache.services_on(changed) if changed else ():
            self._queue.add(key)
        for key in self._find_concerned(gpus, self._see_gpus(name)):
            self._queue.add(key)

    def _see_gpus(self, name: str | None) -> dict[str, GpuNode]:
        """Return the GPUs of one node, or of all: one of thousands of nodes changes many times a second."""
        nodes = self._cache.gpu_nodes()
        names = nodes.keys() if name is None else nodes.keys() & {name}
        return {name: nodes[name] for name in names}

    def _find_concerned(
        self, before: Mapping[str, GpuNode], after: Mapping[str, GpuNode]
    ) -> list[ServiceKey]:
        """Return the services without room for their model that may find another answer now."""
        names = before.keys() | after.keys()
        changes = [(before.get(name), after.get(name)) for name in names]
        changes = [(old, new) for old, new in changes if old != new]
        return [
            key
            for key in (self._cache.services_without_room() if changes else ())
            if self._is_concerned(key, changes)
        ]

    def _is_concerned(self, key: ServiceKey, changes: list[tuple[GpuNode | None, GpuNode | None]]) -> bool:
        try:
            spec = self._cache.spec(key)
        except ValueError:
            return False  # what nobody can read asks for no node
        return any(read_candidate(spec, old) != read_candidate(spec, new) for old, new in changes)


def find_cause(event_type: str | None) -> Cause:
    """Return why an event queues its owner."""
    return Cause.LISTING if event_type is None else Cause.EVENT


def build_registry(record_event: RecordEvent) -> kopf.OperatorRegistry:
    """Return a registry with the login and a handler of the services' events."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)  # type: ignore[untyped-decorator]
    def login(**kwargs: Any) -> Any:
        found = kopf.login_with_service_account(**kwargs)
        return kopf.login_with_kubeconfig(**kwargs) if found is None else _at_service_address(found)

    kind = INFERENCE_SERVICE

    @kopf.on.event(kind.group, kind.version, kind.plural, registry=registry)  # type: ignore[untyped-decorator]
    async def handle(event: Any, **_: Any) -> None:
        record_event(kind, event["type"], event["object"])  # which Kopf only reads, and the cache copies

    return registry


def _at_service_address(found: Any) -> Any:
    """Return the login with the API server's address, as our other client uses it, instead of a DNS name."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        return found
    return dataclasses.replace(found, server=f"https://{f'[{host}]' if ':' in host else host}:{port}")


def _draw_waits() -> Iterator[float]:
    """Yield, without end, the seconds between two tries of an API server that is away: at most 10."""
    first = (0.5, 1.0, 2.0, 4.0)
    return (wait * random.uniform(0.8, 1.2) for wait in itertools.chain(first, itertools.repeat(8.0)))  # noqa: S311


class Backoffs:
    """The waits as Kopf needs them: it begins them anew for each request."""

    def __iter__(self) -> Iterator[float]:
        return _draw_waits()


class NoEssence(kopf.DiffBaseStorage):  # type: ignore[misc]
    """Keeps nothing for handlers of differences, as there are none. Kopf copies each object for them."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        """Return nothing."""
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        """Return nothing."""

    def store(self, **_: Any) -> None:
        """Keep nothing."""


def build_settings() -> kopf.OperatorSettings:
    """Return settings that let Kopf only watch: no scanning, no posting."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = NoEssence()
    settings.watching.chunk_size = 500
    settings.queueing.idle_timeout = 1.0
    settings.watching.server_timeout = 300
    settings.networking.error_backoffs = Backoffs()
    return settings
