"""Who may use a service, and how much: `spec.access` of a service over the platform's default. Pure.

It reads what newer versions have written, and what the API server would refuse today. An unknown form of
authentication closes the service: clients then need keys, and no Secret has them. The gateway ignores a limit
that it does not understand.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

from millrace_gateway.access.errors import PolicyError


class SecretRef(NamedTuple):
    """Names a Secret in the cluster."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Scope(StrEnum):
    """Whose use a limit counts."""

    KEY = "Key"
    """Of each client by itself."""
    SERVICE = "Service"
    """Of all clients together."""


@dataclass(frozen=True)
class RateLimit:
    """The most that may be used of a service; None: no limit. Each figure is at least 1."""

    per: Scope
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    """Requests at once."""


@dataclass(frozen=True)
class AccessPolicy:
    """Who may use a service, and how much."""

    needs_key: bool = False
    secret: SecretRef | None = None
    """The Secret with the keys of its clients. Without one a service that needs keys is closed."""
    rate_limits: tuple[RateLimit, ...] = ()

    @cached_property
    def per_key(self) -> RateLimit | None:
        """One limit with the least of each figure of all limits per key; None without any."""
        return find_tightest(self.rate_limits, Scope.KEY)

    @cached_property
    def per_service(self) -> RateLimit | None:
        """One limit with the least of each figure of all limits per service; None without any."""
        return find_tightest(self.rate_limits, Scope.SERVICE)


OPEN = AccessPolicy()
_CLOSED = AccessPolicy(needs_key=True)
_LARGEST_FIGURE = 2**53
"""Buckets count in floats: these have no larger counts one by one, and 10**400 of a Secret is none."""


def read_default(text: str, own_namespace: str) -> AccessPolicy:
    """Return the platform's policy, written as JSON in the shape of `spec.access`.

    Its Secret is one of the gateway's own namespace. Raises PolicyError.
    """
    try:
        access = json.loads(text or "{}")
    except ValueError as error:
        raise PolicyError(
            f"the default access is no JSON ({error}): write gateway.access in values"
        ) from error
    policy = read_policy(access, OPEN, own_namespace)
    if policy.needs_key and policy.secret is None:
        raise PolicyError(
            "the default access needs keys and names no Secret with them: write "
            '{"authentication": {"mode": "APIKey", "secretName": "…"}}, or the mode None'
        )
    return policy


def read_policy(access: object, default: AccessPolicy, namespace: str) -> AccessPolicy:
    """Return the policy of a service of this namespace, by its `spec.access`; `default` has absent parts."""
    if access is None:
        return default
    if not isinstance(access, Mapping):
        return replace(_CLOSED, rate_limits=default.rate_limits)
    policy = _read_authentication(access.get("authentication"), default, namespace)
    limits = access.get("rateLimits")
    return replace(policy, rate_limits=default.rate_limits if limits is None else read_limits(limits))


def read_limits(limits: object, per: Scope | None = None) -> tuple[RateLimit, ...]:
    """Return the limits that are understood. `per`: the scope of all of them, if they name none."""
    if not isinstance(limits, Sequence) or isinstance(limits, str):
        return ()
    return tuple(limit for item in limits if (limit := _read_limit(item, per)))


def find_tightest(limits: Sequence[RateLimit], per: Scope) -> RateLimit | None:
    """Return one limit with the least of each figure of all of this scope; None without any."""
    found = [limit for limit in limits if limit.per is per]
    if len(found) <= 1:
        return found[0] if found else None
    return RateLimit(
        per,
        _find_least(limit.requests_per_minute for limit in found),
        _find_least(limit.tokens_per_minute for limit in found),
        _find_least(limit.concurrency for limit in found),
    )


def _read_authentication(written: object, default: AccessPolicy, namespace: str) -> AccessPolicy:
    if written is None:
        return default
    if not isinstance(written, Mapping):
        return _CLOSED
    name, mode = written.get("secretName"), written.get("mode")
    if mode is None and not name:
        return default
    if mode == "None":
        return OPEN
    if mode not in ("APIKey", None) or not isinstance(name, str | None):
        return _CLOSED
    return AccessPolicy(needs_key=True, secret=SecretRef(namespace, name) if name else default.secret)


def _read_limit(item: object, per: Scope | None) -> RateLimit | None:
    if not isinstance(item, Mapping):
        return None
    scope = item.get("per", per)
    if scope not in tuple(Scope):
        return None
    figures = [_read_figure(item, name) for name in ("requestsPerMinute", "tokensPerMinute", "concurrency")]
    return RateLimit(Scope(scope), *figures) if any(figures) else None


def _read_figure(item: Mapping[str, Any], name: str) -> int | None:
    value = item.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        return None
    return min(value, _LARGEST_FIGURE)


def _find_least(figures: Iterable[int | None]) -> int | None:
    return min((figure for figure in figures if figure is not None), default=None)
