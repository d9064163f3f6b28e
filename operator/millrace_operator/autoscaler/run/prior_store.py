"""Stores the learned model of each service, so that the next leader starts with it.

The model is in an annotation of a revision's ControllerRevision, with the last changes of the count. A leader
reads it once, when it first decides for a service. The cache leaves it out: 750 of them would be
15 MB in every operator's memory, and each write would wake the planner. The planner applies other fields of
the ControllerRevision, so it compares and reverts nothing. Kubernetes removes it with the service.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from millrace_operator.api.change_record import read_change_lines
from millrace_operator.autoscaler.decide.memory import Memory
from millrace_operator.autoscaler.run.prior_record import (
    Record,
    Serving,
    find_accelerator,
    find_serving,
    is_written,
    list_records,
    read_record,
)
from millrace_operator.controller.cache import Cache
from millrace_operator.kube.errors import ClusterError, ConflictError, NotLeaderError, TransientError
from millrace_operator.kube.kinds import CONTROLLER_REVISION, Obj, ServiceKey
from millrace_operator.kube.protocol import Cluster
from millrace_runtime import contract

LOG = logging.getLogger(__name__)
PERIOD_SECONDS = 600.0
"""Between two writes for a service."""
FIRST_PERIOD_SECONDS = 60.0
"""The same until there is a prior: without one the next leader has to learn all again."""
PASS_SECONDS = 10.0
"""At 2 s, passes took a third of the CPU time of an operator with 2,000 services and nothing to do, and at
5 s a quarter. Each pass looks at every service, whose memory is cold by then."""
MOST_IN_A_PASS = 40
"""Writes: 4 a second at most, of the 50 that the operator may make. 750 services need 1.25."""
MOST_AT_ONCE = 8
"""Reads at once, so that the Lease can be renewed beside them."""
READ_SECONDS = 1.0
"""For one read."""
UNREADABLE = "%s: the leader cannot read the learned model of earlier leaders, and starts without it: %s"
UNUSABLE = "%s: the leader cannot use the learned model of earlier leaders: %s"
OTHER_ACCELERATOR = "%s: earlier leaders learned on another accelerator than %s"
UNWRITTEN = "%s: the leader has not written its learned model: %s"
NOTHING = Record()
"""The record of a service before it was read."""
TRIES = 3
"""Attempts to read a record, before the leader decides for a service without it."""
LEAVE_SECONDS = 2.0
"""For the last writes of a leader that ends. The next one waits for the Lease meanwhile."""


class Priors:
    """Owner of each service's record. Empty while this operator does not lead."""

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        is_leader: Callable[[], bool],
        read_memory: Callable[[ServiceKey], Memory | None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`read_memory` returns the autoscaler's memory of a service, None before its first decision."""
        self._cluster = cluster
        self._cache = cache
        self._is_leader = is_leader
        self._read_memory = read_memory
        self._clock = clock
        self._records: dict[str, Record] = {}
        """By the service's uid: a service that was created again has another, and starts without a record."""
        self._tried_at: dict[str, float] = {}
        """The last time when each record was written, was found written, or could not be written."""
        self._failures: dict[str, int] = {}
        self._reading = asyncio.Semaphore(MOST_AT_ONCE)

    async def recall(self, key: ServiceKey) -> Memory | None:
        """Return the memory to start with; None if the API server may answer in a moment."""
        service = self._cache.service(key)
        if service is None:
            return None
        try:
            async with self._reading, asyncio.timeout(READ_SECONDS):
                record = await self._read(key, service)
        except (TransientError, TimeoutError) as error:
            return self._give_up(key, service["metadata"]["uid"], error)
        except ClusterError as error:
            LOG.warning(UNREADABLE, key, error)
            return Memory()
        self._failures.pop(service["metadata"]["uid"], None)
        return _recall(key, record, find_serving(self._cache.pods(key)))

    def _give_up(self, key: ServiceKey, uid: str, error: Exception) -> Memory | None:
        """Return a fresh memory once the API server has failed for long enough, None before."""
        self._failures[uid] = self._failures.get(uid, 0) + 1
        if self._failures[uid] < TRIES:
            return None
        LOG.warning(UNREADABLE, key, error)
        return Memory()

    async def _read(self, key: ServiceKey, service: Obj) -> Record:
        uid = service["metadata"]["uid"]
        written = filter(is_written, list_records(self._cache.children(key), uid))
        names = [one["metadata"]["name"] for one in written]
        found = [await self._cluster.fetch(CONTROLLER_REVISION, key.namespace, name) for name in names]
        record = read_record([one for one in found if one is not None])
        if record.trouble:
            LOG.warning(UNUSABLE, key, record.trouble)
        if record.name is not None:
            self._tried_at[uid] = self._clock()
        self._records[uid] = record
        return record

    async def run(self) -> None:
        """Write the due records at each pass, until cancelled."""
        while True:
            await asyncio.sleep(PASS_SECONDS)
            try:
                await self.write_due()
            except Exception:  # the next pass may succeed
                LOG.exception("the leader writes no learned models in this pass")

    async def write_due(self) -> None:
        """Write the due records that have news, the longest waiting first."""
        if not self._is_leader():
            self._forget()
            return
        keys = self._cache.service_keys()
        self._forget_gone(keys)
        due = [key for key in keys if self._has_readable_news(key) and self._is_due(key)]
        due.sort(key=lambda key: self._tried_at.get(self._find_uid(key), 0.0))
        for key in due[:MOST_IN_A_PASS]:
            await self._write(key)

    def _find_uid(self, key: ServiceKey) -> str:
        """Return the uid of the present service of this name; empty if there is none."""
        return self._cache.service_uid(key) or ""

    def _is_due(self, key: ServiceKey) -> bool:
        uid = self._find_uid(key)
        record = self._records.get(uid, NOTHING)
        period = PERIOD_SECONDS if record.prior else FIRST_PERIOD_SECONDS
        return self._clock() - self._tried_at.get(uid, -math.inf) >= period

    async def leave(self) -> None:
        """Write the records with news before the operator releases the Lease, as many as the time allows."""
        if not self._is_leader():
            return
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                for key in filter(self._has_readable_news, self._cache.service_keys()):
                    await self._write(key)
        except TimeoutError:
            LOG.info("the leader had no time to write all learned models before it ends")

    def _forget(self) -> None:
        for known in (self._records, self._tried_at, self._failures):
            known.clear()

    def _forget_gone(self, keys: Sequence[ServiceKey]) -> None:
        """Forget the services that are gone, once there are more known ones than services.

        A record of another uid does no harm until then. To look in each pass took a fifth of the CPU time of
        an operator with 2,000 services and nothing to do (1.3 % of a core, by hand).
        """
        all_known = (self._records, self._tried_at, self._failures)
        if all(len(known) <= len(keys) for known in all_known):
            return
        staying = {self._find_uid(key) for key in keys}
        for known in all_known:
            for gone in known.keys() - staying:
                known.pop(gone)

    def _has_readable_news(self, key: ServiceKey) -> bool:
        """Add the changes in status to the record, and return whether there is something to write.

        An unreadable memory is no news, and is logged at most once a period.
        """
        try:
            return self._has_news(key)
        except Exception:  # a failure of one service must not stop the others
            if self._is_due(key):
                LOG.exception("%s: the leader cannot read its own learned model", key)
                self._tried_at[self._find_uid(key)] = self._clock()
            return False

    def _has_news(self, key: ServiceKey) -> bool:
        service = self._cache.service(key) or {}
        changes = read_change_lines(service.get("status", {}).get("scaling", {}).get("lastChanges", []))
        uid = self._find_uid(key)
        record = self._records.get(uid, NOTHING).add_changes(changes)
        if uid in self._records:
            self._records[uid] = record
        return record.has_news(self._read_memory(key))

    async def _write(self, key: ServiceKey) -> None:
        """Write one record. After a failure the next attempt is a period later."""
        service = self._cache.service(key)
        if service is None:
            return
        uid = service["metadata"]["uid"]
        try:
            await self._write_news(key, service, uid)
        except NotLeaderError:
            return
        except ConflictError as error:
            self._records.pop(uid, None)  # the next write reads it first
            LOG.info(UNWRITTEN, key, error)
        except ClusterError as error:
            LOG.warning(UNWRITTEN, key, error)
        except Exception:  # a failure of one record must not stop the others
            LOG.exception("%s: the leader has not written its learned model", key)
        self._tried_at[uid] = self._clock()

    async def _write_news(self, key: ServiceKey, service: Obj, uid: str) -> None:
        record, place = self._records.get(uid), self._find_place(key, service)
        is_anothers = record is not None and record.name is None and place is not None and is_written(place)
        if record is None or is_anothers:
            record = await self._read(key, service)
            if record.name is not None or not self._has_news(key):
                return  # the record that is there is young: another leader's, or a new service's of this name
            if self._find_uid(key) != uid:
                return  # the service was created again meanwhile
            record = self._records[uid]
        memory = self._read_memory(key)
        revision = memory.revision if memory else None
        learned = record.learn(memory, find_accelerator(self._cache.pods(key), revision))
        if place is None or (learned is record and not record.num_unwritten):
            return
        written = await self._annotate(key, place, learned)
        names = {"name": written["metadata"]["name"], "version": written["metadata"]["resourceVersion"]}
        self._records[uid] = replace(learned, **names, num_unwritten=0)
        if record.name not in (None, place["metadata"]["name"]):
            await self._remove(key, record)

    def _find_place(self, key: ServiceKey, service: Obj) -> Obj | None:
        """Return the ControllerRevision that serves, or else the newest; None before there is one."""
        records = list_records(self._cache.children(key), service["metadata"]["uid"])
        name = f"{key.name}-{service.get('status', {}).get('currentRevision')}"
        serving = (one for one in records if one["metadata"]["name"] == name)
        return next(serving, records[0] if records else None)

    async def _annotate(self, key: ServiceKey, place: Obj, record: Record) -> Obj:
        """Write a record under the version at which it was read, or where no leader has written one."""
        name, uid = (place["metadata"][field] for field in ("name", "uid"))
        is_same = record.name == name
        version = record.version if is_same else place["metadata"]["resourceVersion"]
        text: dict[str, str | None] = {contract.ANNOTATION_LEARNED: record.render(self._clock())}
        return await self._cluster.annotate(
            CONTROLLER_REVISION, key.namespace, name, uid, text, version=version
        )

    async def _remove(self, key: ServiceKey, record: Record) -> None:
        """Remove the annotation of a previous revision, if there is one, after it moved to another."""
        nothing: dict[str, str | None] = {contract.ANNOTATION_LEARNED: None}
        for one in self._cache.children(key):
            if one["kind"] == CONTROLLER_REVISION.kind and one["metadata"]["name"] == record.name:
                place = key.namespace, one["metadata"]["name"], one["metadata"]["uid"]
                await self._cluster.annotate(CONTROLLER_REVISION, *place, nothing, version=record.version)


def _recall(key: ServiceKey, record: Record, serving: Serving) -> Memory:
    memory = record.recall(serving.revision, serving.accelerator)
    if memory is None:
        if record.memory is not None:
            LOG.info(OTHER_ACCELERATOR, key, serving.accelerator)
        return Memory()
    LOG.info(
        "%s: the leader continues with the learned model of earlier leaders: %.0f samples of revision %s",
        key,
        memory.model.num_samples,
        record.memory.revision if record.memory else None,
    )
    return memory
