"""The running operator: its watches, Lease, workers, scaling loop and HTTP."""

import asyncio
import dataclasses
import itertools
import logging
import random
import secrets
import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import aiohttp

from millrace_kubernetes.connection import Connection
from millrace_kubernetes.model_names import ModelNames
from millrace_operator.api.scaling_types import ScalingMode
from millrace_operator.app.metrics import Metrics, ServiceCollector
from millrace_operator.app.views import Health, Views, serve
from millrace_operator.autoscaler.decide.evidence import render_decision
from millrace_operator.autoscaler.decide.memory import Memory
from millrace_operator.autoscaler.run.inventory import Inventory
from millrace_operator.autoscaler.run.prior_store import Priors
from millrace_operator.autoscaler.run.settings import ScalingSettings
from millrace_operator.autoscaler.run.tick import ScalingLoop
from millrace_operator.controller.cache import Cache
from millrace_operator.controller.fetch_progress import Fetches
from millrace_operator.controller.leader_election import Election
from millrace_operator.controller.queue import WorkQueue
from millrace_operator.controller.reconcile import Reconciler
from millrace_operator.controller.relister import Relisted, Relister
from millrace_operator.controller.watch_recorder import WatchRecorder
from millrace_operator.controller.watches import follow_children, supervise_watches
from millrace_operator.controller.worker import Worker
from millrace_operator.gateways.key_secret import GatewayKeys
from millrace_operator.gateways.streams import Gateways
from millrace_operator.kube.connection import WRITES_PER_SECOND, ApiServer
from millrace_operator.kube.credentials import load_access
from millrace_operator.kube.errors import ClusterError
from millrace_operator.kube.kinds import Role, ServiceKey, find_scopes
from millrace_operator.kube.lease import LeaseView
from millrace_operator.kube.protocol import Cluster
from millrace_operator.render.settings import RenderSettings
from millrace_runtime.contract import LEASE_OPERATOR

LISTS_SECONDS = 60.0
"""A leader waits so long for its watches' first lists. Then it lists the missing ones itself."""
VIEW_RETRY_SECONDS = 1.0
"""Between the first two attempts to list the missing kinds. Each further wait is twice as long."""
LAST_VIEW_RETRY_SECONDS = 10.0
UNKNOWN_SECONDS = 2.0
"""After this time a worker checks again whether an unreadable namespace has been listed."""
LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OperatorSettings:
    """The command line, parsed once."""

    render: RenderSettings
    scaling: ScalingSettings
    namespace: str
    """Where the Lease is."""
    identity: str
    bind_address: str
    """For /metrics and /healthz. Empty: all addresses, IPv6 and IPv4."""
    port: int
    workers: int
    writes_per_second: float = WRITES_PER_SECOND
    namespaces: Sequence[str] = ()
    """Namespaces whose services the operator looks after; none means all."""
    short_names: Mapping[str, ServiceKey] = dataclasses.field(default_factory=dict)
    """The services to which the platform gives model names."""


