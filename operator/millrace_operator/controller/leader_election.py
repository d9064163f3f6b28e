"""Takes, renews and releases the Lease. Only its holder writes."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable

from millrace_operator.kube.errors import ClusterError
from millrace_operator.kube.kinds import LEASE
from millrace_operator.kube.lease import RETRY_SECONDS, LeaseView
from millrace_operator.kube.protocol import Cluster

LOG = logging.getLogger(__name__)


class Election:
    """One candidate. It stops leading if it could not renew the Lease within the deadline."""

    def __init__(self, cluster: Cluster, view: LeaseView) -> None:
        self._cluster = cluster
        self._view = view
        self._changed = asyncio.Event()
        """Set, and replaced, when we take, renew or release the Lease: waiting tasks look again."""
        self.holder = ""

    def is_leader(self) -> bool:
        """Whether writes are still safe."""
        return self._view.is_held(time.monotonic())

    async def wait_for(self, *, leading: bool) -> None:
        """Wait until this replica leads, or until it does not. The clock shows a lost Lease."""
        while self.is_leader() is not leading:
            changed = self._changed
            # Not asyncio.wait_for: that of Python 3.11 loses a cancellation that comes with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._view.seconds_held(time.monotonic())):
                    await changed.wait()

    async def run(self, leave: Callable[[], Awaitable[None]]) -> None:
        """Take or renew the Lease periodically. When cancelled, run `leave` and then release the Lease."""
        try:
            while True:
                wait: float = RETRY_SECONDS
                try:
                    await self.campaign()
                    wait = self._view.seconds_to_look(time.monotonic())
                except ClusterError as error:
                    LOG.warning("Lease not renewed: %s", error)
                await asyncio.sleep(wait * random.uniform(0.9, 1.1))  # noqa: S311  no secret
        finally:
            try:
                await leave()
            finally:
                await self.release()

    async def campaign(self) -> None:
        """Take or renew the Lease once, if that is allowed."""
        view = self._view
        started = time.monotonic()
        lease = await self._cluster.fetch(LEASE, view.namespace, view.name)
        # Another's Lease counts from the answer: it may have been renewed while the request was on its way.
        if lease is None:
            await self._cluster.create_lease(view.render(None, time.time(), view.identity))
        elif view.examine(lease, time.monotonic()):
            lease = {**lease, "apiVersion": LEASE.api_version, "kind": LEASE.kind}
            await self._cluster.replace_lease(view.render(lease, time.time(), view.identity))
        else:
            self.holder = lease.get("spec", {}).get("holderIdentity") or ""
            self._note_renewal(None)
            return
        # Our own Lease counts from before the request: the server's clock started no earlier.
        self.holder = view.identity
        self._note_renewal(started)

    async def release(self) -> None:
        """Release the Lease, so that another replica can lead at once."""
        if not self.is_leader():
            return
        self._note_renewal(None)
        try:
            lease = await self._cluster.fetch(LEASE, self._view.namespace, self._view.name)
            if lease and lease.get("spec", {}).get("holderIdentity") == self._view.identity:
                lease = {**lease, "apiVersion": LEASE.api_version, "kind": LEASE.kind}
                await self._cluster.replace_lease(self._view.render(lease, time.time(), ""))
        except ClusterError as error:
            LOG.warning("Lease not released, it runs out by itself: %s", error)

    def _note_renewal(self, renewed_at: float | None) -> None:
        """Record when our Lease was renewed; None if the Lease is not ours."""
        self._view.renewed_at = renewed_at
        self._changed.set()
        self._changed = asyncio.Event()
