"""What is known of a service beside its watches: what looks by name have found, and what the API server
refuses.
"""

import logging
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from millrace_operator.controller.cache import Cache
from millrace_operator.kube.errors import ClusterError, RefusedError
from millrace_operator.kube.kinds import (
    BY_NAME,
    DEPLOYMENT,
    HORIZONTAL_POD_AUTOSCALER,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    Kind,
    Obj,
    Scope,
    ServiceKey,
)
from millrace_operator.kube.protocol import Cluster
from millrace_operator.model.claims import Claims, read_claim
from millrace_operator.observed.revisions import find_unseen_deployments
from millrace_operator.observed.snapshot import Claim, ObjectId, Rival, is_owned
from millrace_operator.rollout.requested_revision import Awaited, find_awaited
from millrace_operator.scaling.competing_autoscalers import find_rivals

LOG = logging.getLogger(__name__)
MARK_SECONDS = 600.0
"""How long no mark is tried after the API server refused one. Replicas then go without."""


@dataclass(frozen=True)
class Refusal:
    """Why an object is not written, and until when that counts without another try."""

    words: str
    until: float
    """In seconds since 1970."""


class Refusals:
    """Owner of the refusals. One counts until its object is written, or is no longer to be.

    So it outlasts a moment in which nothing can be written. That of a pod's mark counts for MARK_SECONDS, and
    no mark is tried meanwhile. Times are seconds since 1970.
    """

    def __init__(self) -> None:
        self._found: dict[ServiceKey, dict[ObjectId, Refusal]] = {}

    def note(self, key: ServiceKey, identity: ObjectId, words: str, now: float) -> None:
        """Know that this object's write, or this pod's mark, was refused."""
        until = now + MARK_SECONDS if identity.kind == POD.kind else math.inf
        self._found.setdefault(key, {})[identity] = Refusal(words, until)

    def recall(self, key: ServiceKey, now: float) -> dict[ObjectId, str]:
        """Return what counts now, in the API server's words."""
        found = self._found.get(key, {})
        return {identity: refusal.words for identity, refusal in found.items() if now < refusal.until}

    def seconds_to_next(self, key: ServiceKey, now: float) -> float | None:
        """Return after how many seconds marks are tried again; None where none is refused."""
        waits = (refusal.until - now for refusal in self._found.get(key, {}).values())
        return min((wait for wait in waits if 0 < wait < math.inf), default=None)

    def forget(self, key: ServiceKey, identity: ObjectId | None = None) -> None:
        """Forget the refusal of an object that is written, or all of a service that is gone."""
        if identity is None:
            self._found.pop(key, None)
        else:
            self._found.get(key, {}).pop(identity, None)

    def keep(self, key: ServiceKey, tried: Collection[ObjectId], now: float) -> None:
        """Forget what a plan that was acted on whole has not tried, but for the marks of pods."""
        found = self._found.pop(key, {})
        kept = {
            identity: refusal
            for identity, refusal in found.items()
            if identity in tried or (identity.kind == POD.kind and now < refusal.until)
        }
        if kept:
            self._found[key] = kept


