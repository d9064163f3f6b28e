"""Who may use a service, and how much: `spec.access`, and the platform's defaults for it. Pure.

A part that a service leaves out is the platform's, from the chart's `gateway.access`.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from pydantic import Field, ValidationError

from millrace_operator.api.field_types import ATOMIC, ObjectName, Part
from millrace_runtime import contract

MOST_REQUESTS = 1_000_000_000
MOST_TOKENS = 1_000_000_000_000
MOST_AT_ONCE = 1_000_000
NUM_LIMITS = 8


class AuthenticationMode(StrEnum):
    """How a client shows who it is."""

    NONE = "None"
    API_KEY = "APIKey"


class LimitScope(StrEnum):
    """Whose requests a limit counts together."""

    KEY = "Key"
    SERVICE = "Service"


class Authentication(Part):
    """Who may use a service."""

    mode: AuthenticationMode = Field(
        description="None: any client that reaches the gateway. APIKey: clients with a key of the Secret. A "
        "change of the mode makes a new revision."
    )
    secret_name: ObjectName | None = Field(
        default=None,
        description="With mode APIKey: a Secret of this namespace with the clients' keys, as kubectl "
        "millrace key create makes it. Default: the platform's Secret.",
    )


class RateLimit(Part):
    """The most that a client, or all clients of a service together, may use. It has at least one figure."""

    per: LimitScope = Field(
        description="Key: of each client, which may have several keys. Service: of all clients together."
    )
    requests_per_minute: int | None = Field(
        default=None, ge=1, le=MOST_REQUESTS, description="Requests that begin in a minute."
    )
    tokens_per_minute: int | None = Field(
        default=None, ge=1, le=MOST_TOKENS, description="Tokens of prompts and answers in a minute."
    )
    concurrency: int | None = Field(
        default=None, ge=1, le=MOST_AT_ONCE, description="Requests at the same time."
    )


class Access(Part):
    """Who may use a service, and how much."""

    authentication: Authentication | None = Field(
        default=None, description="Who may use the service. Default: the platform's."
    )
    rate_limits: list[RateLimit] | None = Field(
        default=None,
        max_length=NUM_LIMITS,
        json_schema_extra=ATOMIC,
        description="The most that clients may use; each of these limits holds. An empty list means no "
        "limit. Default: the platform's.",
    )

    @property
    def needs_keys(self) -> bool:
        """Whether each client needs a key."""
        return self.authentication is not None and self.authentication.mode is AuthenticationMode.API_KEY

    @property
    def secret_name(self) -> str | None:
        """The Secret with the clients' keys; None if none is named."""
        return None if self.authentication is None else self.authentication.secret_name


class SecretRef(NamedTuple):
    """The name of a Secret with clients' keys, and its namespace."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, kw_only=True)
class DefaultAccess:
    """The platform's access, parsed once from the command line."""

    access: Access = field(default_factory=Access)
    """The default of each part that a service leaves out."""

    namespace: str = contract.DEFAULT_NAMESPACE
    """The gateway's own namespace, which has the platform's Secret."""

    secret_namespaces: AbstractSet[str] = frozenset()
    """Other namespaces whose Secrets the gateway may read."""

    def find_secret(self, namespace: str, access: Access) -> SecretRef | None:
        """Return the Secret with the keys of a service in that namespace; None if neither side names one."""
        if access.secret_name is not None:
            return SecretRef(namespace, access.secret_name)
        return None if self.secret_name is None else SecretRef(self.namespace, self.secret_name)

    @property
    def secret_name(self) -> str | None:
        """The platform's Secret; None if it has none, or if its mode is not APIKey."""
        return self.access.secret_name if self.access.needs_keys else None

    def can_read(self, namespace: str) -> bool:
        """Whether the gateway may read the Secrets of a namespace."""
        return namespace == self.namespace or namespace in self.secret_namespaces


def parse_default_access(text: str) -> Access:
    """Return the access in a JSON object of the form of `spec.access`. Raises ValueError."""
    try:
        return Access.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"])) or "the text"
        raise ValueError(
            f"{place}: {first['msg']}; write JSON of the form of spec.access, such as "
            '{"authentication": {"mode": "APIKey", "secretName": "clients"}}'
        ) from error
