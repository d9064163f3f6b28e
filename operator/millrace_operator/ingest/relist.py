"""Lists what no watch has listed when leadership begins, and everything every ten minutes, to find ghosts.

A ghost is a cached object that is gone: a watch that was cut for long brings no DELETED event for it.
"""

import asyncio
import logging
import random
from collections.abc import Iterable
from typing import NamedTuple

from millrace_operator.cluster.errors import RefusedError
from millrace_operator.cluster.kinds import EVERYWHERE, Listing, Obj, Role, Scope
from millrace_operator.cluster.protocol import Cluster
from millrace_operator.ingest.cache import Cache, owner_of
from millrace_operator.ingest.queue import WorkQueue
from millrace_runtime import contract

PERIOD_SECONDS = 600.0
NOTHING = Listing([], 2**63)
"""Of a kind that is not there: whatever we hold of it is older."""
LOG = logging.getLogger(__name__)


class Relisted(NamedTuple):
    """What came of listing."""

    num_ghosts: int
    missing: tuple[Scope, ...]
    """Those of namespaces that may not be read: they are gone, or have no Role."""


async def relist(
    cluster: Cluster, cache: Cache, queue: WorkQueue, scopes: Iterable[Scope] = EVERYWHERE
) -> Relisted:
    """Replace these scopes by complete lists, and queue every service, also where a list fails.

    Raises ClusterError where that fails, but for a namespace whose services may not be read: one that is
    gone must not keep the others from being looked after. Of an optional kind that is not there, or may not
    be read, nothing is known then; its watch has told so.
    """
    num_ghosts = 0
    missing: list[Scope] = []
    try:
        for scope in sorted(scopes, key=lambda scope: scope.kind.role is not Role.SERVICE):
            if scope.namespace in {one.namespace for one in missing}:
                missing.append(scope)
                continue
            try:
                num_ghosts += await _relist_scope(cluster, cache, queue, scope)
            except RefusedError as error:
                if scope.namespace is None or scope.kind.role is not Role.SERVICE:
                    raise
                LOG.warning("namespace %s is left out: %s", scope.namespace, error)
                missing.append(scope)
    finally:
        for key in cache.service_keys():
            queue.add(key, is_urgent=False)
    return Relisted(num_ghosts, tuple(missing))


async def _relist_scope(cluster: Cluster, cache: Cache, queue: WorkQueue, scope: Scope) -> int:
    """Replace a scope by a complete list, and return how many objects were gone."""
    try:
        with cache.listing():
            swept = cache.sweep(scope, await cluster.fetch_all(scope, find_selector(scope)))
    except RefusedError:
        if not scope.kind.is_optional:
            raise
        cache.sweep(scope, NOTHING)
        return 0
    _queue_owners(queue, [*swept.ghosts, *swept.edited])
    return len(swept.ghosts)


def _queue_owners(queue: WorkQueue, objects: Iterable[Obj]) -> None:
    """Queue whom the watch is late to tell of: once it comes, its event is no news."""
    for obj in objects:
        owner = owner_of(obj)
        if owner is not None:
            queue.add(owner)


def find_selector(scope: Scope) -> str | None:
    """Return the label that a scope's objects have where they belong to a service; None for all."""
    return contract.LABEL_SERVICE if scope.kind.role in (Role.CHILD, Role.POD) else None


async def wait_period() -> None:
    """Wait until the next listing is due. The time is spread, so that replicas do not list together."""
    await asyncio.sleep(PERIOD_SECONDS * random.uniform(0.9, 1.1))  # noqa: S311  no secret
