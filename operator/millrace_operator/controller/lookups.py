"""Looks up what no watch of ours reports of a service: conflicts, autoscalers, claims, lost Deployments."""

import logging
from collections.abc import Callable

from millrace_operator.api.access_types import DefaultAccess
from millrace_operator.controller.cache import Cache
from millrace_operator.kube.errors import ClusterError, RefusedError
from millrace_operator.kube.kinds import (
    BY_NAME,
    DEPLOYMENT,
    HORIZONTAL_POD_AUTOSCALER,
    PERSISTENT_VOLUME_CLAIM,
    Kind,
    Obj,
    ObjectId,
    Scope,
    ServiceKey,
    is_owned,
)
from millrace_operator.kube.protocol import Cluster
from millrace_operator.model.claims import Claims, read_claim
from millrace_operator.observed.revisions import find_unseen_deployments
from millrace_operator.observed.snapshot import Claim, Rival
from millrace_operator.rollout.requested_revision import Awaited, find_awaited
from millrace_operator.scaling.competing_autoscalers import find_rivals

LOG = logging.getLogger(__name__)


class Lookups:
    """Owner of the results of lookups, by name or in a list, for one service at a time."""

    def __init__(
        self, cluster: Cluster, cache: Cache, access: DefaultAccess, clock: Callable[[], float]
    ) -> None:
        self._cluster = cluster
        self._access = access
        self._cache = cache
        self._clock = clock
        self._conflicts: dict[ServiceKey, frozenset[ObjectId]] = {}
        self._rivals: dict[ServiceKey, tuple[Rival, ...]] = {}
        """The autoscalers of services whose Deployments somebody else has scaled; empty if none is known."""
        self._claims = Claims()
        self._awaited: dict[ServiceKey, tuple[str, float]] = {}
        """Services that wait for a look at a model in a claim: the revision, and since when."""
        self._missed: dict[ServiceKey, frozenset[str]] = {}
        """The Deployments without our label that the operator has looked up already, by name."""

    def forget(self, key: ServiceKey) -> None:
        """Forget a deleted service."""
        self._claims.forget(key)
        for known in (self._conflicts, self._missed, self._rivals, self._awaited):
            known.pop(key, None)

    def suspect_rivals(self, key: ServiceKey) -> None:
        """Look for autoscalers of the service's Deployments from now on, because somebody has scaled one."""
        self._rivals.setdefault(key, ())

    async def find_unlabelled(self, key: ServiceKey, service: Obj) -> None:
        """Put our Deployments that lost their label into the cache: no watch sees them."""
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
        """Return the conflicts that still exist. No watch sees foreign objects without our label."""
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
        """Put the real object into the cache. An object of somebody else becomes a conflict."""
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
        """Return what the cache holds under a name before a lookup, which takes a while."""
        return self._cache.find({"kind": kind.kind, "metadata": {"namespace": key.namespace, "name": name}})

    async def find_rivals(self, key: ServiceKey) -> tuple[Rival, ...]:
        """Return the autoscalers of our Deployments, looked up after somebody else has scaled one."""
        if key not in self._rivals:
            return ()
        scope = Scope(HORIZONTAL_POD_AUTOSCALER, key.namespace)
        try:
            found = find_rivals((await self._cluster.fetch_all(scope)).objects, self._cache.children(key))
        except ClusterError as error:
            LOG.warning("%s: cannot list HorizontalPodAutoscalers: %s", key, error)
            return self._rivals[key]
        if found:
            self._rivals[key] = found
        else:
            del self._rivals[key]
        return found

    async def find_claim(self, key: ServiceKey, service: Obj) -> Claim | None:
        """Return the claim of `spec.model.cache`, looked up again when that is due.

        Without such a cache, return the claim of a model whose revision is to be made. The operator looks it
        up before each Job that looks at the model: days may have passed since the last time.
        """
        try:
            spec = self._cache.spec(key).complete(self._access)
        except ValueError:  # the plan reports it
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
        """Return since when a service waits for a look at its model in a claim; None if it does not wait."""
        return self._awaited[key][1] if key in self._awaited else None

    def _note_awaited(self, key: ServiceKey, awaited: Awaited | None) -> None:
        if awaited is None:
            self._awaited.pop(key, None)
        elif awaited.is_new or self._awaited.get(key, ("", 0.0))[0] != awaited.revision:
            self._awaited[key] = awaited.revision, self._clock()

    async def _look_at_claim(self, key: ServiceKey, name: str, *, is_needed: bool) -> Claim | None:
        """Return the claim; its previous state if the lookup fails.

        Raises ClusterError if the plan needs the claim, and the next lookup may succeed.
        """
        try:
            found = await self._cluster.fetch(PERSISTENT_VOLUME_CLAIM, key.namespace, name)
            return read_claim(key.namespace, name, found)
        except ClusterError as error:
            known = self._claims.recall(key)
            is_known = known is not None and known.name == name
            if is_needed and not is_known and not isinstance(error, RefusedError):
                raise
            LOG.warning("%s: cannot read PersistentVolumeClaim %s: %s", key, name, error)
            return known if is_known else None
