"""The use of each client since the gateways started, through this gateway and through others. Pure.

Its memory is bounded. Metrics have the use through this gateway alone: Prometheus adds up the gateways.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from millrace_gateway.access.identity import Tenant
from millrace_gateway.access.limits.reservation import Usage
from millrace_gateway.route.objects import ServiceKey

MOST_RECORDS = 20_000
"""Pairs of a client and a service: 10 MB. Beyond it the gateway forgets the client that was quiet longest."""

MOST_GATEWAYS = 32
"""The most other gateways whose counts this one keeps; gateways that have ended are included."""


@dataclass
class Use:
    """Counts of requests and tokens."""

    requests: int = 0
    """Requests that were admitted."""
    refused: int = 0
    """Requests beyond a limit."""
    prompt: int = 0
    cached: int = 0
    """Tokens of prompts that were not computed again."""
    completion: int = 0

    def add(self, other: "Use") -> None:
        """Add other counts."""
        self.requests += other.requests
        self.refused += other.refused
        self.prompt += other.prompt
        self.cached += other.cached
        self.completion += other.completion

    def describe(self) -> dict[str, Any]:
        """Return the counts as JSON."""
        tokens = {"prompt": self.prompt, "cached": self.cached, "completion": self.completion}
        return {"requests": self.requests, "refused": self.refused, "tokens": tokens}


@dataclass
class ClientUse:
    """The counts of one client."""

    total: Use = field(default_factory=Use)
    services: dict[ServiceKey, Use] = field(default_factory=dict)
    version: int = 0
    """The book's version at the last change."""


class UsageBook:
    """Owner of the counts."""

    def __init__(self, began: float, most_records: int = MOST_RECORDS) -> None:
        """`began` is the gateway's start, by the wall clock, in seconds since 1970."""
        self.began = began
        self._most_records = most_records
        self._num_records = 0
        self._clients: OrderedDict[Tenant, ClientUse] = OrderedDict()
        """The one that was used last at the end, so in the order of their versions."""
        self._elsewhere: OrderedDict[str, dict[Tenant, Mapping[ServiceKey, Use]]] = OrderedDict()
        """What passed through other gateways, by their incarnations; the newest at the end."""
        self.version = 0
        """Number of changes here."""
        self.total = Use()
        """The sum over clients, with those that are forgotten."""

    @property
    def clients(self) -> Mapping[Tenant, ClientUse]:
        """The clients that are not forgotten."""
        return self._clients

    def count_request(self, tenant: Tenant, service: ServiceKey, usage: Usage | None) -> None:
        """Count an admitted request at its end, with what its client has used."""
        self._add(tenant, service, Use(1, 0, *(usage or (0, 0, 0))))

    def count_refusal(self, tenant: Tenant, service: ServiceKey) -> None:
        """Count a request beyond a limit."""
        self._add(tenant, service, Use(refused=1))

    def describe(self, tenant: Tenant) -> dict[str, Any]:
        """Return the document about one client, for the owner of its key."""
        total, services = Use(), defaultdict[ServiceKey, Use](Use)
        here = self._clients.get(tenant, ClientUse()).services
        for uses in (here, *(clients.get(tenant, {}) for clients in self._elsewhere.values())):
            for service, use in uses.items():
                services[service].add(use)
                total.add(use)
        return {
            "object": "usage",
            "client": tenant.entry,
            "since": int(self.began),
            **total.describe(),
            "services": {str(service): use.describe() for service, use in sorted(services.items())},
        }

    def list_changed(self, version: int, most: int) -> list[tuple[Tenant, ClientUse]]:
        """Return the clients that have changed here after a version, at most so many: the first."""
        changed = takewhile(lambda item: item[1].version > version, reversed(self._clients.items()))
        return list(changed)[::-1][:most]

    def replace_elsewhere(self, incarnation: str, tenant: Tenant, uses: Mapping[ServiceKey, Use]) -> None:
        """Replace a client's use through another gateway since that gateway started."""
        if incarnation not in self._elsewhere:
            self._elsewhere[incarnation] = {}
            if len(self._elsewhere) > MOST_GATEWAYS:
                self._elsewhere.popitem(last=False)
        clients = self._elsewhere[incarnation]
        if tenant in clients or len(clients) < self._most_records:
            clients[tenant] = uses

    def _add(self, tenant: Tenant, service: ServiceKey, use: Use) -> None:
        client = self._clients.setdefault(tenant, ClientUse())
        self.version += 1
        client.version = self.version
        self._clients.move_to_end(tenant)
        if service not in client.services:
            client.services[service] = Use()
            self._num_records += 1
        for record in (client.services[service], client.total, self.total):
            record.add(use)
        while self._num_records > self._most_records and len(self._clients) > 1:
            _, forgotten = self._clients.popitem(last=False)
            self._num_records -= len(forgotten.services)
