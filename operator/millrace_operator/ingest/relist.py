"""Lists what no watch has listed when leadership begins, and everything every ten minutes, to find ghosts.

A ghost is a cached object that is gone: a watch that was cut for long brings no DELETED event for it.
"""

import asyncio
import random
from collections.abc import Iterable

from millrace_operator.cluster.kinds import EVERYWHERE, INFERENCE_SERVICE, Scope
from millrace_operator.cluster.protocol import Cluster
from millrace_operator.ingest.cache import Cache, owner_of
from millrace_operator.ingest.queue import WorkQueue
from millrace_runtime import contract

PERIOD_SECONDS = 600.0


async def relist(
    cluster: Cluster, cache: Cache, queue: WorkQueue, scopes: Iterable[Scope] = EVERYWHERE
) -> int:
    """Replace these scopes by complete lists, and queue every service. Returns the number of ghosts."""
    ghosts = []
    for scope in scopes:
        selector = None if scope.kind is INFERENCE_SERVICE else contract.LABEL_SERVICE
        with cache.listing():
            ghosts += cache.sweep(scope, await cluster.fetch_all(scope, selector))
    owners = {owner for ghost in ghosts if (owner := owner_of(ghost)) is not None}
    for key in [*owners, *cache.service_keys()]:
        queue.add(key, is_urgent=False)
    return len(ghosts)


async def wait_period() -> None:
    """Wait until the next listing is due. The time is spread, so that replicas do not list together."""
    await asyncio.sleep(PERIOD_SECONDS * random.uniform(0.9, 1.1))  # noqa: S311  no secret
