"""Executes the writes of a plan, and records the conflicts and refusals that they meet.

The log has successive writes of one kind and reason in one line. A new service has six, and a line for each
took a twentieth of the operator's CPU time.
"""

import itertools
import logging
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import Any, NamedTuple

from millrace_operator.controller.cache import Cache
from millrace_operator.controller.children import Apply, Delete
from millrace_operator.controller.lookups import Lookups
from millrace_operator.controller.plan import Plan
from millrace_operator.controller.refusals import Refusals
from millrace_operator.kube.errors import (
    AbsentError,
    ClusterError,
    ConflictError,
    RefusedError,
    TransientError,
)
from millrace_operator.kube.kinds import (
    INFERENCE_SERVICE,
    POD,
    Obj,
    ObjectId,
    ServiceKey,
    is_owned,
    kind_of,
    object_id,
)
from millrace_operator.kube.protocol import Cluster
from millrace_operator.observed.pods import read_pod
from millrace_operator.render.child import find_unmet
from millrace_operator.scaling.drain import Mark
from millrace_operator.status.status import describe_status


class _Write(NamedTuple):
    verb: str
    why: str
    identity: ObjectId


class Written:
    """The writes of one plan, in order."""

    def __init__(self) -> None:
        self._writes: list[_Write] = []

    def note(self, verb: str, identity: ObjectId, why: str) -> None:
        """Record that an object was written."""
        self._writes.append(_Write(verb, why, identity))

    def take_lines(self) -> list[str]:
        """Return the log's lines for the writes since the last call."""
        writes, self._writes = self._writes, []
        rows = itertools.groupby(writes, key=lambda write: (write.verb, write.why))
        return [
            f"{verb} {', '.join(' '.join(write.identity) for write in writes)}: {why}"
            for (verb, why), writes in rows
        ]


LOG = logging.getLogger(__name__)
MARK_TRIES = 4
"""Attempts at one mark in one look. Others write a pod at any time, its kubelet for example."""


class Done(Enum):
    """The result of one planned write."""

    WRITTEN = auto()
    AGAIN = auto()
    """The object differs from the plan's, or a first step was taken: the next plan is due soon."""
    HELD = auto()
    """The write was refused, or an object that it needs is not there."""
    UNCHANGED = auto()
    """The write succeeded and changed nothing: a webhook undoes it, or an older CRD drops a field."""