class Application:
    """One replica of the operator. All replicas watch; only the Lease's holder writes."""

    def __init__(
        self,
        settings: OperatorSettings,
        cluster: Cluster,
        view: LeaseView,
        metrics: Metrics,
        *,
        token: str = "",
    ) -> None:
        """Knows nothing at first. The Lease of `view` has the hash of `token`."""
        self._settings = settings
        self._cluster = cluster
        self._metrics = metrics
        self.queue = WorkQueue(draw=random.random)
        self.cache = Cache(ModelNames(settings.short_names, self.queue.add))
        self.recorder = WatchRecorder(self.cache, self.queue, scopes=find_scopes(settings.namespaces))
        self.election = Election(cluster, view)
        self.relister = Relister(
            cluster,
            self.cache,
            self.queue,
            lists=self.recorder.lists,
            has_lost=self.recorder.has_lost,
            on_listed=self._note_listed,
        )
        metrics.follow(
            self.queue,
            lambda: time.monotonic() - self.recorder.health.last_event_at,
            LEASE_OPERATOR,
            self.election.is_leader,
        )
        self.priors = Priors(cluster, self.cache, self.election.is_leader, self._read_memory)
        self.gateways = Gateways(settings.namespace, token, self.election.is_leader, self._wake)
        self.scaling = ScalingLoop(
            self.cache,
            settings.scaling,
            self.queue.add,
            self.election.is_leader,
            recall=self.priors.recall,
            arrivals=self.gateways.read_arrivals,
            count_waiting=self.gateways.count_waiting,
        )
        self.inventory = Inventory(
            self.cache, settings.scaling.prometheus, self.queue.add, self.election.is_leader
        )
        metrics.follow_gateways(lambda: self.gateways.num_expected, lambda: self.gateways.num_silent)
        metrics.registry.register(ServiceCollector(self.cache, self.scaling.find_considered))
        self.fetches = Fetches(self.cache, self.queue.add, self.election.is_leader)
        self.gateway_keys = GatewayKeys(
            cluster, settings.render.access, self.cache, self.recorder.lists, self.queue.add
        )

    async def run(self, connection: Connection) -> None:
        """Follow the cluster over `connection` and work, until cancelled."""
        async with (
            serve(self._views(), self._settings.bind_address, self._settings.port),
            asyncio.TaskGroup() as group,
        ):
            for scope in self.recorder.lists.scopes:
                if scope.kind.role is Role.SERVICE:
                    group.create_task(supervise_watches(self.recorder, scope, self._cluster))
            group.create_task(follow_children(self.recorder, connection))
            group.create_task(self.gateways.run(connection))
            group.create_task(self.election.run(self.priors.leave))
            group.create_task(self._lead())
            group.create_task(self.relister.run())
            group.create_task(self.scaling.run())
            group.create_task(self.inventory.run())
            group.create_task(self.fetches.run())
            group.create_task(self.priors.run())
            group.create_task(self.gateway_keys.run(self.election.is_leader))

    def _wake(self, key: ServiceKey) -> None:
        """Queue a service that has got a request while it rests."""
        scaling = (self.cache.service(key) or {}).get("status", {}).get("scaling", {})
        if scaling.get("desiredReplicas") == 0 and scaling.get("mode") == ScalingMode.AUTOMATIC:
            self.queue.add(key)

    def _read_memory(self, key: ServiceKey) -> Memory | None:
        considered = self.scaling.find_considered(key)
        return considered.memory if considered else None

    def _make_worker(self) -> Worker:
        """Return a worker that knows of no refusal: a refusal from an earlier leadership is out of date."""
        reconciler = Reconciler(
            self._cluster,
            self.cache,
            self.recorder.put_written,
            self._settings.render,
            self.scaling.advice,
            replicas=self.inventory.read,
            loads=self.gateways.read,
            demand=self.gateways.read_demand,
            fetched=self.fetches.read,
            gateway_key=self.gateway_keys.find,
        )
        return Worker(reconciler, self._cluster, self.cache, self.queue)

    async def _lead(self) -> None:
        """Reconcile while leading. The queue is empty before that: the first list queues every service."""
        while True:
            await self.election.wait_for(leading=True)
            LOG.info("leading as %s", self._settings.identity)
            with self.queue.opened():
                await self._list_and_work(self._make_worker())
            LOG.info("no longer leading")

    async def _list_and_work(self, worker: Worker) -> None:
        """First complete the lists, so that no plan is made from half of the objects."""
        waits = (min(VIEW_RETRY_SECONDS * 2.0**n, LAST_VIEW_RETRY_SECONDS) for n in itertools.count())
        while self.election.is_leader():
            try:
                await self.recorder.lists.wait(LISTS_SECONDS)
                await self.relister.list_unlisted()
            except ClusterError as error:
                wait = next(waits)
                LOG.warning("no complete view yet: %s; again in %.1f s", error, wait)
                await asyncio.sleep(wait)
            else:
                await self._work(worker)

    async def _work(self, worker: Worker) -> None:
        """Work until another replica leads. An error that ends a task ends the operator, so that it shows."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._run_worker(worker)) for _ in range(self._settings.workers)]
            await self.election.wait_for(leading=False)
            for task in tasks:
                task.cancel()

    def _note_listed(self, found: Relisted) -> None:
        self.gateways.keep(self.cache.service_keys())
        self._metrics.relists.inc()
        self._metrics.ghosts.inc(found.num_ghosts)

    async def _run_worker(self, worker: Worker) -> None:
        while True:
            async with self.queue.work() as key:
                started = time.monotonic()
                with self._metrics.active_workers.track_inprogress():
                    result = await self._reconcile(worker, key)
                seconds = time.monotonic() - started
                self._metrics.count_reconcile(result, seconds)
                LOG.debug("%s: reconciled in %.1f ms: %s", key, 1000 * seconds, result)

    async def _reconcile(self, worker: Worker, key: ServiceKey) -> str:
        """Reconcile one service, if its namespace is known, and return the result."""
        if not self.recorder.lists.is_known(key.namespace):
            self.queue.add_after(key, UNKNOWN_SECONDS)
            return "requeue_after"
        return await worker.work_on(key)

    def _views(self) -> Views:
        return Views(metrics=self._metrics, read_health=self._read_health, read_decision=self._read_decision)

    def _read_health(self) -> Health:
        is_leader, holder = self.election.is_leader(), self.election.holder
        has_lost = not is_leader and holder == self._settings.identity
        return Health(
            overdue_seconds=self.recorder.health.overdue_seconds(),
            stalled_seconds=self.queue.stalled_seconds(),
            silent_seconds=self.recorder.health.silent_seconds(),
            is_leader=is_leader,
            leader="" if has_lost else holder,
        )

    def _read_decision(self, key: ServiceKey) -> dict[str, Any] | None:
        considered = self.scaling.find_considered(key)
        if considered is None:
            return None
        return {
            "at": considered.at,
            "evidence": considered.advice.evidence,
            **render_decision(considered.decision, considered.signals, considered.memory),
        }


async def run_operator(settings: OperatorSettings) -> None:
    """Connect and run until cancelled. Raises BadStartError without an API server."""
    metrics = Metrics()
    token = secrets.token_urlsafe()
    view = LeaseView(
        settings.identity,
        settings.namespace,
        LEASE_OPERATOR,
        token_hash=sha256(token.encode()).hexdigest(),
    )
    access = await load_access()
    async with (
        ApiServer(
            access,
            writes_per_second=settings.writes_per_second,
            seconds_to_write=lambda: view.seconds_to_write(time.monotonic()),
            on_request=metrics.count_request,
        ) as cluster,
        # Each watch holds a connection, and each namespace has six.
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        application = Application(settings, cluster, view, metrics, token=token)
        await application.run(Connection(session, access))
