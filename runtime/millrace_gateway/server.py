"""The gateway's process: connects the parts, serves, and drains without cutting a stream."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import NamedTuple

import aiohttp

from millrace_gateway.errors import CannotListenError
from millrace_gateway.front.app import InnerSurface, Surface
from millrace_gateway.front.attempts import Attempts
from millrace_gateway.front.body_budget import BodyBudget
from millrace_gateway.front.holding import Holder
from millrace_gateway.front.load_poll import LoadPoll
from millrace_gateway.front.proxy import Proxy
from millrace_gateway.front.replica_looks import ReplicaLooks
from millrace_gateway.front.tenancy import Tenancy
from millrace_gateway.front.upstream import Upstream
from millrace_gateway.http.limits import ConnectionLimits
from millrace_gateway.http.server import HttpServer
from millrace_gateway.lifecycle import Lifecycle
from millrace_gateway.report.metrics import Metrics
from millrace_gateway.report.report import Activity, Report
from millrace_gateway.report.stream import LeaderCheck, Reporting
from millrace_gateway.route.balance import Balancer
from millrace_gateway.route.catalogue import Catalogue
from millrace_gateway.route.cluster_sinks import ReplicaSink, ServiceSink
from millrace_gateway.settings import Settings
from millrace_kubernetes.access import ClusterAccess
from millrace_kubernetes.collection import Source
from millrace_kubernetes.connection import Connection
from millrace_kubernetes.watch import Watch
from millrace_runtime.listener import BACKLOG, describe_failure, open_listener, show_address

logger = logging.getLogger(__name__)


GONE_SECONDS = 2.0
"""From the end of a pod's object to that of its exchanges."""


class Sites(NamedTuple):
    """The listeners of a gateway."""

    clients: HttpServer
    metrics: HttpServer


