"""What one admitted request has reserved of its limits, from its admission to its end. Pure."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from millrace_gateway.access.limits.ledger import Account, Ledger


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

    def observe(self, usage: Usage) -> None:
        """Charge what a stream has used so far, as soon as that is more than was reserved."""
        used = usage.num_tokens
        if self._is_open and any(used > charge.tokens for charge in self._charges):
            self._charges = [self._raise(charge, used) for charge in self._charges]

    def settle(self, usage: Usage | None) -> None:
        """Charge what was used instead of what was reserved. None: nobody knows, so the reserved stays."""
        ledger, now = self._end()
        for account, tokens in self._charges:
            account.num_here -= 1
            if usage is not None:
                account.tokens.spend(usage.num_tokens - tokens, now, ledger.share)
            ledger.note_change(account)

    def release(self) -> None:
        """Give everything back: no replica has begun the request."""
        ledger, now = self._end()
        for account, tokens in self._charges:
            account.num_here -= 1
            account.requests.spend(-1, now, ledger.share)
            account.tokens.spend(-tokens, now, ledger.share)
            ledger.note_change(account)

    def _raise(self, charge: Charge, used: int) -> Charge:
        account, tokens = charge
        if used <= tokens or account.tokens.bucket is None:
            return charge
        account.tokens.spend(used - tokens, self._ledger.clock(), self._ledger.share)
        self._ledger.note_change(account)
        return Charge(account, used)

    def _end(self) -> tuple[Ledger, float]:
        """Return the ledger and the time."""
        assert self._is_open
        self._is_open = False
        return self._ledger, self._ledger.clock()
