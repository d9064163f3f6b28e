"""Admits requests within their limits. Pure.

A request is counted in the account of its client, by the limits per key, and in that of its service, by the
limits per service. It is admitted only if all of them have room; then it is charged to all of them at once.
A client's headers show the limits of its own account. They show those of the service only where there are no
keys: else they would show each client what the others use.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from millrace_gateway.access.errors import RateLimitedError
from millrace_gateway.access.identity import Client
from millrace_gateway.access.limits.bucket import Bucket
from millrace_gateway.access.limits.ledger import Account, AccountKey, Ledger
from millrace_gateway.access.limits.rate_headers import describe_limits, format_seconds
from millrace_gateway.access.limits.reservation import Charge, Reservation
from millrace_gateway.access.policy import AccessPolicy, RateLimit, Scope
from millrace_gateway.route.objects import ServiceKey

BUSY_SECONDS = 1.0
"""Until a request that met too many at once may try again: nobody knows when one of them ends."""
_WHOSE = {Scope.KEY: "this API key", Scope.SERVICE: "this service"}


class Counted(NamedTuple):
    """An account, the limits that hold for it, and its buckets at the time of the request."""

    account: Account
    limit: RateLimit
    requests: Bucket | None
    tokens: Bucket | None


class Obstacle(NamedTuple):
    """A limit that has no room."""

    wait_seconds: float
    whose: str
    what: str


class Limiter:
    """Decides on each request, by the accounts of the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def admit(
        self, client: Client | None, service: ServiceKey, policy: AccessPolicy, estimate_tokens: int
    ) -> Reservation:
        """Reserve a request and its tokens. Raises RateLimitedError, and then nothing is reserved."""
        now = self.ledger.clock()
        counted = self._find_accounts(client, service, policy, now)
        if not counted:
            return Reservation(self.ledger, (), {})
        # An exaggerated bound must not close a service, and one client's must not use up that of all.
        estimate_tokens = min([estimate_tokens, *(one.tokens.limit for one in counted if one.tokens)])
        for one in counted:
            if not self._has_room(one, estimate_tokens):
                obstacle = max(self._find_obstacles(counted, estimate_tokens))
                raise _describe(obstacle, self._describe(client, counted))
        charges = [self._charge(one, estimate_tokens) for one in counted]
        return Reservation(self.ledger, charges, self._describe(client, counted))

    def _find_accounts(
        self, client: Client | None, service: ServiceKey, policy: AccessPolicy, now: float
    ) -> list[Counted]:
        counted = []
        if client is not None:
            limit = policy.per_key if client.rate_limits is None else client.per_key
            if limit is not None:
                counted.append(self._open(AccountKey(service, client.tenant), limit, now))
        if policy.per_service is not None:
            counted.append(self._open(AccountKey(service, None), policy.per_service, now))
        return counted

    def _open(self, key: AccountKey, limit: RateLimit, now: float) -> Counted:
        account, share = self.ledger.open(key), self.ledger.share
        requests, tokens = limit.requests_per_minute, limit.tokens_per_minute
        return Counted(
            account,
            limit,
            account.requests.open(requests, now, share) if requests is not None else None,
            account.tokens.open(tokens, now, share) if tokens is not None else None,
        )

    def _has_room(self, one: Counted, estimate_tokens: int) -> bool:
        share = self.ledger.share
        return not (
            (one.requests is not None and one.requests.find_wait(1, share))
            or (one.tokens is not None and one.tokens.find_wait(estimate_tokens, share))
            or (one.limit.concurrency and self.ledger.find_room(one.limit.concurrency, one.account) < 1)
        )

    def _find_obstacles(self, counted: Sequence[Counted], estimate_tokens: int) -> Iterator[Obstacle]:
        share = self.ledger.share
        for one in counted:
            whose, limit = _WHOSE[one.limit.per], one.limit
            if one.requests and (wait := one.requests.find_wait(1, share)):
                yield Obstacle(wait, whose, f"{limit.requests_per_minute} requests per minute")
            if one.tokens and (wait := one.tokens.find_wait(estimate_tokens, share)):
                what = f"{limit.tokens_per_minute} tokens per minute, and this one may use {estimate_tokens}"
                yield Obstacle(wait, whose, what)
            if limit.concurrency and self.ledger.find_room(limit.concurrency, one.account) < 1:
                yield Obstacle(BUSY_SECONDS, whose, f"{limit.concurrency} requests at once")

    def _charge(self, one: Counted, estimate_tokens: int) -> Charge:
        account, tokens, tokens_mark, requests_mark = one.account, 0, 0.0, 0.0
        account.num_here += 1
        if one.requests is not None:
            requests_mark = one.requests.worked_off + one.requests.deficit
            account.requests.spent += 1
            one.requests.add(1)
        if one.tokens is not None:
            tokens, tokens_mark = estimate_tokens, one.tokens.worked_off + one.tokens.deficit
            account.tokens.spent += tokens
            one.tokens.add(tokens)
        self.ledger.note_change(account)
        return Charge(account, tokens, tokens_mark, requests_mark)

    def _describe(self, client: Client | None, counted: Sequence[Counted]) -> Mapping[str, str]:
        first = counted[0]
        if client is not None and first.limit.per is not Scope.KEY:
            return {}
        return describe_limits(first.requests, first.tokens, self.ledger.share)


def _describe(obstacle: Obstacle, headers: Mapping[str, str]) -> RateLimitedError:
    return RateLimitedError(
        f"Rate limit reached for {obstacle.whose}: {obstacle.what}. "
        f"Try again in {format_seconds(obstacle.wait_seconds)}.",
        obstacle.wait_seconds,
        headers,
    )
