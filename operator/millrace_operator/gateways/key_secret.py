"""The Secret with the gateways' private keys: the leader makes it when a service needs it, and rotates it.

With these keys a gateway proves to replicas that it is a gateway, and to other gateways, with which it
exchanges the counts for limits. The Secret is in the operator's own namespace. The operator reads no other
Secret.
"""

import asyncio
import base64
import binascii
import logging
import time
from collections.abc import Callable

from millrace_operator.api.access_types import Access, DefaultAccess
from millrace_operator.controller.cache import Cache
from millrace_operator.controller.watch_recorder import WatchedLists
from millrace_operator.gateways.signing_keys import KeyPlan, find_newest, list_named_keys, name_key, plan_keys
from millrace_operator.kube.errors import AbsentError, ClusterError, ConflictError, RefusedError
from millrace_operator.kube.kinds import SECRET, Obj, ServiceKey
from millrace_operator.kube.protocol import Cluster
from millrace_operator.observed.snapshot import GatewayKey
from millrace_runtime.contract import SECRET_GATEWAY_KEY
from millrace_runtime.gateway_token import find_public_key, generate_key

LOG = logging.getLogger(__name__)
LOOK_SECONDS = 60.0
"""Between two looks at the Secret: an administrator may have added a key."""
NUM_TRIES = 3


class GatewayKeys:
    """Owner of the Secret. While no service has keys or limits, nothing is read or made."""

    def __init__(
        self,
        cluster: Cluster,
        access: DefaultAccess,
        cache: Cache,
        lists: WatchedLists,
        queue_service: Callable[[ServiceKey], None],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Calls `queue_service` with each service as soon as a key is known that was missing before."""
        self._cluster = cluster
        self._access = access
        self._cache = cache
        self._lists = lists
        self._queue_service = queue_service
        self._clock = clock
        self._is_looking = asyncio.Lock()
        self._found: GatewayKey | None = None
        self._looked_at = 0.0

    async def find(self) -> GatewayKey:
        """Return the public key for a new revision, from a look that is at most a minute old.

        Raises ClusterError if a look failed in a way worth another attempt, and no key is known.
        """
        async with self._is_looking:
            if self._found is None or not 0 <= self._clock() - self._looked_at < LOOK_SECONDS:
                await self._look()
        return self._found or GatewayKey(None, "the operator has not read it yet")

    async def run(self, is_leader: Callable[[], bool]) -> None:
        """Look every minute while this operator leads, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.keep(is_leader=is_leader())

    async def keep(self, *, is_leader: bool) -> None:
        """Look once, if a service needs it."""
        if not is_leader:
            self._found = None
        elif self._is_wanted():
            try:
                await self.find()
            except ClusterError as error:
                LOG.warning("cannot read Secret %s: %s", SECRET_GATEWAY_KEY, error)

    def _is_wanted(self) -> bool:
        """Whether a service has keys or limits, by itself or by the platform's default."""
        services = map(self._cache.service, self._cache.service_keys())
        return self._access.access != Access() or any(
            service["spec"].get("access") for service in services if service
        )

    async def _look(self) -> None:
        before = self._found
        try:
            public = await self._renew()
        except RefusedError as error:
            self._found = GatewayKey(None, f"{error}; upgrade the chart, which has the Role for it")
        except ClusterError:
            if self._found is None or self._found.public is None:
                raise
        else:
            self._found = GatewayKey(public)
        self._looked_at = self._clock()
        if before is not None and before.public is None and self._found and self._found.public is not None:
            for key in self._cache.service_keys():
                self._queue_service(key)

    async def _renew(self) -> str:
        """Make, rotate or read the Secret, and return the newest public key. Raises ClusterError."""
        for _ in range(NUM_TRIES):
            secret = await self._cluster.fetch(SECRET, self._access.namespace, SECRET_GATEWAY_KEY)
            try:
                secret = await self._act(secret)
            except (ConflictError, AbsentError):  # another leader was faster, or somebody deleted it
                continue
            entries = read_entries(secret)
            if newest := find_newest(entries):
                return str(entries[newest])
        raise ConflictError(f"Secret {SECRET_GATEWAY_KEY} has no key, or is changed all the time")

    async def _act(self, secret: Obj | None) -> Obj:
        """Make or change the Secret, if that is due, and return it."""
        if secret is None:
            name = name_key(self._clock())
            LOG.info("making Secret %s with key %s", SECRET_GATEWAY_KEY, name)
            return await self._cluster.apply_new(_render_secret(self._access.namespace, name))
        due = plan_keys(self._clock(), read_entries(secret), list_keys_in_use(self._cache, self._lists))
        if due == KeyPlan():
            return secret
        LOG.info("Secret %s: adding key %s, removing %s", SECRET_GATEWAY_KEY, due.added, due.removed)
        change: dict[str, str | None] = dict.fromkeys(due.removed)
        if due.added is not None:
            change[due.added] = _generate()
        return await self._cluster.change_data(secret, change)


def read_entries(secret: Obj) -> dict[str, str | None]:
    """Return the public keys of the Secret's entries by name; None for a value that is no private key."""
    return {name: _find_public(value) for name, value in (secret.get("data") or {}).items()}


def _find_public(value: str) -> str | None:
    try:
        return find_public_key(base64.b64decode(value, validate=True))
    except (ValueError, binascii.Error):
        return None


def _generate() -> str:
    return base64.b64encode(generate_key()).decode()


def _render_secret(namespace: str, name: str) -> Obj:
    metadata = {"namespace": namespace, "name": SECRET_GATEWAY_KEY}
    head = {"apiVersion": SECRET.api_version, "kind": SECRET.kind, "metadata": metadata}
    return {**head, "type": "Opaque", "data": {name: _generate()}}


def list_keys_in_use(cache: Cache, lists: WatchedLists) -> frozenset[str] | None:
    """Return the public keys that pods have, or would get. None if there may be others."""
    if lists.lacks_any:
        return None
    keys = cache.service_keys()
    objects = (obj for key in keys for obj in (*cache.children(key), *cache.pods(key)))
    return frozenset(list_named_keys(objects))
