"""Queries Prometheus now and then for the hardware and limits of all replicas."""

import asyncio
import logging
import time
from collections.abc import Callable
from types import MappingProxyType

import aiohttp

from millrace_operator.autoscaler.run.prometheus import Prometheus, fetch_reading
from millrace_operator.autoscaler.run.settings import Access, PrometheusSettings
from millrace_operator.autoscaler.signals.answers import PodKey, Reading
from millrace_operator.autoscaler.signals.inventory import Replicas, build_question, read_replicas
from millrace_operator.autoscaler.signals.queries import Scope
from millrace_operator.autoscaler.signals.scrapes import DEFAULT_WINDOWS
from millrace_operator.controller.cache import Cache
from millrace_operator.kube.kinds import ServiceKey

LOG = logging.getLogger(__name__)
PERIOD_SECONDS = 15.0
"""The answers stay the same while a replica's container runs."""
NOTHING: Replicas = MappingProxyType({})


class Inventory:
    """Owner of each service's replicas as Prometheus knows them. Empty while this operator does not lead.

    An entry stays while its pod exists, even if Prometheus does not answer.
    """

    def __init__(
        self,
        cache: Cache,
        settings: PrometheusSettings,
        on_change: Callable[[ServiceKey], None],
        is_leader: Callable[[], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cache = cache
        self._matchers = settings.matchers
        self._access = Access(settings)
        self._on_change = on_change
        self._is_leader = is_leader
        self._clock = clock
        self._replicas: dict[ServiceKey, Replicas] = {}

    def read(self, key: ServiceKey) -> Replicas:
        """Return the known replicas of a service, by pod."""
        return self._replicas.get(key, NOTHING)

    async def run(self) -> None:
        """Query at each period, until cancelled."""
        async with aiohttp.ClientSession() as session:
            while True:
                if self._is_leader():
                    await self._refresh_safely(session)
                else:
                    self._replicas.clear()
                await asyncio.sleep(PERIOD_SECONDS if self._is_leader() else 1.0)

    async def _refresh_safely(self, session: aiohttp.ClientSession) -> None:
        try:
            await self.refresh(session)
        except Exception:  # the next query may succeed
            LOG.exception("cannot refresh the inventory of replicas")

    async def refresh(self, session: aiohttp.ClientSession) -> None:
        """Query once for all services, and call `on_change` for each service with news."""
        pods = {key: [pod["metadata"]["name"] for pod in self._cache.pods(key)] for key in self._list_keys()}
        owners = {PodKey(key.namespace, name): key for key, names in pods.items() for name in names}
        if not owners:
            return
        question = build_question(Scope(tuple({key.namespace for key in owners.values()}), self._matchers))
        prometheus, now = Prometheus(session, self._access), self._clock()
        reading = await fetch_reading(prometheus, [question], owners, now, DEFAULT_WINDOWS)
        for key, names in pods.items():
            self._note(key, names, reading)

    def _list_keys(self) -> list[ServiceKey]:
        """Return the services that exist, and forget all others."""
        keys = self._cache.service_keys()
        for gone in self._replicas.keys() - set(keys):
            del self._replicas[gone]
        return keys

    def _note(self, key: ServiceKey, names: list[str], reading: Reading) -> None:
        before, found = self.read(key), read_replicas(reading.series.get(key, {}))
        known = {name: one for name in names if (one := found.get(name) or before.get(name)) is not None}
        self._replicas[key] = known
        if known != before:
            self._on_change(key)