class Looks:
    """Owner of what was found beside the watches: by name, or in a list, for one service at a time."""

    def __init__(self, cluster: Cluster, cache: Cache, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._cache = cache
        self._clock = clock
        self._conflicts: dict[ServiceKey, frozenset[ObjectId]] = {}
        self._rivals: dict[ServiceKey, tuple[Rival, ...]] = {}
        """Of services whose Deployments somebody else has scaled; none where none has been found yet."""
        self._claims = Claims()
        self._awaited: dict[ServiceKey, tuple[str, float]] = {}
        """Of services that wait for a look at a model in a claim: the revision, and since when."""
        self._missed: dict[ServiceKey, frozenset[str]] = {}
        """Deployments that pods speak of, and that were looked for."""

    def forget(self, key: ServiceKey) -> None:
        """Forget a service that is gone."""
        self._claims.forget(key)
        for known in (self._conflicts, self._missed, self._rivals, self._awaited):
            known.pop(key, None)

    def suspect_rivals(self, key: ServiceKey) -> None:
        """Look for autoscalers of the service's Deployments from now on: somebody has scaled one."""
        self._rivals.setdefault(key, ())

    async def reveal(self, key: ServiceKey, service: Obj) -> None:
        """Take up Deployments of ours that no watch sees, as their label was removed. Their pods run on."""
        names = find_unseen_deployments(service, self._cache.children(key), self._cache.pods(key))
        for name in names - self._missed.get(key, frozenset()):
            before = self._find_held(DEPLOYMENT, key, name)
            found = await self._cluster.fetch(DEPLOYMENT, key.namespace, name)
            if found is not None and is_owned(found, service["metadata"]["uid"]):
                LOG.info("%s: Deployment %s has lost its label", key, name)
                self._cache.renew(found, before)
        if names:
            self._missed[key] = names
        else:
            self._missed.pop(key, None)

    async def find_conflicts(self, key: ServiceKey, service: Obj) -> frozenset[ObjectId]:
        """Return the conflicts that still stand. No watch sees foreign objects: they lack our label."""
        standing = set()
        for conflict in self._conflicts.get(key, frozenset()):
            found = await self._cluster.fetch(BY_NAME[conflict.kind], key.namespace, conflict.name)
            if found is not None and not is_owned(found, service["metadata"]["uid"]):
                standing.add(conflict)
        self._conflicts[key] = frozenset(standing)
        if not standing:
            del self._conflicts[key]
        return frozenset(standing)

    async def settle_conflict(self, key: ServiceKey, service: Obj, identity: ObjectId) -> None:
        """Put into the cache what is there in truth. An object of somebody else becomes a conflict."""
        kind = BY_NAME[identity.kind]
        before = self._find_held(kind, key, identity.name)
        found = await self._cluster.fetch(kind, key.namespace, identity.name)
        if found is None:
            self._cache.drop(kind, key.namespace, identity.name)
        elif is_owned(found, service["metadata"]["uid"]):
            self._cache.renew(found, before)
        else:
            self._cache.drop(kind, key.namespace, identity.name)
            self._conflicts[key] = self._conflicts.get(key, frozenset()) | {identity}

    def _find_held(self, kind: Kind, key: ServiceKey, name: str) -> Obj | None:
        """Return what the cache holds under a name before a look, which takes a while."""
        return self._cache.find({"kind": kind.kind, "metadata": {"namespace": key.namespace, "name": name}})

    async def find_rivals(self, key: ServiceKey) -> tuple[Rival, ...]:
        """Return the autoscalers of our Deployments, looked up where somebody else has scaled one."""
        if key not in self._rivals:
            return ()
        scope = Scope(HORIZONTAL_POD_AUTOSCALER, key.namespace)
        try:
            found = find_rivals((await self._cluster.fetch_all(scope)).objects, self._cache.children(key))
        except ClusterError as error:
            LOG.warning("%s: no look at HorizontalPodAutoscalers: %s", key, error)
            return self._rivals[key]
        if found:
            self._rivals[key] = found
        else:
            del self._rivals[key]
        return found

    async def find_claim(self, key: ServiceKey, service: Obj) -> Claim | None:
        """Return the claim of `spec.model.cache`, looked at anew where that is due.

        Without such a cache it is the one that a model is in whose revision is to be made. That is looked at
        whenever a Job is to look at the model: days may have passed since the last time.
        """
        try:
            spec = self._cache.spec(key)
        except ValueError:  # the plan tells it
            return None
        cache, generation = spec.model.cache.claim, int(service["metadata"].get("generation", 0))
        awaited = find_awaited(service, spec, self._cache.children(key))
        self._note_awaited(key, awaited)
        name = cache or (awaited and awaited.claim)
        looks_next = awaited is not None and not awaited.has_job
        if name is None:
            self._claims.forget(key)
        elif looks_next or self._claims.is_due(key, spec, generation, self._clock()):
            claim = await self._look_at_claim(key, name, is_needed=cache is not None)
            self._claims.keep(key, claim, generation, self._clock())
        return self._claims.recall(key)

    def looking_since(self, key: ServiceKey) -> float | None:
        """Return since when a service waits for a look at its model in a claim; None where it does not."""
        return self._awaited[key][1] if key in self._awaited else None

    def _note_awaited(self, key: ServiceKey, awaited: Awaited | None) -> None:
        if awaited is None:
            self._awaited.pop(key, None)
        elif awaited.is_new or self._awaited.get(key, ("", 0.0))[0] != awaited.revision:
            self._awaited[key] = awaited.revision, self._clock()

    async def _look_at_claim(self, key: ServiceKey, name: str, *, is_needed: bool) -> Claim | None:
        """Return the claim, as it was where a look fails.

        Raises ClusterError where nothing can be done without it, and the next look may not fail.
        """
        try:
            found = await self._cluster.fetch(PERSISTENT_VOLUME_CLAIM, key.namespace, name)
            return read_claim(key.namespace, name, found)
        except ClusterError as error:
            known = self._claims.recall(key)
            is_known = known is not None and known.name == name
            if is_needed and not is_known and not isinstance(error, RefusedError):
                raise
            LOG.warning("%s: no look at PersistentVolumeClaim %s: %s", key, name, error)
            return known if is_known else None
