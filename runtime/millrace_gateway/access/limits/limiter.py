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
from millrace_gateway.access.policy import AccessPolicy, RateLimit, Scope, find_tightest
from millrace_gateway.route.objects import ServiceKey

BUSY_SECONDS = 1.0
"""Until a request that met too many at once may try again: nobody knows when one of them ends."""
_WHOSE = {Scope.KEY: "this API key", Scope.SERVICE: "this service"}


class Counted(NamedTuple):
    """An account, and the limits that hold for it."""

    account: Account
    limit: RateLimit

    @property
    def requests(self) -> Bucket | None:
        """The bucket of requests, if they are limited."""
        return self.account.requests.bucket if self.limit.requests_per_minute is not None else None

    @property
    def tokens(self) -> Bucket | None:
        """The bucket of tokens, if they are limited."""
        return self.account.tokens.bucket if self.limit.tokens_per_minute is not None else None


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
        counted = list(self._find_accounts(client, service, policy))
        if not counted:
            return Reservation(self.ledger, (), {})
        now = self.ledger.clock()
        for account, limit in counted:
            account.set_limits(limit, now, self.ledger.share)
        obstacle = max(self._find_obstacles(counted, estimate_tokens, now), default=None)
        if obstacle:
            raise _describe(obstacle, self._describe(client, counted, now))
        charges = [self._charge(one, estimate_tokens, now) for one in counted]
        return Reservation(self.ledger, charges, self._describe(client, counted, now))

    def _find_accounts(
        self, client: Client | None, service: ServiceKey, policy: AccessPolicy
    ) -> Iterator[Counted]:
        if client is not None:
            own = policy.rate_limits if client.rate_limits is None else client.rate_limits
            limit = find_tightest(own, Scope.KEY)
            if limit:
                yield Counted(self.ledger.open(AccountKey(service, client.tenant)), limit)
        limit = find_tightest(policy.rate_limits, Scope.SERVICE)
        if limit:
            yield Counted(self.ledger.open(AccountKey(service, None)), limit)

    def _find_obstacles(
        self, counted: Sequence[Counted], estimate_tokens: int, now: float
    ) -> Iterator[Obstacle]:
        share = self.ledger.share
        for one in counted:
            whose, limit = _WHOSE[one.limit.per], one.limit
            if one.requests and (wait := one.requests.find_wait(1, now, share)):
                yield Obstacle(wait, whose, f"{limit.requests_per_minute} requests per minute")
            if one.tokens and (wait := one.tokens.find_wait(estimate_tokens, now, share)):
                what = f"{limit.tokens_per_minute} tokens per minute, and this one may use {estimate_tokens}"
                yield Obstacle(wait, whose, what)
            if limit.concurrency and self.ledger.find_room(limit.concurrency, one.account) < 1:
                yield Obstacle(BUSY_SECONDS, whose, f"{limit.concurrency} requests at once")

    def _charge(self, one: Counted, estimate_tokens: int, now: float) -> Charge:
        ledger, tokens = self.ledger, 0
        if one.tokens:
            tokens = min(estimate_tokens, one.tokens.limit)  # an exaggerated bound must not close a service
        one.account.num_here += 1
        one.account.requests.spend(1, now, ledger.share)
        one.account.tokens.spend(tokens, now, ledger.share)
        ledger.note_change(one.account)
        return Charge(one.account, tokens)

    def _describe(self, client: Client | None, counted: Sequence[Counted], now: float) -> Mapping[str, str]:
        first = counted[0]
        if client is not None and first.limit.per is not Scope.KEY:
            return {}
        return describe_limits(first.requests, first.tokens, now, self.ledger.share)


def _describe(obstacle: Obstacle, headers: Mapping[str, str]) -> RateLimitedError:
    return RateLimitedError(
        f"Rate limit reached for {obstacle.whose}: {obstacle.what}. "
        f"Try again in {format_seconds(obstacle.wait_seconds)}.",
        obstacle.wait_seconds,
        headers,
    )
