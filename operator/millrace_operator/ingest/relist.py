"""The complete view: at the start, when leadership begins, and every ten minutes against ghosts.

After a compacted watch, objects deleted meanwhile get no DELETED event and would stay for ever.
"""

import asyncio
import random

from millrace_operator.cluster.kinds import INFERENCE_SERVICE, WATCHED
from millrace_operator.cluster.protocol import Cluster
from millrace_operator.ingest.cache import Cache, owner_of
from millrace_operator.ingest.queue import WorkQueue
from millrace_runtime import contract

PERIOD_SECONDS = 600.0


async def relist(cluster: Cluster, cache: Cache, queue: WorkQueue) -> int:
    """Mark and sweep every kind, and ask for a look at every service. Returns the number of ghosts."""
    ghosts = []
    for kind in WATCHED:
        selector = None if kind is INFERENCE_SERVICE else contract.LABEL_SERVICE
        ghosts += cache.sweep(kind, await cluster.fetch_all(kind, selector))
    owners = {owner for ghost in ghosts if (owner := owner_of(ghost)) is not None}
    for key in [*owners, *cache.service_keys()]:
        queue.add(key, is_urgent=False)
    return len(ghosts)


async def wait_period() -> None:
    """Wait until the next relist, spread so that replicas do not list together."""
    await asyncio.sleep(PERIOD_SECONDS * random.uniform(0.9, 1.1))  # noqa: S311  no secret
