"""Lists what no watch has listed when leadership begins, and everything every ten minutes, to find ghosts.

A ghost is a cached object that is gone: a watch that was cut for long brings no DELETED event for it.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from millrace_operator.controller.cache import Cache
from millrace_operator.controller.oddities import tell_odd
from millrace_operator.controller.owners import owner_of
from millrace_operator.controller.queue import Cause, WorkQueue
from millrace_operator.controller.relist_schedule import Round, Rounds
from millrace_operator.kube.errors import RefusedError
from millrace_operator.kube.kinds import EVERYWHERE, Listing, Obj, Role, Scope
from millrace_operator.kube.protocol import Cluster
from millrace_runtime import contract

NOTHING = Listing([], 2**63)
"""Of a kind that is not there: whatever we hold of it is older."""


class Relisted(NamedTuple):
    """What came of listing."""

    num_ghosts: int
    missing: Mapping[Scope, str]
    """What may not be read of single namespaces, and why: they are gone, or their Role is not complete."""


async def relist(
    cluster: Cluster, cache: Cache, queue: WorkQueue, scopes: Iterable[Scope] = EVERYWHERE
) -> Relisted:
    """Replace these scopes by complete lists, and queue every service, also where a list fails.

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

    Raises ClusterError where that fails, but for what may not be read of a single namespace: one that is
    gone, or whose Role lacks a kind, must not keep the others from being looked after.

    Of an optional kind that is not there, or may not be read, nothing is known then; its watch has told so.
    """
    num_ghosts = 0
    missing: dict[Scope, str] = {}
    unread: dict[str, str] = {}
    """Namespaces whose services may not be read: no other kind of them is asked for."""
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
    tell_odd(swept.odd)
    _queue_owners(queue, [*swept.ghosts, *swept.edited], Cause.EVENT)
    _queue_owners(queue, swept.added, Cause.LISTING)
    return len(swept.ghosts)


def _queue_owners(queue: WorkQueue, objects: Iterable[Obj], cause: Cause) -> None:
    """Queue whom the watch is late to tell of: once it comes, its event is no news."""
    for obj in objects:
        owner = owner_of(obj)
        if owner is not None:
            queue.add(owner, cause)


def find_selector(scope: Scope) -> str | None:
    """Return the label that a scope's objects have where they belong to a service; None for all."""
    return contract.LABEL_SERVICE if scope.kind.role in (Role.CHILD, Role.POD) else None


async def wait_for_round(rounds: Rounds, has_lost: asyncio.Event) -> Round:
    """Wait until the next list is due, which is sooner where an event is lost meanwhile."""
    while (seconds := rounds.due_at - time.monotonic()) > 0:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await has_lost.wait()
                has_lost.clear()
                rounds.owe(Round.SERVICES, time.monotonic())
    return rounds.begin(time.monotonic())
