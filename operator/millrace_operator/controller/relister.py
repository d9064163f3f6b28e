"""Lists what no watch has listed when leadership begins, and everything every ten minutes, to find ghosts.

A ghost is a cached object that is gone: a watch that was interrupted for long brings no DELETED event for it.

After the loss of an event it lists the services again soon, because no watch brings that event again. A list
that fails is repeated soon. Each event of an unreadable object may be lost, and an API server may be away for
long, so each wait is twice as long as the one before. A quiet period resets it.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import IntEnum, auto
from typing import NamedTuple

from millrace_operator.controller.cache import Cache
from millrace_operator.controller.objects import log_unreadable, owner_of
from millrace_operator.controller.queue import Cause, WorkQueue
from millrace_operator.controller.watch_recorder import WatchedLists
from millrace_operator.kube.errors import ClusterError, RefusedError
from millrace_operator.kube.kinds import EVERYWHERE, Listing, Obj, Role, Scope
from millrace_operator.kube.protocol import Cluster
from millrace_runtime import contract

PERIOD_SECONDS = 600.0
LOST_SECONDS = 10.0
"""From the first lost event to the list that makes up for it."""
SPREAD = 0.1
"""Chance makes the period longer or shorter by up to this part, so that replicas do not list together."""


LOG = logging.getLogger(__name__)


class Round(IntEnum):
    """The extent of a list. If two are owed, the larger one makes up for both; it stands later here."""

    SERVICES = auto()
    """Only events of services can be lost for good: all other watches list again after any failure."""
    EVERYTHING = auto()


class Rounds:
    """Owner of the time of the next list. All times are in seconds of one clock that never goes back."""

    def __init__(self, now: float, draw: Callable[[], float]) -> None:
        """`draw` returns the chance in a period, from 0 to 1."""
        self._draw = draw
        self._regular_at = now + self._draw_period()
        self._repair_at = math.inf
        """When a list is due that makes up for something; infinity if none is."""
        self._owed = Round.SERVICES
        """The extent of that list."""
        self._repair_wait = LOST_SECONDS
        self._is_quiet = True
        """Whether nothing has been owed since the last regular list."""

    @property
    def due_at(self) -> float:
        """When the next list is due."""
        return min(self._regular_at, self._repair_at)

    def owe(self, what: Round, now: float) -> None:
        """Record that a list is owed, because an event was lost or an owed list has failed."""
        self._is_quiet = False
        self._owed = max(self._owed, what)
        if self._repair_at == math.inf:
            self._repair_at = now + self._repair_wait
            self._repair_wait = min(2.0 * self._repair_wait, PERIOD_SECONDS)

    def begin(self, now: float) -> Round:
        """Return the list to make now. A loss after this call needs another list."""
        is_regular = now >= self._regular_at
        found = Round.EVERYTHING if is_regular else self._owed
        if is_regular:
            self._repair_wait = LOST_SECONDS if self._is_quiet else self._repair_wait
            self._is_quiet = True
        if found is Round.EVERYTHING:
            self._regular_at = now + self._draw_period()
        self._repair_at, self._owed = math.inf, Round.SERVICES
        return found

    def _draw_period(self) -> float:
        return PERIOD_SECONDS * (1.0 + SPREAD * (2.0 * self._draw() - 1.0))


NOTHING = Listing([], 2**63)
"""The list of an absent kind: everything that the cache has of it is older."""


class Relisted(NamedTuple):
    """The results of lists."""

    num_ghosts: int
    missing: Mapping[Scope, str]
    """Scopes of single namespaces that may not be read, and why: a namespace is gone, or its Role
    incomplete.
    """


class Relister:
    """Makes the lists of one operator. It calls `on_listed` with the results of each."""

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        queue: WorkQueue,
        *,
        lists: WatchedLists,
        has_lost: asyncio.Event,
        on_listed: Callable[[Relisted], None],
    ) -> None:
        """A watch sets `has_lost` when it has lost an event."""
        self._cluster = cluster
        self._cache = cache
        self._queue = queue
        self._lists = lists
        self._has_lost = has_lost
        self._on_listed = on_listed
        self._is_listing = asyncio.Lock()
        self._logged: set[str] = set()
        """The namespaces that are left out and the reasons, as the log has them."""

    async def run(self) -> None:
        """List periodically, until cancelled. A list that fails is repeated soon."""
        rounds = Rounds(time.monotonic(), random.random)
        while True:
            due = await wait_for_round(rounds, self._has_lost)
            try:
                await (
                    self._list_all(self._lists.scopes) if due is Round.EVERYTHING else self._list_services()
                )
            except Exception as error:  # no error of any kind may end these lists
                rounds.owe(due, time.monotonic())
                is_known = isinstance(error, ClusterError)
                seconds = rounds.due_at - time.monotonic()
                LOG.warning("relist failed: %s; again in %.0f s", error, seconds, exc_info=not is_known)

    async def list_unlisted(self) -> None:
        """List what no watch has listed. Raises ClusterError as `relist_changes` does."""
        await self._list_all(self._lists.find_unlisted())

    async def _list_all(self, scopes: Iterable[Scope]) -> None:
        async with self._is_listing:
            found = await relist(self._cluster, self._cache, self._queue, scopes)
        self._lists.note_missing(found.missing)
        self._log_missing(found.missing)
        self._on_listed(found)

    async def _list_services(self) -> None:
        """List only the services. An unreadable namespace is left to the next list of everything."""
        scopes = [scope for scope in self._lists.scopes if scope.kind.role is Role.SERVICE]
        async with self._is_listing:
            found = await relist_changes(self._cluster, self._cache, self._queue, scopes)
        self._on_listed(found)

    def _log_missing(self, missing: Mapping[Scope, str]) -> None:
        """Log once why the operator leaves a namespace out. The watches there keep trying to read it."""
        texts = {f"namespace {scope.namespace} is left out: {why}" for scope, why in missing.items()}
        for text in sorted(texts - self._logged):
            LOG.warning("%s", text)
        self._logged = texts


async def relist(
    cluster: Cluster, cache: Cache, queue: WorkQueue, scopes: Iterable[Scope] = EVERYWHERE
) -> Relisted:
    """Replace these scopes by complete lists, and queue every service, even if a list fails.

    Raises ClusterError as `relist_changes` does.
    """
    try:
        return await relist_changes(cluster, cache, queue, scopes)
    finally:
        for key in cache.service_keys():
            queue.add(key, Cause.LISTING)


async def relist_changes(
    cluster: Cluster, cache: Cache, queue: WorkQueue, scopes: Iterable[Scope]
) -> Relisted:
    """Replace these scopes by complete lists, and queue the services that this changes.

    Raises ClusterError if that fails. A single namespace that is gone, or whose Role lacks a kind, is no
    failure: the operator still looks after the others.

    An optional kind that is absent or may not be read is then unknown; its watch has logged that.
    """
    num_ghosts = 0
    missing: dict[Scope, str] = {}
    unread: dict[str, str] = {}
    """Namespaces whose services may not be read. Their other kinds are not listed."""
    for scope in sorted(scopes, key=lambda scope: scope.kind.role is not Role.SERVICE):
        if scope.namespace in unread:
            missing[scope] = unread[scope.namespace]
            continue
        try:
            num_ghosts += await _relist_scope(cluster, cache, queue, scope)
        except RefusedError as error:
            if scope.namespace is None:
                raise
            missing[scope] = str(error)
            if scope.kind.role is Role.SERVICE:
                unread[scope.namespace] = str(error)
    return Relisted(num_ghosts, missing)


async def _relist_scope(cluster: Cluster, cache: Cache, queue: WorkQueue, scope: Scope) -> int:
    """Replace a scope by a complete list, and return how many objects were gone."""
    try:
        with cache.noting_ends():
            swept = cache.sweep(scope, await cluster.fetch_all(scope, find_selector(scope)))
    except RefusedError:
        if not scope.kind.is_optional:
            raise
        cache.sweep(scope, NOTHING)
        return 0
    log_unreadable(swept.unreadable)
    _queue_owners(queue, [*swept.ghosts, *swept.edited], Cause.EVENT)
    _queue_owners(queue, swept.added, Cause.LISTING)
    return len(swept.ghosts)


def _queue_owners(queue: WorkQueue, objects: Iterable[Obj], cause: Cause) -> None:
    """Queue the owners of objects that the list saw before the watch: the watch's event will be no news."""
    for obj in objects:
        owner = owner_of(obj)
        if owner is not None:
            queue.add(owner, cause)


def find_selector(scope: Scope) -> str | None:
    """Return the label that selects a scope's objects of services; None for a scope without it."""
    return contract.LABEL_SERVICE if scope.kind.role in (Role.CHILD, Role.POD) else None


async def wait_for_round(rounds: Rounds, has_lost: asyncio.Event) -> Round:
    """Wait until the next list is due. A lost event makes it due sooner."""
    while (seconds := rounds.due_at - time.monotonic()) > 0:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await has_lost.wait()
                has_lost.clear()
                rounds.owe(Round.SERVICES, time.monotonic())
    return rounds.begin(time.monotonic())
