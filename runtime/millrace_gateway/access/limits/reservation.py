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
        if self._is_open and any(usage.num_tokens > charge.tokens for charge in self._charges):
            self._charge(usage.num_tokens, is_end=False)

    def settle(self, usage: Usage | None) -> None:
        """Charge what was used instead of what was reserved. None: nobody knows, so the reserved stays."""
        assert self._is_open
        self._is_open = False
        self._charge(usage.num_tokens if usage else None, is_end=True)

    def release(self) -> None:
        """Give everything back: no replica has begun the request."""
        assert self._is_open
        self._is_open = False
        ledger, now = self._ledger, self._ledger.clock()
        for account, tokens in self._charges:
            account.num_here -= 1
            account.requests.spend(-1, now, ledger.share)
            account.tokens.spend(-tokens, now, ledger.share)
            ledger.note_change(account)

    def _charge(self, used: int | None, *, is_end: bool) -> None:
        ledger, now, charges = self._ledger, self._ledger.clock(), []
        for account, tokens in self._charges:
            total = tokens if used is None else used if is_end else max(used, tokens)
            if account.tokens.bucket is None:
                total = tokens
            account.tokens.spend(total - tokens, now, ledger.share)
            account.num_here -= is_end
            ledger.note_change(account)
            charges.append(Charge(account, total))
        self._charges = charges
