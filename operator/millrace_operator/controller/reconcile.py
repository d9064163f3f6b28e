"""Snapshot, plan, act: one service at a time.

`writer.py` makes all writes except the Events (`event_writer.py`) and the Lease (`leader_election.py`). These
three, `lookups.py`, `worker.py` and `relister.py` talk to the API server through a Cluster. `watches.py`
reads its watches.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

from millrace_operator.api.model_types import ReplicaStatus
from millrace_operator.controller.cache import Cache
from millrace_operator.controller.event_writer import EventWriter
from millrace_operator.controller.lookups import Lookups
from millrace_operator.controller.plan import Plan, plan
from millrace_operator.controller.refusals import Refusals
from millrace_operator.controller.worker import REFUSED, SOON, Outcome, Retry
from millrace_operator.controller.writer import Done, Writer
from millrace_operator.kube.errors import ClusterError
from millrace_operator.kube.kinds import POD, Obj, ObjectId, ServiceKey, object_id
from millrace_operator.kube.protocol import Cluster
from millrace_operator.observed.snapshot import (
    Advice,
    Demand,
    Fetched,
    GatewayKey,
    GatewayReports,
    ModelReports,
    NameClaim,
    Nodes,
    Obstacles,
    PodLoad,
    Snapshot,
)
from millrace_operator.render.settings import RenderSettings


class Reconciler:
    """Reconciles one service at a time.

    `put_written` puts the result of a write into the cache. `advice` returns the autoscaler's last decision,
    and `replicas` the device and limits of each pod, by name. `loads` returns the requests that gateways have
    at pods, by uid, and `demand` those of a service. `fetched` returns the progress of fetches, by pod.
    `gateway_key` finds the public key of the gateways, for a service whose clients need keys.
    """

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        put_written: Callable[[Obj], object],
        settings: RenderSettings,
        advice: Callable[[ServiceKey], Advice | None],
        *,
        replicas: Callable[[ServiceKey], Mapping[str, ReplicaStatus]],
        loads: Callable[[Iterable[str]], Mapping[str, PodLoad]],
        demand: Callable[[ServiceKey], Demand],
        fetched: Callable[[ServiceKey], Mapping[str, Fetched]],
        gateway_key: Callable[[], Awaitable[GatewayKey]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cache = cache
        self._settings = settings
        self._advice = advice
        self._replicas = replicas
        self._loads = loads
        self._demand = demand
        self._fetched = fetched
        self._gateway_key = gateway_key
        self._clock = clock
        self._refusals = Refusals()
        self._lookups = Lookups(cluster, cache, settings.access, clock)
        self._writer = Writer(
            cluster, cache, put_written, lookups=self._lookups, refusals=self._refusals, clock=clock
        )
        self._events = EventWriter(cluster, clock)
        self._worded: dict[ServiceKey, float] = {}
        """When the operator last wrote a status of which only words were new."""
        self._tried: set[ServiceKey] = set()
        """Services for which this leader has executed a whole plan."""
        self._uids: dict[ServiceKey, str] = {}
        """The uids of the services of which this object knows something."""

    async def reconcile(self, key: ServiceKey) -> Outcome:
        """Plan and act once.

        Raises ClusterError if a write failed in a way worth another attempt. The earlier writes stand.
        """
        service = self._cache.service(key)
        if service is None:
            self._forget(key)
            return Outcome()
        self._forget_another(key, service["metadata"]["uid"])
        await self._lookups.find_unlabelled(key, service)
        snapshot = await self._take_snapshot(key, service)
        chosen = plan(self._settings, snapshot, self._clock())
        if chosen.is_contested:
            self._lookups.suspect_rivals(key)
        return await self._act(key, service, chosen, snapshot.obstacles.refusals)

    async def _take_snapshot(self, key: ServiceKey, service: Obj) -> Snapshot:
        """Return what this operator knows of the service. It looks up what no watch reports."""
        conflicts = await self._lookups.find_conflicts(key, service)
        refusals = self._refusals.recall(key, self._clock())
        pods, children, job_pods = self._cache.pods(key), self._cache.children(key), self._cache.job_pods(key)
        return Snapshot(
            service=service,
            children=children,
            pods=pods,
            job_pods=job_pods,
            advice=self._advice(key),
            obstacles=Obstacles(
                conflicts=conflicts,
                refusals=refusals,
                rivals=await self._lookups.find_rivals(key),
                is_tried=key in self._tried,
            ),
            gateways=await self._read_gateways(key, pods),
            model=await self._read_model(key, service),
            nodes=Nodes(departures=self._cache.departures(), gpus=self._cache.gpu_nodes()),
            name=NameClaim(
                standing=self._cache.standing(key), former=tuple(self._cache.list_former_names(key))
            ),
            worded_at=self._worded.get(key),
        )

    async def _read_gateways(self, key: ServiceKey, pods: Iterable[Obj]) -> GatewayReports:
        return GatewayReports(
            loads=self._loads(pod["metadata"]["uid"] for pod in pods),
            demand=self._demand(key),
            key=await self._gateway_key() if self._needs_keys(key) else None,
        )

    async def _read_model(self, key: ServiceKey, service: Obj) -> ModelReports:
        return ModelReports(
            claim=await self._lookups.find_claim(key, service),
            looking_since=self._lookups.looking_since(key),
            fetched=self._fetched(key),
            replicas=self._replicas(key),
        )

    def _needs_keys(self, key: ServiceKey) -> bool:
        try:
            spec = self._cache.spec(key).complete(self._settings.access)
        except ValueError:  # the plan reports it
            return False
        return spec.access.needs_keys

    def _forget_another(self, key: ServiceKey, uid: str) -> None:
        """Forget an earlier service of this name, whose deletion may have gone unnoticed."""
        if self._uids.get(key, uid) != uid:
            self._forget(key)
        self._uids[key] = uid

    def _forget(self, key: ServiceKey) -> None:
        """Forget a deleted service."""
        self._uids.pop(key, None)
        self._refusals.forget(key)
        self._lookups.forget(key)
        self._tried.discard(key)
        self._worded.pop(key, None)

    async def _act(
        self, key: ServiceKey, service: Obj, chosen: Plan, reported: Mapping[ObjectId, str]
    ) -> Outcome:
        """Execute a plan. `reported` are the refusals that its status reports."""
        is_reported = False
        if chosen.status is not None:
            came = await self._writer.write_status(key, service, chosen.status)
            if came is Done.HELD:
                return Outcome(None, REFUSED)  # nothing follows a decision that is not written
            is_reported = came is Done.WRITTEN
            if chosen.has_only_new_words:
                self._worded[key] = self._clock()
        if chosen.has_only_new_time and chosen.is_for_refused(reported):
            # Another look would bring each retry forward.
            return Outcome(self._find_look(key, chosen), goes_on=True)
        try:
            done = await self._writer.write_all(key, service, chosen)
        except ClusterError:  # status has the news already, so no later plan would write these Events
            await self._events.write_all(service, chosen.events)
            raise
        await self._events.write_all(service, chosen.events)
        tried = {object_id(write.obj) for write in chosen.list_writes()}
        tried |= {object_id(service)} if chosen.scale is not None else set()
        self._refusals.keep(key, tried, self._clock())
        self._tried.add(key)
        has_news = chosen.is_inherited or Done.AGAIN in done
        retry = self._find_retry(key, reported, has_news=has_news)
        # A status of which only a refusal's words are new needs no further plan: each retry may have other
        # words.
        has_reported = is_reported and (retry is None or not chosen.has_only_new_words)
        return Outcome(self._find_look(key, chosen), retry, has_moved=has_reported or Done.WRITTEN in done)

    def _find_look(self, key: ServiceKey, chosen: Plan) -> float | None:
        """Return after how many seconds to plan again: as planned, or when marks are tried again."""
        waits = (chosen.requeue_after, self._refusals.seconds_to_next(key, self._clock()))
        return min((wait for wait in waits if wait is not None), default=None)

    def _find_retry(
        self, key: ServiceKey, reported: Mapping[ObjectId, str], *, has_news: bool
    ) -> Retry | None:
        refusals = self._refusals.recall(key, self._clock())
        if has_news or refusals != reported:
            return SOON
        is_tried = any(identity.kind != POD.kind for identity in refusals)
        return REFUSED if is_tried else None