class Writer:
    """Writes the plan of one service at a time.

    Written objects enter the cache by `put_written`. Obstacles enter `lookups` and `refusals`.
    """

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        put_written: Callable[[Obj], object],
        *,
        lookups: Lookups,
        refusals: Refusals,
        clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._put_written = put_written
        self._lookups = lookups
        self._refusals = refusals
        self._clock = clock

    async def write_status(self, key: ServiceKey, service: Obj, status: dict[str, Any]) -> Done:
        """Write the decision first. A leader with an old view gets a 409 and writes nothing else.

        A policy of the cluster may refuse it. Only the log can report that.
        """
        metadata = {field: service["metadata"][field] for field in ("name", "namespace", "resourceVersion")}
        head = {"apiVersion": INFERENCE_SERVICE.api_version, "kind": INFERENCE_SERVICE.kind}
        try:
            written = await self._cluster.apply_status({**head, "metadata": metadata, "status": status})
        except AbsentError:
            raise
        except RefusedError as error:
            LOG.error("%s: the API server refuses its status, so nothing else is written: %s", key, error)  # noqa: TRY400
            return Done.HELD
        self._put_written(written)
        LOG.info("%s: status: %s", key, describe_status(status))
        return Done.WRITTEN if _is_another(written, service) else Done.UNCHANGED

    async def write_all(self, key: ServiceKey, service: Obj, chosen: Plan) -> list[Done]:
        """Write marks and children, and log the writes, even if one fails.

        Raises ClusterError if a write failed in a way worth another attempt.
        """
        written = Written()
        try:
            done = [] if chosen.scale is None else [await self._scale(key, service, chosen.scale, written)]
            done += [await self._mark(key, mark, written) for mark in chosen.marks]
            done += [await self._apply(key, service, apply, written) for apply in chosen.applies]
            done += [await self._delete(key, service, delete, written) for delete in chosen.deletes]
        finally:
            _log(key, written)
        return done

    async def _scale(self, key: ServiceKey, service: Obj, replicas: int, written: Written) -> Done:
        """Write the count that a spec lacks, unless somebody has written one by now."""
        identity, current = object_id(service), self._cache.service(key)
        if current is None or "replicas" in current["spec"]:
            return Done.AGAIN
        try:
            await self._cluster.write_scale(current, replicas)
        except ConflictError:
            return Done.AGAIN
        except RefusedError as error:
            self._note_refusal(key, identity, error, written)
            return Done.HELD
        self._refusals.forget(key, identity)
        written.note("scale", identity, f"spec.replicas is absent, and {replicas} is the count now")
        return Done.WRITTEN

    async def _mark(self, key: ServiceKey, mark: Mark, written: Written) -> Done:
        """Mark one pod, or unmark it."""
        identity = ObjectId(POD.kind, mark.pod)
        try:
            pod = await self._annotate(key, mark)
        except RefusedError as error:
            self._note_refusal(key, identity, error, written)
            return Done.HELD
        if pod is None:
            _log(key, written)
            LOG.info("%s: Pod %s has changed before it was marked", key, mark.pod)
            return Done.AGAIN
        self._put_written(pod)
        written.note("mark" if mark.cost else "unmark", identity, mark.why)
        return Done.AGAIN  # a count may fall at once, now that the pod is marked

    async def _annotate(self, key: ServiceKey, mark: Mark) -> Obj | None:
        """Return the pod with its mark; None if the plan has to judge the pod again.

        Others write pods at any time. If a mark meets another version of the pod, it is tried on that one,
        unless something is new on which the mark depends.
        """
        for _ in range(MARK_TRIES):
            annotations, version = dict(mark.annotations), mark.judged.version
            try:
                return await self._cluster.annotate(
                    POD, key.namespace, mark.pod, mark.uid, annotations, version=version
                )
            except (AbsentError, ConflictError):
                renewed = await self._renew(key, mark)
            if renewed is None:
                return None
            mark = renewed
        return None

    async def _renew(self, key: ServiceKey, mark: Mark) -> Mark | None:
        """Return the mark for the pod as it is now; None if the pod is gone, or has to be judged again."""
        names = {"namespace": key.namespace, "name": mark.pod, "uid": mark.uid}
        before: Obj = {"kind": POD.kind, "metadata": names}
        found = await self._cluster.fetch(POD, key.namespace, mark.pod)
        if found is None or found["metadata"]["uid"] != mark.uid:  # the DELETED event is late
            self._cache.forget(before)
            return None
        self._cache.renew(found, before)
        return mark.renew(read_pod(found))

    async def _apply(self, key: ServiceKey, service: Obj, apply: Apply, written: Written) -> Done:
        """Apply one child."""
        identity = object_id(apply.obj)
        if apply.needs and (unmet := find_unmet(apply.needs, self._find_standing(key, service))):
            _log(key, written)
            LOG.info("%s: %s %s waits for %s", key, *identity, ", ".join(map(" ".join, unmet)))
            return Done.HELD
        try:
            done = await self._try_to(self._send(apply), key, service, identity, written)
        except TransientError as error:
            if not apply.is_optional:
                raise
            self._note_refusal(key, identity, error, written)
            return Done.HELD
        if done is Done.WRITTEN:
            written.note("apply", identity, apply.why)
        return done

    async def _send(self, apply: Apply) -> bool:
        """Apply one child. Return whether that changed it."""
        if apply.seen is not None and apply.is_recreated:
            seen = apply.seen["metadata"]
            await self._cluster.delete(
                kind_of(apply.obj), seen["namespace"], seen["name"], seen["uid"], seen["resourceVersion"]
            )
            self._cache.drop(kind_of(apply.obj), seen["namespace"], seen["name"])
        if apply.seen is None or apply.is_recreated:
            with self._cache.noting_ends():
                self._put_written(await self._cluster.apply_new(apply.obj))
            return True
        seen = apply.seen["metadata"]
        written = await self._cluster.apply_owned(apply.obj, seen["uid"], seen["resourceVersion"])
        if self._cache.holds(apply.seen):  # else the watch has reported its deletion already
            self._put_written(written)
        return _is_another(written, apply.seen)

    async def _delete(self, key: ServiceKey, service: Obj, delete: Delete, written: Written) -> Done:
        """Delete one child."""
        metadata, kind, identity = delete.obj["metadata"], kind_of(delete.obj), object_id(delete.obj)
        seen = metadata["uid"], metadata["resourceVersion"]

        async def send() -> bool:
            await self._cluster.delete(kind, key.namespace, metadata["name"], *seen)
            self._cache.drop(kind, key.namespace, metadata["name"])
            return True

        done = await self._try_to(send(), key, service, identity, written)
        if done is Done.WRITTEN:
            written.note("delete", identity, delete.why)
        return done

    async def _try_to(
        self, write: Awaitable[bool], key: ServiceKey, service: Obj, identity: ObjectId, written: Written
    ) -> Done:
        """Write one child, and record a conflict or a refusal for the next plan."""
        try:
            has_changed = await write
        except ConflictError:
            await self._lookups.settle_conflict(key, service, identity)
            return Done.AGAIN
        except RefusedError as error:
            self._note_refusal(key, identity, error, written)
            return Done.HELD
        self._refusals.forget(key, identity)
        return Done.WRITTEN if has_changed else Done.UNCHANGED

    def _find_standing(self, key: ServiceKey, service: Obj) -> dict[ObjectId, Obj]:
        """Return our children as they are now, with the ones just written."""
        uid = service["metadata"]["uid"]
        return {object_id(child): child for child in self._cache.children(key) if is_owned(child, uid)}

    def _note_refusal(
        self, key: ServiceKey, identity: ObjectId, error: ClusterError, written: Written
    ) -> None:
        _log(key, written)
        self._refusals.note(key, identity, str(error), self._clock())
        LOG.warning("%s: %s %s is refused: %s", key, *identity, error)


def _log(key: ServiceKey, written: Written) -> None:
    """Log the writes so far."""
    for line in written.take_lines():
        LOG.info("%s: %s", key, line)


def _is_another(written: Obj, before: Obj) -> bool:
    """Whether a write has changed an object. Its event may reach the cache before the write's own answer."""
    return bool(written["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"])
