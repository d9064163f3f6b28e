"""The loop: look, decide, act. A step that fails changes nothing, and the agent repeats it at the next
look.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import aiohttp

from millrace_kubernetes.errors import KubernetesError
from millrace_node_cache.disk import Disk
from millrace_node_cache.metrics import Metrics
from millrace_node_cache.models import Look, Model, Uses
from millrace_node_cache.plan import EvictionPlan, Limit, plan_eviction, plan_labels

logger = logging.getLogger(__name__)
_FAILURES = (
    *(KubernetesError, aiohttp.ClientError, OSError, TimeoutError),
    # A proxy may answer in the place of the API server, and tenants may have changed their folders.
    *(ValueError, KeyError, TypeError, AttributeError, RecursionError),
)
_MOST_NAMED = 3
"""Folders in one line of the log: a tenant can make a thousand."""


class Api(Protocol):
    """The API server as the agent uses it. Each method may raise the exceptions in `_FAILURES`."""

    async def list_uses(self, namespace: str) -> Uses:
        """Return the models that pods of this node read now."""

    async def read_labels(self) -> dict[str, str]:
        """Return the Node's labels."""

    async def change_labels(self, labels: dict[str, str | None]) -> None:
        """Set or remove these labels of the Node."""


class Agent:
    """Looks after the models of one node."""

    def __init__(
        self,
        disk: Disk,
        api: Api,
        namespaces: Sequence[str],
        limit: Limit,
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._disk = disk
        self._api = api
        self._namespaces = tuple(namespaces)
        self._limit = limit
        self._metrics = metrics
        self._clock = clock
        self._troubles = Troubles()
        self._has_failed = False

    async def look(self) -> None:
        """Look, decide and act once."""
        self._has_failed = False
        with self._trying("the disk"):
            await asyncio.to_thread(self._disk.prepare, self._namespaces)
            is_clean = await self._sweep()
            uses = {namespace: await self._list_uses(namespace) for namespace in self._namespaces}
            look = await asyncio.to_thread(self._observe, uses)
            self._check_closed(look)
            plan = plan_eviction(look, self._limit)
            left = await self._evict(look, plan if is_clean else plan.without_candidates())
            await self._label(left)
        if self._has_failed:
            self._metrics.count_failure()

    async def _list_uses(self, namespace: str) -> Uses | None:
        with self._trying(f"the pods of namespace {namespace}"):
            return await self._api.list_uses(namespace)
        return None

    def _observe(self, uses: dict[str, Uses | None]) -> Look:
        now = self._clock()
        return Look(self._disk.measure(), self._disk.list_models(uses, now), uses)

    def _check_closed(self, look: Look) -> None:
        """Log the folders that the agent may not read: they take room, and it can evict none of them."""
        for namespace in self._namespaces:
            with self._trying(f"the models of namespace {namespace}"):
                self._disk.check_open(namespace)
                if closed := look.list_closed(namespace):
                    raise PermissionError(_explain_closed(closed))

    async def _evict(self, look: Look, plan: EvictionPlan) -> tuple[Model, ...]:
        """Evict candidates until enough is free, or a removal fails. Return the models that stay."""
        gone: list[Model] = []
        for model in plan.candidates:
            if sum(each.num_bytes for each in gone) >= plan.num_bytes:
                break
            with self._trying(f"the eviction of {model.key.namespace}/{model.key.folder}"):
                if not await self._evict_one(model):
                    continue
                gone.append(model)
                if not await self._sweep():
                    break  # the eviction freed nothing, and the next one may not either
        left = tuple(model for model in look.models if model not in gone)
        excess = max(0, plan.num_bytes - sum(model.num_bytes for model in gone))
        self._metrics.show(self._disk.measure() if gone else look.space, left, excess)
        return left

    async def _evict_one(self, model: Model) -> bool:
        """Evict a model, unless a fetch holds its lock or a pod that was bound meanwhile reads it.

        A pod that is bound later finds no folder, and fetches the model again.
        """
        with self._disk.locked(model.key) as is_ours:
            if not is_ours or await self._is_read(model):
                return False
            self._disk.move_away(model.key)
        self._metrics.count_eviction()
        logger.info("evicted %s/%s: %d bytes", model.key.namespace, model.key.folder, model.num_bytes)
        return True

    async def _sweep(self) -> bool:
        """Remove evicted folders. Return whether all of them are gone: otherwise no other model may go."""
        with self._trying("the removal of evicted models"):
            await asyncio.to_thread(self._disk.sweep)
            return True
        return False

    async def _is_read(self, model: Model) -> bool:
        return model.key.name in await self._api.list_uses(model.key.namespace)

    async def _label(self, models: tuple[Model, ...]) -> None:
        with self._trying("the labels of the node"):
            if change := plan_labels(await self._api.read_labels(), models):
                await self._api.change_labels(change)

    @contextmanager
    def _trying(self, about: str) -> Iterator[None]:
        """Record a failure inside, and go on after it."""
        try:
            yield
        except _FAILURES as error:
            self._has_failed = True
            self._troubles.note(about, error)
        else:
            self._troubles.settle(about)


def _explain_closed(folders: Sequence[str]) -> str:
    named = ", ".join(folders[:_MOST_NAMED])
    more = f" and {len(folders) - _MOST_NAMED} more" if len(folders) > _MOST_NAMED else ""
    return (
        f"the node cache may not read {named}{more}, so it neither counts nor evicts these models: make them "
        "readable, or remove them by hand"
    )


class Troubles:
    """The present failures by subject. Each is logged once, and again only when its text changes."""

    def __init__(self) -> None:
        self._logged: dict[str, str] = {}

    def note(self, about: str, error: Exception) -> None:
        """Log a failure, unless its text is the one that was logged last."""
        text = str(error) or repr(error)
        if self._logged.get(about) != text:
            self._logged[about] = text
            logger.warning("%s: %s; the node cache tries again at each look", about, text)

    def settle(self, about: str) -> None:
        """Log that a subject has recovered, if it had failed."""
        if self._logged.pop(about, None) is not None:
            logger.info("%s: works again", about)
