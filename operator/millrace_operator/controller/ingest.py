"""Puts what watches report into the cache, and its owner's key into the queue."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from millrace_operator.controller.cache import Cache
from millrace_operator.controller.objects import is_late, is_news, log_unreadable, owner_of
from millrace_operator.controller.queue import Cause, WorkQueue
from millrace_operator.controller.watch_state import WatchedLists, WatchHealth
from millrace_operator.kube.kinds import (
    EVERYWHERE,
    Kind,
    Listing,
    Obj,
    Role,
    Scope,
    ServiceKey,
)
from millrace_operator.kube.node import GpuNode
from millrace_operator.model.fit import read_candidate


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
        """The operator looks after `scopes`."""
        self._cache = cache
        self._queue = queue
        self.health = WatchHealth(clock)
        self.lists = WatchedLists(scopes)
        self.has_lost = asyncio.Event()
        """Set when an event could not be recorded. Kopf never repeats it, so the services are listed."""

    def put_written(self, obj: Obj) -> bool:
        """Put the result of a write into the cache. Return whether it is new, so that an event is due."""
        is_gone = self._cache.has_noted_end(obj) or is_late(self._cache.find(obj), obj)
        is_new = not is_gone and self._cache.put(obj)
        if is_new:
            self.health.expect_event(obj["kind"])
        return is_new

    def expect_list(self, scope: Scope) -> None:
        """Record that a watch of this scope begins, with a complete list."""
        self.lists.expect(scope)
        self.health.note_life(scope)

    def record_list(self, scope: Scope, listing: Listing) -> None:
        """Record a watch's complete list of a scope. Other objects of the scope in the cache are gone."""
        self.lists.note(scope)
        self.health.note_list(scope.kind)
        with self._watching_nodes(scope.kind):
            swept = self._cache.sweep(scope, listing)
        log_unreadable(swept.unreadable)
        for obj in (*swept.ghosts, *swept.known):
            owner = owner_of(obj)
            if owner is not None:
                self._queue.add(owner, Cause.LISTING)

    def record_event(self, kind: Kind, event_type: str | None, raw: Obj) -> None:
        """Record an event of a watch. Its type is None for an object of the first listing."""
        self.health.note_event(kind)
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
        """Queue the services that a change of nodes inside affects: of one node, or of a list of them.

        A service is affected if its pods are on a node that begins or ceases to be emptied. A service that
        has no pod because its model fits on no node is affected by a change of such a node's GPUs.
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
        """Return the GPUs of one node, or of all. One of thousands of nodes changes many times a second."""
        nodes = self._cache.gpu_nodes()
        names = nodes.keys() if name is None else nodes.keys() & {name}
        return {name: nodes[name] for name in names}

    def _find_concerned(
        self, before: Mapping[str, GpuNode], after: Mapping[str, GpuNode]
    ) -> list[ServiceKey]:
        """Return the services without room for their model to which these changes may give another answer."""
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
            return False  # an unreadable spec asks for no node
        return any(read_candidate(spec, old) != read_candidate(spec, new) for old, new in changes)


def find_cause(event_type: str | None) -> Cause:
    """Return the cause with which an event queues its owner."""
    return Cause.LISTING if event_type is None else Cause.EVENT
