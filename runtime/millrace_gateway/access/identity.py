"""Who a client is: an entry in a Secret with keys, which the credentials in its headers name."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from millrace_gateway.access.errors import UnknownKeyError
from millrace_gateway.access.policy import RateLimit, Scope, find_tightest
from millrace_gateway.route.objects import ServiceKey

EVERY_SERVICE = "*"
_OWN_HEADERS = ("api-key", "x-api-key")
"""Azure's and Anthropic's clients send their key in these."""


class Tenant(NamedTuple):
    """One client, by its entry; a new key in the same entry changes nothing."""

    namespace: str
    secret: str
    entry: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.secret}/{self.entry}"


@dataclass(frozen=True)
class Client:
    """What an entry says about its client."""

    tenant: Tenant
    models: frozenset[ServiceKey] | None = None
    """The services that it may use; the name `*` stands for all of a namespace. None: every one."""
    rate_limits: tuple[RateLimit, ...] | None = None
    """Instead of the service's limits per key; None: the service's hold."""

    def may_use(self, service: ServiceKey) -> bool:
        """Whether the client may use a service that names its Secret."""
        if self.models is None:
            return True
        return not self.models.isdisjoint((service, ServiceKey(service.namespace, EVERY_SERVICE)))

    @cached_property
    def per_key(self) -> RateLimit | None:
        """One limit with the least of each figure of its own limits; None: it has none."""
        return find_tightest(self.rate_limits or (), Scope.KEY)

    @cached_property
    def salt(self) -> str:
        """The prefix cache's salt: no other client has it, and it does not reveal the client's names."""
        parts = (part.encode() for part in self.tenant)
        return hashlib.sha256(b"".join(len(part).to_bytes(4) + part for part in parts)).hexdigest()


def read_credentials(headers: Mapping[str, str]) -> str | None:
    """Return the key in the headers, whose names are in lower case; None if there is none.

    Raises UnknownKeyError for two different keys: a proxy before the gateway may have checked the other one.
    """
    found = {headers[name].strip() for name in _OWN_HEADERS if name in headers}
    scheme, _, token = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer":
        found.add(token.strip())
    found.discard("")
    if len(found) > 1:
        raise UnknownKeyError(
            "The request carries two different API keys. Send one, in Authorization, api-key or x-api-key."
        )
    return next(iter(found), None)
