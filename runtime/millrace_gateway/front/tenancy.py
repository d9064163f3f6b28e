"""Connects the parts that know clients: their keys and limits, the gateways' signing keys, and the log."""

import logging
import time
import uuid
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager

from millrace_gateway.access.keys import KeyIndex
from millrace_gateway.access.limits.ledger import Ledger
from millrace_gateway.access.limits.limiter import Limiter
from millrace_gateway.access.log_writer import LogWriter
from millrace_gateway.access.peers.limit_exchange import LimitExchange
from millrace_gateway.access.peers.links import PeerLinks, PeerServer
from millrace_gateway.access.signer import Signer
from millrace_gateway.access.usage import UsageBook
from millrace_gateway.access.usage_metrics import UsageCollector
from millrace_gateway.errors import CannotListenError
from millrace_gateway.front.guard import Guard
from millrace_gateway.front.replica_looks import ReplicaLooks
from millrace_gateway.front.secret_sinks import GatewayPodSink, KeySecretSink, SigningKeySink
from millrace_gateway.front.turnstiles import Turnstiles
from millrace_gateway.lifecycle import Lifecycle
from millrace_gateway.report.metrics import Metrics
from millrace_gateway.route.objects import ServiceChanges
from millrace_gateway.route.preference import Preferences
from millrace_gateway.settings import Settings
from millrace_runtime.contract import PORT_GATEWAY_PEERS
from millrace_runtime.listener import describe_failure, open_listener

logger = logging.getLogger(__name__)

STDOUT = 1
AnySink = KeySecretSink | SigningKeySink | GatewayPodSink


class Tenancy:
    """The parts, and how they learn of the cluster."""

    def __init__(self, settings: Settings, metrics: Metrics, replica_looks: ReplicaLooks) -> None:
        self._settings = settings
        self.keys = KeyIndex(logger.warning)
        self.signer = Signer(time.time, logger.warning)
        self._ledger = Ledger(time.monotonic)
        self._exchange = LimitExchange(self._ledger, uuid.uuid4().hex)
        self._log = LogWriter(STDOUT) if settings.has_access_log else None
        self.turnstiles = Turnstiles(time.monotonic, replica_looks.look, replica_looks.find_counts)
        self.counting = Turnstiles(time.monotonic, replica_looks.look_for_counting, lambda _: {})
        """Turns of requests that only count tokens: FIRST_REQUESTS at each replica, which does not report
        them."""
        self.preferences = Preferences(by_user=settings.sessions_by_user)
        self._book = book = UsageBook(time.time())
        self._links = PeerLinks(settings.pod_name, self._exchange, book, self.signer, PORT_GATEWAY_PEERS)
        metrics.add_collector(UsageCollector(book, time.monotonic))
        self.guard = Guard(
            self.keys,
            Limiter(self._ledger),
            self.signer,
            book=book,
            default=settings.default_access,
            wall_clock=time.time,
            log=self._log.write if self._log else None,
        )

    def refresh(self) -> None:
        """Release requests that may go without a replica's news, and drop gateways that are silent.

        A bug of ours at one service must not stop the turns of the others.
        """
        for turnstiles in (self.turnstiles, self.counting):
            for service in turnstiles.list_busy():
                try:
                    turnstiles.refresh(service)
                except Exception:
                    logger.exception("a look at the replicas of service %s failed", service)
        self._exchange.refresh()

    def forget_deleted(self, changes: ServiceChanges) -> None:
        """Forget deleted services."""
        self.turnstiles.forget_deleted(changes)
        self.counting.forget_deleted(changes)
        for key in changes.deleted:
            self.guard.forget(key)

    def drain(self) -> None:
        """Refuse the requests that wait for their turns: another gateway may take them."""
        self.turnstiles.close()
        self.counting.close()

    def make_sinks(self, own_namespace: str, lifecycle: Lifecycle) -> Collection[AnySink]:
        """Return what has to be followed in the cluster."""
        namespaces = sorted({own_namespace, *self._settings.secret_namespaces})
        secrets = [KeySecretSink(namespace, self.keys, lifecycle) for namespace in namespaces]
        signing = SigningKeySink(own_namespace, self.signer.replace_keys, lifecycle)
        return [*secrets, signing, GatewayPodSink(own_namespace, self._set_gateways, lifecycle)]

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Receive the other gateways' reports while entered. Raises CannotListenError."""
        address = self._settings.bind_address
        try:
            listener = open_listener(address, self._settings.peers_port)
        except OSError as error:
            text = describe_failure(error, address, self._settings.peers_port, port_flag="--peers-port")
            raise CannotListenError(text) from error
        async with PeerServer(self._exchange, self._book, self.signer).serve(listener):
            try:
                yield
            finally:
                await self._links.close()
                if self._log is not None:
                    self._log.close()

    def _set_gateways(self, addresses: Mapping[str, str]) -> None:
        self._links.set_peers(addresses)
        self.turnstiles.num_gateways = self.preferences.num_gateways = max(1, len(addresses))
