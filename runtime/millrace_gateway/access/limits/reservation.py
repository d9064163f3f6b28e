"""An admitted request: what it has reserved of its limits, and what its answer reports as used. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from millrace_gateway.access.identity import Client
from millrace_gateway.access.limits.bucket import Bucket
from millrace_gateway.access.limits.ledger import Account, Ledger
from millrace_gateway.route.objects import ServiceKey


class Usage(NamedTuple):
    """The tokens of an answer, as the replica reports them."""

    prompt: int
    cached: int
    """Tokens of the prompt that were not computed again; they count like the others."""
    completion: int

    @property
    def num_tokens(self) -> int:
        """The tokens that count for limits."""
        return self.prompt + self.completion


class Charge(NamedTuple):
    """An account, and the tokens that the request has used of it so far."""

    account: Account
    tokens: int
    tokens_mark: float = 0.0
    requests_mark: float = 0.0
    """Time gives this request's use back once the buckets' `worked_off` is above these: older use comes
    first."""

    def find_refund(self, unused: int) -> int:
        """Return the part of the unused tokens that time has not given back already.

        A client that holds a reservation for long would get it twice, and could save up many minutes' limits.
        """
        return min(unused, _find_left(self.account.tokens.bucket, self.tokens_mark, self.tokens))

    def find_requests_refund(self) -> int:
        """Return 1 if time has given back at most a tenth of the request, else 0."""
        return _find_left(self.account.requests.bucket, self.requests_mark, 1, tolerance=0.1)


def _find_left(bucket: Bucket | None, mark: float, amount: int, tolerance: float = 0.0) -> int:
    """Return the part of an amount that time has not given back yet, plus the tolerance, rounded down."""
    if bucket is None:
        return 0
    given_back = min(max(0.0, bucket.worked_off - mark), amount)
    return math.floor(amount - given_back + tolerance)


class Reservation:
    """Owner of one request's part of its accounts. It ends with exactly one `settle` or `release`."""

    __slots__ = ("_charges", "_headers", "_is_open", "_ledger")

    def __init__(self, ledger: Ledger, charges: Sequence[Charge], headers: Mapping[str, str]) -> None:
        """The request is charged already; `headers` has the state of its limits."""
        self._ledger = ledger
        self._charges = charges
        self._headers = headers
        self._is_open = True

    def headers(self) -> Mapping[str, str]:
        """Return the state of the limits after the admission, as OpenAI's clients read it."""
        return self._headers

    def bound(self, estimate: Usage) -> Usage:
        """Return the part of an estimate that is reserved; all of it if there is no limit of tokens."""
        reserved = max((charge.tokens for charge in self._charges), default=0)
        if not reserved:
            return estimate
        prompt = min(estimate.prompt, reserved)
        return Usage(prompt, 0, min(estimate.completion, reserved - prompt))

    def observe(self, usage: Usage) -> None:
        """Charge what an answer has used so far, as soon as that is more than was reserved."""
        used = usage.num_tokens
        if self._is_open and any(used > charge.tokens for charge in self._charges):
            self._charges = [self._raise(charge, used) for charge in self._charges]

    def settle(self, usage: Usage | None, *, may_be_more: bool = False) -> None:
        """Charge what was used instead of what was reserved.

        Without a reported usage the reserved amount stays charged. With `may_be_more` at least that amount
        stays.
        """
        ledger, now = self._end()
        for charge in self._charges:
            account = charge.account
            account.num_here -= 1
            if usage is not None:
                used = usage.num_tokens
                self._correct(charge, max(used, charge.tokens) if may_be_more else used, now)
            ledger.note_change(account)

    def release(self) -> None:
        """Give everything back: no replica has begun the request."""
        ledger, now = self._end()
        for charge in self._charges:
            account = charge.account
            account.num_here -= 1
            account.requests.advance(now, ledger.share)
            account.requests.spend(-charge.find_requests_refund(), now, ledger.share)
            self._correct(charge, 0, now)
            ledger.note_change(account)

    def _correct(self, charge: Charge, used: int, now: float) -> None:
        """Charge what was used in place of what was reserved."""
        share, meter = self._ledger.share, charge.account.tokens
        if used >= charge.tokens:
            meter.spend(used - charge.tokens, now, share)
        else:
            meter.advance(now, share)
            meter.spend(-charge.find_refund(charge.tokens - used), now, share)

    def _raise(self, charge: Charge, used: int) -> Charge:
        account, tokens = charge.account, charge.tokens
        if used <= tokens or account.tokens.bucket is None:
            return charge
        account.tokens.spend(used - tokens, self._ledger.clock(), self._ledger.share)
        self._ledger.note_change(account)
        return charge._replace(tokens=used)

    def _end(self) -> tuple[Ledger, float]:
        """Return the ledger and the time."""
        assert self._is_open
        self._is_open = False
        return self._ledger, self._ledger.clock()


@dataclass(slots=True)
class Admission:
    """One admitted request of a service that has keys or limits."""

    service: ServiceKey
    client: Client | None
    reservation: Reservation
    estimate: Usage
    """What the request may use, by its size and its bounds: at most what it has reserved."""
    usage: Usage | None = None
    """None until the replica has reported it."""
    may_be_more: bool = False
    """Whether the replica may have computed more than the gateway has read of its reports."""
    waited_seconds: float = 0.0
    """How long the request has waited for its turn."""
    has_begun: bool = False
    """Whether a replica may have begun the request."""

    @property
    def charged(self) -> Usage | None:
        """What its tenant pays for; None: no replica has begun it.

        For a begun request without a report it is the estimate: its client may have left just before the end.
        """
        if self.usage is None:
            return self.estimate if self.has_begun else None
        if not self.may_be_more:
            return self.usage
        unread = max(0, self.estimate.num_tokens - self.usage.num_tokens)
        return self.usage._replace(completion=self.usage.completion + unread)

    @property
    def num_charged(self) -> int | None:
        """The tokens that its tenant pays for; None: no replica has begun it."""
        charged = self.charged
        return None if charged is None else charged.num_tokens

    def observe(self, text: bytes) -> None:
        """Record the usage that a replica has reported so far, and charge it."""
        usage = read_usage(text)
        if usage is not None:
            self.usage = usage
            self.reservation.observe(usage)


def read_usage(text: bytes | None) -> Usage | None:
    """Read `<prompt> <cached> <completion>`; None for anything else: tenants write what runs in replicas."""
    parts = (text or b"").split()
    if len(parts) != 3 or not all(part.isdigit() and len(part) < 10 for part in parts):
        return None
    return Usage(*map(int, parts))
