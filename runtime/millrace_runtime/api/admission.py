"""Decides whether a request may enter, before any work is done for it. Pure: no clock, no I/O."""

import math
from dataclasses import dataclass
from typing import NamedTuple

_MAX_RETRY_SECONDS = 60
_RATE_WEIGHT = 0.05
"""Weight of one step in the moving mean of token throughput: about the last twenty steps count."""


class Refusal(NamedTuple):
    """Why not, and when to come back."""

    message: str
    retry_after_seconds: int


@dataclass(eq=False)
class Ticket:
    """What one admitted request holds. Admission alone changes it."""

    num_sequences: int = 0
    num_tokens: int = 0


class Admission:
    """Bounds the sequences in flight and the prompt tokens that wait for their first step."""

    def __init__(self, max_sequences: int, max_queued_tokens: int) -> None:
        self._max_sequences = max_sequences
        self._max_queued_tokens = max_queued_tokens
        self._tokens_per_second = 0.0
        self.num_sequences = 0
        self.num_queued_tokens = 0

    def admit(self, num_tokens: int) -> Ticket | Refusal:
        """Admit a request as one sequence of about `num_tokens`, both to be settled by `resize`."""
        ticket = Ticket()
        return self.resize(ticket, 1, num_tokens) or ticket

    def resize(self, ticket: Ticket, num_sequences: int, num_tokens: int) -> Refusal | None:
        """Set what the ticket holds, or return a refusal and leave it as it was.

        A request alone in the queue always fits, so no bound can lock out a long prompt for ever.
        """
        others = self.num_sequences - ticket.num_sequences
        if others + num_sequences > self._max_sequences:
            return self._refuse(f"{others} sequences are in flight and {self._max_sequences} may be")
        queued = self.num_queued_tokens - ticket.num_tokens
        if queued and num_tokens > ticket.num_tokens and queued + num_tokens > self._max_queued_tokens:
            return self._refuse(f"{queued} prompt tokens wait and {self._max_queued_tokens} may")
        self._set(ticket, num_sequences, num_tokens)
        return None

    def start(self, ticket: Ticket, num_tokens: int) -> None:
        """Note that a sequence of `num_tokens` has its first token: it no longer waits."""
        self._set(ticket, ticket.num_sequences, max(0, ticket.num_tokens - num_tokens))

    def release(self, ticket: Ticket) -> None:
        """Give back whatever the ticket still holds."""
        self._set(ticket, 0, 0)

    def observe_step(self, num_tokens: int, seconds: float) -> None:
        """Learn the engine's throughput from one step: it makes Retry-After realistic."""
        if seconds > 0:
            rate = num_tokens / seconds
            known = self._tokens_per_second or rate
            self._tokens_per_second = known + _RATE_WEIGHT * (rate - known)

    def _set(self, ticket: Ticket, num_sequences: int, num_tokens: int) -> None:
        self.num_sequences += num_sequences - ticket.num_sequences
        self.num_queued_tokens += num_tokens - ticket.num_tokens
        ticket.num_sequences, ticket.num_tokens = num_sequences, num_tokens

    def _refuse(self, message: str) -> Refusal:
        seconds = self.num_queued_tokens / self._tokens_per_second if self._tokens_per_second else 1.0
        return Refusal(
            f"this replica is full: {message}", min(_MAX_RETRY_SECONDS, max(1, math.ceil(seconds)))
        )
