"""Who may use a service, and how much: `spec.access`. Pure.

A part that a service leaves out is the platform's, from the chart's `gateway.access`.
"""

from enum import StrEnum

from pydantic import Field

from millrace_operator.api.field_types import ATOMIC, Part
from millrace_operator.api.pod_types import ObjectName

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
        description="None: whoever reaches the gateway. APIKey: clients with a key of the Secret. A change "
        "of the mode makes a new revision."
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
