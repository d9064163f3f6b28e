"""Works on one service: reconciles it, and says when it is to be looked at again."""

import logging
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from millrace_operator.controller.cache import Cache
from millrace_operator.controller.objects import is_news
from millrace_operator.controller.queue import WorkQueue
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
    """The bounds of a wait that doubles with each try in a row."""

    at_least_seconds: float
    at_most_seconds: float
    why: str
    """Tries for another reason don't count."""


SOON = Retry(0.0, 300.0, "soon")
"""What is there is not what was planned for, or a first step was taken: the next plan sees it."""
REFUSED = Retry(10.0, 60.0, "refused")
"""The API server refuses a child for a reason that status tells already. Nothing tells us when it is gone."""


@dataclass(frozen=True)
class Outcome:
    """When to plan again for this service, other than at an event of its own."""

    look_again: float | None = None
    """Seconds until something changes by time alone."""
    retry: Retry | None = None
    """There is more to do. Whoever asks waits longer from try to try: no plan may repeat at once for ever."""
    has_moved: bool = False
    """Whether a step was taken or told. A plan is made of what was there before it; the next may do more."""
    goes_on: bool = False
    """Whether what was to be tried again stays due as it was: this time nothing of it was tried."""


class Reconciles(Protocol):
    """What plans and acts."""

    async def reconcile(self, key: ServiceKey) -> Outcome:
        """Plan and act once. Raises ClusterError."""


class Worker:
    """Owner of when a service is looked at again after a reconcile. Events of watches come beside that."""

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
        """Reconcile one service. What fails in a way that we know is tried again."""
        before = self._cache.service(key)
        try:
            outcome = await self._reconciler.reconcile(key)
        except NotLeaderError:  # for a moment, or until another leader lists everything
            self._queue.retry(key)
            return "error"
        except (AbsentError, ConflictError):
            await self._refresh(key, before)
            if is_news(before, self._cache.service(key)):  # what showed it brings no event of it any more
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
        if outcome.has_moved:  # the watch will bring what we hold already, which asks for no look
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

        By the time of the answer it may have been made again: what came since `before` stays.

        What the watch brings after that is no news: whoever asks for it has to queue it.
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
    """Whether both are one object, in whatever version. Another one may have its name by now."""
    return held is not None and held["metadata"].get("uid") == found["metadata"].get("uid")
