"""Reconciles one service at a time, and decides when to reconcile it again."""

import logging
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from millrace_operator.controller.cache import Cache
from millrace_operator.controller.queue import WorkQueue
from millrace_operator.controller.relevant_changes import is_news
from millrace_operator.kube.errors import (
    AbsentError,
    ClusterError,
    ConflictError,
    NotLeaderError,
    TransientError,
)
from millrace_operator.kube.kinds import INFERENCE_SERVICE, Obj, ServiceKey
from millrace_operator.kube.protocol import Cluster

LOG = logging.getLogger(__name__)


class Retry(NamedTuple):
    """The bounds of a wait that doubles with each successive attempt."""

    at_least_seconds: float
    at_most_seconds: float
    why: str
    """Attempts for another reason don't count."""


SOON = Retry(0.0, 300.0, "soon")
"""The objects differ from those that the plan assumed, or a first step was taken. The next plan sees that."""
REFUSED = Retry(10.0, 60.0, "refused")
"""The API server refuses a child, and status has the reason. No event reports the end of the refusal."""


@dataclass(frozen=True)
class Outcome:
    """When to plan again for this service, apart from its own events."""

    look_again: float | None = None
    """Seconds until something changes by time alone."""
    retry: Retry | None = None
    """There is more to do. The wait doubles with each attempt, so that no plan repeats at once for ever."""
    has_moved: bool = False
    """Whether a step was taken or reported, so that the next plan may do more."""
    goes_on: bool = False
    """Whether an earlier retry stays due as it was, because this plan attempted nothing of it."""


class Reconciles(Protocol):
    """Plans and acts."""

    async def reconcile(self, key: ServiceKey) -> Outcome:
        """Plan and act once. Raises ClusterError."""


class Worker:
    """Reconciles services, and queues each again when that is due. Watches queue services, too."""

    def __init__(self, reconciler: Reconciles, cluster: Cluster, cache: Cache, queue: WorkQueue) -> None:
        self._reconciler = reconciler
        self._cluster = cluster
        self._cache = cache
        self._queue = queue

    async def work_on(self, key: ServiceKey) -> str:
        """Reconcile one service and return the result in controller-runtime's words. Raises nothing."""
        try:
            return await self._try(key)
        except Exception:
            wait = self._queue.retry(key)
            LOG.exception("%s: not reconciled; again in %.1f s", key, wait)
            return "error"

    async def _try(self, key: ServiceKey) -> str:
        """Reconcile one service. A known kind of failure is retried."""
        before = self._cache.service(key)
        try:
            outcome = await self._reconciler.reconcile(key)
        except NotLeaderError:  # this operator leads again soon, or another one lists everything
            self._queue.retry(key)
            return "error"
        except (AbsentError, ConflictError):
            await self._refresh(key, before)
            if is_news(before, self._cache.service(key)):  # no event will queue it: see _refresh
                self._queue.add(key)
            self._retry(key, SOON)
            return "requeue"
        except TransientError as error:
            wait = self._queue.retry(key, error.retry_after_seconds or 0.0)
            LOG.warning("%s: %s; again in %.1f s", key, error, wait)
            return "error"
        return self._come_back(key, outcome)

    def _come_back(self, key: ServiceKey, outcome: Outcome) -> str:
        if outcome.look_again is not None:
            self._queue.add_after(key, outcome.look_again)
        if outcome.has_moved:  # the watch's event brings what the cache has already, and so queues nothing
            self._queue.add(key)
        if outcome.goes_on:
            self._queue.resume(key)
            return "requeue"
        if outcome.retry is not None:
            self._retry(key, outcome.retry)
            return "requeue"
        self._queue.forget_failures(key)
        return "success" if outcome.look_again is None else "requeue_after"

    def _retry(self, key: ServiceKey, retry: Retry) -> None:
        self._queue.retry(key, retry.at_least_seconds, retry.at_most_seconds, why=retry.why)

    async def _refresh(self, key: ServiceKey, before: Obj | None) -> None:
        """Fetch a service that has changed or is gone, because the watch may be late.

        The service may have been created again by the time of the answer. Anything that came after `before`
        stays.

        The watch's later event is no news then: the caller has to queue the service.
        """
        try:
            found = await self._cluster.fetch(INFERENCE_SERVICE, *key)
        except ClusterError:
            return
        held = self._cache.service(key)
        if found is None and held is before:
            self._cache.drop(INFERENCE_SERVICE, *key)
        elif found is not None and (held is before or is_same(held, found)):
            self._cache.put(found)


def is_same(held: Obj | None, found: Obj) -> bool:
    """Whether both are the same object, in any version. Another object may have its name by now."""
    return held is not None and held["metadata"].get("uid") == found["metadata"].get("uid")