class Gateway:
    """The parts of one gateway process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.catalogue = Catalogue(time.monotonic, settings.short_names)
        self.bodies = BodyBudget(settings.body_memory_bytes)
        self.metrics = Metrics(lambda: self.bodies.num_bytes)
        self.lifecycle = Lifecycle()
        self.balancer = Balancer(settings.suspect_seconds)
        replica_looks = ReplicaLooks(self.catalogue, self.balancer, time.monotonic)
        self.tenancy = Tenancy(settings, self.metrics, replica_looks)
        self.metrics.count_waiting = self.tenancy.turnstiles.count_waiting
        self.activity = Activity(time.monotonic)
        self.reporting = Reporting(
            LeaderCheck(settings.operator_namespace),
            lambda: Report(
                self.catalogue, self.balancer, self.activity, self.tenancy.turnstiles.count_waiting
            ),
        )
        self.holder = Holder(self.reporting.hurry)
        namespaces = settings.namespaces or (None,)
        followers = (
            self.metrics.track,
            self.activity.forget_deleted,
            replica_looks.forget_deleted,
            self.tenancy.forget_deleted,
            self.tenancy.preferences.forget_deleted,
        )
        self.service_sinks = [
            ServiceSink(namespace, self.catalogue, followers, self.lifecycle, self.holder.release)
            for namespace in namespaces
        ]
        self.replica_sinks = [
            ReplicaSink(namespace, self.catalogue, self.lifecycle, self.holder.release)
            for namespace in namespaces
        ]

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Sites]:
        """Serve while entered. Raises CannotListenError."""
        async with AsyncExitStack() as stack:
            upstream = Upstream(self.settings)
            stack.callback(upstream.close)
            self.catalogue.on_gone = partial(self._end_replica, upstream)
            await stack.enter_async_context(self.tenancy.serve())
            loads = LoadPoll(
                upstream,
                self.balancer,
                self.tenancy.turnstiles,
                self.tenancy.guard,
                refresh=self.tenancy.refresh,
            )
            polling = asyncio.create_task(loads.run())
            stack.callback(polling.cancel)
            surface = self._create_surface(upstream, loads)
            inner = InnerSurface(surface, self.reporting)
            limits = ConnectionLimits()
            clients = HttpServer(
                surface.handle, limits, find_extra=surface.find_cors, note_refusal=self.metrics.note_refusal
            )
            yield Sites(
                clients=await self._listen(stack, clients, self.settings.port, "--port"),
                metrics=await self._listen(
                    stack, HttpServer(inner.handle, limits), self.settings.metrics_port, "--metrics-port"
                ),
            )

    async def _listen(self, stack: AsyncExitStack, server: HttpServer, port: int, flag: str) -> HttpServer:
        """Serve at the port of this flag, until the stack exits."""
        bind_address = self.settings.bind_address
        try:
            listener = open_listener(bind_address, port)
        except OSError as error:
            raise CannotListenError(describe_failure(error, bind_address, port, port_flag=flag)) from error
        await server.start(listener, BACKLOG)
        stack.push_async_callback(server.close)
        logger.info("listening on %s (%s)", show_address(bind_address, listener.getsockname()[1]), flag)
        return server

    async def follow(self, access: ClusterAccess) -> None:
        """Follow the cluster's services and replicas until cancelled."""
        headers = {"User-Agent": "millrace-gateway"}
        connector = aiohttp.TCPConnector(
            limit=0
        )  # each namespace has two watches, each with a connection of its own
        async with (
            aiohttp.ClientSession(headers=headers, connector=connector) as session,
            asyncio.TaskGroup() as group,
        ):
            connection = self.reporting.check.connection = Connection(session, access)
            for services in self.service_sinks:
                refused = self._find_exit(services.source)
                group.create_task(Watch(connection, services.source, services, on_refused=refused).run())
            for replicas in self.replica_sinks:
                refused = self._find_exit(replicas.source)
                group.create_task(Watch(connection, replicas.source, replicas, on_refused=refused).run())
            own = self.settings.own_namespace
            for sink in self.tenancy.make_sinks(own, self.lifecycle) if own else ():
                skip = partial(self.lifecycle.note_sync, sink.name)
                group.create_task(Watch(connection, sink.source, sink, on_refused=skip).run())

    def _find_exit(self, source: Source) -> Callable[[], None]:
        """Return the action for a collection that the gateway may not read.

        One of several namespaces may be deleted with its Role: the gateway then serves the others.
        """
        if not self.settings.namespaces:
            return lambda: None
        return partial(self.lifecycle.note_sync, source.path)

    async def drain(self, sites: Sites) -> None:
        """Drain the clients' port, step by step as the lifecycle has it.

        The metrics' port stays open: a new leading operator must be able to read the requests in flight.
        """
        await self.lifecycle.drain(
            sites.clients,
            release_waiting=self._release_waiting,
            notice_seconds=self.settings.drain_notice_seconds,
            idle_seconds=self.settings.drain_idle_seconds,
        )

    def _release_waiting(self) -> None:
        """Let no request wait here any longer: another gateway may take it."""
        self.holder.close()
        self.tenancy.drain()

    def _end_replica(self, upstream: Upstream, uid: str) -> None:
        """End the exchanges with a replica whose pod is gone.

        The watch may be faster than the last bytes of its answers, which are still in the sockets.
        """
        asyncio.get_running_loop().call_later(GONE_SECONDS, upstream.end_replica, uid)
        self.balancer.forget(uid)

    def _create_surface(self, upstream: Upstream, loads: LoadPoll) -> Surface:
        guard = self.tenancy.guard
        attempts = Attempts(
            upstream,
            self.catalogue,
            balancer=self.balancer,
            metrics=self.metrics,
            holder=self.holder,
            guard=guard,
            loads=loads,
            settings=self.settings,
        )
        proxy = Proxy(
            upstream,
            self.catalogue,
            attempts,
            balancer=self.balancer,
            metrics=self.metrics,
            lifecycle=self.lifecycle,
            activity=self.activity,
            bodies=self.bodies,
            guard=guard,
            turnstiles=self.tenancy.turnstiles,
            counting=self.tenancy.counting,
            preferences=self.tenancy.preferences,
            settings=self.settings,
        )
        return Surface(
            self.catalogue,
            proxy,
            metrics=self.metrics,
            lifecycle=self.lifecycle,
            guard=guard,
            settings=self.settings,
        )
