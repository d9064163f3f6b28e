"""Records what watches report: objects enter the cache, and their owners' keys the queue.

It also knows which watches live, and which complete lists have come.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from millrace_operator.controller.cache import Cache
from millrace_operator.controller.objects import is_late, log_unreadable, owner_of
from millrace_operator.controller.queue import Cause, WorkQueue
from millrace_operator.controller.relevant_changes import is_news
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


class WatchHealth:
    """Whether the watches live. Times are seconds of `clock`, which never goes back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._expected_since: dict[str, float] = {}
        """By kind, since when an event is due: each kind has a watch of its own, which may die alone."""
        self._lived_at: dict[Scope, float] = {}
        """When the watch of each scope that we follow ourselves gave its last sign of life."""
        self._failing: set[Scope] = set()
        """The scopes whose watch failed in its last try."""
        self._away_until = -math.inf
        """When all of them failed last: the API server was away, and no event could come."""
        self.last_event_at = clock()

    def expect_event(self, kind: str) -> None:
        """Record that a write of ours succeeded, so that an event of this kind is due."""
        self._expected_since.setdefault(kind, self._clock())

    def note_event(self, kind: Kind) -> None:
        """Record that an event of this kind came.

        Those of nodes don't count for `last_event_at`: they come every few seconds while all else is silent.
        """
        if kind.role is not Role.NODE:
            self.last_event_at = self._clock()
        self._expected_since.pop(kind.kind, None)

    def note_list(self, kind: Kind) -> None:
        """Record that a complete list of this kind came."""
        self.last_event_at = self._clock()
        self._expected_since.pop(kind.kind, None)

    def note_life(self, scope: Scope) -> None:
        """Record that the watch of this scope goes on."""
        now = self._clock()
        if self._is_away():
            self._away_until = now
        self._failing.discard(scope)
        self._lived_at[scope] = now

    def note_failure(self, scope: Scope) -> None:
        """Record that the watch of this scope goes on, and that its last try failed."""
        self.note_life(scope)
        self._failing.add(scope)

    def overdue_seconds(self) -> float:
        """Return how long the event after a write of ours has not come; 0 when none is due.

        None is due while all watches fail in their tries: then the API server is away, and we are well.
        """
        if not self._expected_since or self._is_away():
            return 0.0
        return self._clock() - max(self._away_until, min(self._expected_since.values()))

    def silent_seconds(self) -> float:
        """Return for how long the quietest watch has shown no life: no event, bookmark, list or failed try.

        It needs no write of ours, so it works on a replica that does not lead, and for each namespace alone.
        Kopf's watch is not among them: it ends by itself without a bookmark for 70 s, and is started again.
        """
        return self._clock() - min(self._lived_at.values()) if self._lived_at else 0.0

    def _is_away(self) -> bool:
        return bool(self._lived_at) and self._failing >= self._lived_at.keys()


class WatchedLists:
    """Which scopes have been listed completely by a watch, and which lists are on their way."""

    def __init__(self, scopes: Sequence[Scope]) -> None:
        self.scopes = scopes
        """All that the operator looks after."""
        self._listed: set[Scope] = set()
        self._awaited: set[Scope] = set()
        self._missing: set[Scope] = set()
        self._is_complete = asyncio.Event()
        self._is_complete.set()

    def expect(self, scope: Scope) -> None:
        """Record that a complete list of this scope is on its way."""
        self._awaited.add(scope)
        self._is_complete.clear()

    def note(self, scope: Scope) -> None:
        """Record that a watch has brought a complete list of this scope."""
        self._listed.add(scope)
        self._missing.discard(scope)
        self.give_up(scope)

    def give_up(self, scope: Scope) -> None:
        """Record that no list comes: the namespace is gone, or there is no Role in it."""
        self._awaited.discard(scope)
        if not self._awaited:
            self._is_complete.set()

    def note_missing(self, scopes: Iterable[Scope]) -> None:
        """Record that nothing is known of these scopes until a watch lists them."""
        self._missing = set(scopes) - self._listed

    async def wait(self, seconds: float) -> None:
        """Wait until every list that is on its way has come, but at most for so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_complete.wait()

    @property
    def lacks_any(self) -> bool:
        """Whether a watch has yet to list a scope, so that objects may be there which nobody has seen."""
        return any(scope not in self._listed for scope in self.scopes if not scope.kind.is_optional)

    def is_known(self, namespace: str) -> bool:
        """Whether all kinds of a namespace have been listed, so that no plan is made of half of them."""
        return not self._missing or not any(
            scope.namespace in (None, namespace) and scope.kind.role is not Role.SERVICE
            for scope in self._missing
        )

    def find_unlisted(self) -> list[Scope]:
        """Return the scopes of which no watch has brought a complete list, and each change since then."""
        return [scope for scope in self.scopes if scope not in self._listed]


class WatchRecorder:
    """Puts watched objects into the cache and their owners' keys into the queue."""

    def __init__(
        self,
        cache: Cache,
        queue: WorkQueue,
        clock: Callable[[], float] = time.monotonic,
        *,
        scopes: Sequence[Scope] = EVERYWHERE,
    ) -> None:
        """`scopes` are all objects that the operator looks after."""
        self._cache = cache
        self._queue = queue
        self.health = WatchHealth(clock)
        self.lists = WatchedLists(scopes)
        self.has_lost = asyncio.Event()
        """Set when an event was not recorded. Kopf never repeats it, so the relister lists the services."""

    def put_written(self, obj: Obj) -> bool:
        """Put the result of a write into the cache. Return whether it is new: then an event is due."""
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
            self._queue.add(owner, _find_cause(event_type))

    @contextlib.contextmanager
    def _watching_nodes(self, kind: Kind, name: str | None = None) -> Iterator[None]:
        """Queue the services that a change of nodes affects, made while entered: of one node, or of a list.

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
        """Return the services without room for their model that may have room after these changes."""
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


def _find_cause(event_type: str | None) -> Cause:
    """Return the cause with which an event queues its owner."""
    return Cause.LISTING if event_type is None else Cause.EVENT
