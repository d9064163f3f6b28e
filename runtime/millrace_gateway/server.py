"""The gateway as a running whole: wires the parts, serves, and leaves without cutting a stream."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial

import aiohttp
from aiohttp import web

from millrace_gateway.app import Surface, create_app
from millrace_gateway.balance import Balancer
from millrace_gateway.catalogue import Catalogue
from millrace_gateway.credentials import ClusterAccess
from millrace_gateway.lifecycle import Lifecycle
from millrace_gateway.metrics import Metrics
from millrace_gateway.objects import Object
from millrace_gateway.proxy import Proxy
from millrace_gateway.settings import Settings
from millrace_gateway.upstream import open_session
from millrace_gateway.watch import Sink, Source, Watch
from millrace_runtime.contract import GROUP, LABEL_COMPONENT, PLURAL, VERSION
from millrace_runtime.listener import open_listener

logger = logging.getLogger(__name__)

SERVICES = Source(f"/apis/{GROUP}/{VERSION}/{PLURAL}")
REPLICAS = Source("/api/v1/pods", f"{LABEL_COMPONENT}=replica")


class Gateway:
    """The parts of one gateway process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.catalogue = Catalogue()
        self.metrics = Metrics()
        self.lifecycle = Lifecycle(awaited=(SERVICES.path, REPLICAS.path))
        self.balancer = Balancer(settings.suspect_seconds)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[web.BaseSite]:
        """Serve while entered. Raises OSError where the address can't be bound."""
        async with open_session(self.settings) as session:
            runner = web.AppRunner(
                self._create_app(session),
                access_log=None,
                auto_decompress=False,  # a body goes on as it came
                handler_cancellation=True,  # a client that leaves ends its generation
                shutdown_timeout=1.0,
            )
            await runner.setup()
            try:
                listener = open_listener(self.settings.bind_address, self.settings.port)
                site = web.SockSite(runner, listener)
                await site.start()
                yield site
            finally:
                await runner.cleanup()

    async def follow(self, access: ClusterAccess) -> None:
        """Follow the cluster's services and replicas until cancelled."""
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            for source, sink in ((SERVICES, self._service_sink()), (REPLICAS, self._replica_sink())):
                watch = Watch(session, access, source, sink)
                group.create_task(watch.run(partial(self.lifecycle.note_sync, source.path)))

    async def drain(self, site: web.BaseSite) -> None:
        """Turn unready, take what is still routed here for a while, then finish what is in flight."""
        self.lifecycle.begin_drain()
        logger.info("draining: %d requests in flight", self.lifecycle.num_in_flight)
        await asyncio.sleep(self.settings.drain_notice_seconds)
        await site.stop()
        await self.lifecycle.idle.wait()

    def _create_app(self, session: aiohttp.ClientSession) -> web.Application:
        proxy = Proxy(
            session,
            self.catalogue,
            balancer=self.balancer,
            metrics=self.metrics,
            lifecycle=self.lifecycle,
            settings=self.settings,
        )
        return create_app(Surface(self.catalogue, proxy, self.metrics, self.lifecycle), proxy, self.settings)

    def _replica_sink(self) -> Sink:
        catalogue = self.catalogue
        return Sink(catalogue.replace_replicas, catalogue.apply_replica, catalogue.delete_replica)

    def _service_sink(self) -> Sink:
        """Metrics follow the services: a deleted one's series end, a new one's begin at zero."""
        catalogue = self.catalogue

        def replace(items: Iterable[Object]) -> None:
            catalogue.replace_services(items)
            self.metrics.track(catalogue.keys)

        def apply(item: Object) -> None:
            catalogue.apply_service(item)
            self.metrics.track(catalogue.keys)

        def delete(item: Object) -> None:
            catalogue.delete_service(item)
            self.metrics.track(catalogue.keys)

        return Sink(replace, apply, delete)
