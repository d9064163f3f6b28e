"""Admits requests within their limits. Pure.

The limiter counts a request in the account of its client, by the limits per key, and in that of its service,
by the limits per service. It admits the request only if all of them have room, and then charges all of them
at once. A client's headers show the limits of its own account. They show those of the service only where
there are no keys: else they would show each client what the others use.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from millrace_gateway.access.errors import RateLimitedError
from millrace_gateway.access.identity import Client
from millrace_gateway.access.limits.bucket import Bucket
from millrace_gateway.access.limits.ledger import Account, AccountKey, Ledger
from millrace_gateway.access.limits.reservation import Charge, Reservation, Usage
from millrace_gateway.access.policy import AccessPolicy, RateLimit, Scope
from millrace_gateway.route.objects import ServiceKey

BUSY_SECONDS = 1.0
"""Retry-After of a request beyond the limit of requests at once: nobody knows when one of them ends."""
_BYTES_PER_TOKEN = 4
USUAL_COMPLETION, _USUAL_ANSWER = 16, 256
"""Tokens without a bound of the request's own: of /v1/completions, as OpenAI has it, and of other answers."""
_LONGEST_ANSWER = 2**20
"""Tokens. A larger bound of a request's own reserves no more, and counts as no more: few models have a longer
context."""
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
        self, client: Client | None, service: ServiceKey, policy: AccessPolicy, num_tokens: int
    ) -> Reservation:
        """Reserve a request and its tokens. Raises RateLimitedError, and then nothing is reserved."""
        now = self.ledger.clock()
        counted = self._find_accounts(client, service, policy, now)
        if not counted:
            return Reservation(self.ledger, (), {})
        # A request with a huge bound reserves at most the smallest of these limits: one client's request must
        # not use up more than that client may, of the tokens of all.
        num_tokens = min([num_tokens, *(one.tokens.limit for one in counted if one.tokens)])
        for one in counted:
            if not self._has_room(one, num_tokens):
                obstacle = max(self._find_obstacles(counted, num_tokens))
                raise _make_refusal(obstacle, self._describe_headers(client, counted))
        charges = [self._charge(one, num_tokens) for one in counted]
        return Reservation(self.ledger, charges, self._describe_headers(client, counted))

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

    def _has_room(self, one: Counted, num_tokens: int) -> bool:
        share = self.ledger.share
        return not (
            (one.requests is not None and one.requests.find_wait(1, share))
            or (one.tokens is not None and one.tokens.find_wait(num_tokens, share))
            or (one.limit.concurrency and self.ledger.find_room(one.limit.concurrency, one.account) < 1)
        )

    def _find_obstacles(self, counted: Sequence[Counted], num_tokens: int) -> Iterator[Obstacle]:
        share = self.ledger.share
        for one in counted:
            whose, limit = _WHOSE[one.limit.per], one.limit
            if one.requests and (wait := one.requests.find_wait(1, share)):
                yield Obstacle(wait, whose, f"{limit.requests_per_minute} requests per minute")
            if one.tokens and (wait := one.tokens.find_wait(num_tokens, share)):
                what = f"{limit.tokens_per_minute} tokens per minute, and this one may use {num_tokens}"
                yield Obstacle(wait, whose, what)
            if limit.concurrency and self.ledger.find_room(limit.concurrency, one.account) < 1:
                yield Obstacle(BUSY_SECONDS, whose, f"{limit.concurrency} requests at once")

    def _charge(self, one: Counted, num_tokens: int) -> Charge:
        account, tokens, tokens_mark, requests_mark = one.account, 0, 0.0, 0.0
        account.num_here += 1
        if one.requests is not None:
            requests_mark = one.requests.worked_off + one.requests.deficit
            account.requests.spent += 1
            one.requests.add(1)
        if one.tokens is not None:
            tokens, tokens_mark = num_tokens, one.tokens.worked_off + one.tokens.deficit
            account.tokens.spent += tokens
            one.tokens.add(tokens)
        self.ledger.note_change(account)
        return Charge(account, tokens, tokens_mark, requests_mark)

    def _describe_headers(self, client: Client | None, counted: Sequence[Counted]) -> Mapping[str, str]:
        first = counted[0]
        if client is not None and first.limit.per is not Scope.KEY:
            return {}
        return describe_limits(first.requests, first.tokens, self.ledger.share)


def _make_refusal(obstacle: Obstacle, headers: Mapping[str, str]) -> RateLimitedError:
    return RateLimitedError(
        f"Rate limit reached for {obstacle.whose}: {obstacle.what}. "
        f"Try again in {format_seconds(obstacle.wait_seconds)}.",
        obstacle.wait_seconds,
        headers,
    )


def estimate_usage(num_bytes: int, max_tokens: int | None, num_choices: int) -> Usage:
    """Return what to reserve for a body of this size and these bounds, before anybody counts its tokens."""
    completion = _USUAL_ANSWER if max_tokens is None else min(max(0, max_tokens), _LONGEST_ANSWER)
    return Usage(max(1, num_bytes // _BYTES_PER_TOKEN), 0, completion * max(1, num_choices))


def estimate_tokens(num_bytes: int, max_tokens: int | None, num_choices: int) -> int:
    """Return the tokens of that estimate."""
    return estimate_usage(num_bytes, max_tokens, num_choices).num_tokens


def estimate_turn(estimate: int, num_bytes: int, num_choices: int) -> int:
    """Return the part of an estimate that a request's turn counts until its use is known.

    An agent may allow 32,768 tokens and use 300. By its bound it would have one request at the replicas at a
    time. So no bound counts as more than what requests without one usually use. What a request has used
    beyond that counts at its end; until then its tenant's part of the places keeps it from taking more.
    """
    return min(estimate, estimate_tokens(num_bytes, None, num_choices))


def describe_limits(requests: Bucket | None, tokens: Bucket | None, share: float) -> Mapping[str, str]:
    """Return `x-ratelimit-{limit,remaining,reset}-{requests,tokens}` of these buckets, as OpenAI's API."""
    headers: dict[str, str] = {}
    if requests is not None:
        headers["x-ratelimit-limit-requests"] = str(requests.limit)
        headers["x-ratelimit-remaining-requests"] = str(int(requests.find_remaining(share)))
        headers["x-ratelimit-reset-requests"] = format_seconds(requests.find_reset(share))
    if tokens is not None:
        headers["x-ratelimit-limit-tokens"] = str(tokens.limit)
        headers["x-ratelimit-remaining-tokens"] = str(int(tokens.find_remaining(share)))
        headers["x-ratelimit-reset-tokens"] = format_seconds(tokens.find_reset(share))
    return headers


def format_seconds(seconds: float) -> str:
    """Return a time as `17ms`, `1.5s`, `6m0s` or `1h0m0s`, rounded up."""
    if seconds < 1.0:
        return f"{-int(-seconds * 1000 // 1)}ms"
    if seconds < 60.0:
        tenths = -int(-seconds * 10 // 1)
        return f"{tenths / 10:g}s" if tenths < 600 else "1m0s"
    minutes, rest = divmod(-int(-seconds // 1), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"
