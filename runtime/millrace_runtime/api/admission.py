"""Decides whether a request may enter, before any work is done for it. Pure: no clock, no I/O."""

import math
from dataclasses import dataclass
from typing import NamedTuple

_MAX_RETRY_SECONDS = 60
_BYTES_PER_TOKEN = 4
"""A first guess at a body's tokens, so that admission can decide while it arrives."""
_RATE_WEIGHT = 0.05
"""Weight of one step in the moving mean of token throughput: about the last twenty steps count."""


class Refusal(NamedTuple):
    """Why a request may not enter, and after how long to try again."""

    message: str
    retry_after_seconds: int


@dataclass(eq=False)
class Ticket:
    """What one admitted request holds. Admission alone changes it."""

    num_sequences: int = 0
    num_tokens: int = 0
    num_body_bytes: int = 0
    num_event_bytes: int = 0


class Admission:
    """Bounds sequences in flight, prompt tokens that wait for a first step, bodies, and unread answers.

    A sequence is in flight until the engine has ended it. So clients that read slowly keep nobody from an
    idle engine; only the memory of their unread answers is bounded.
    """

    def __init__(
        self, max_sequences: int, max_queued_tokens: int, max_body_bytes: int, max_event_bytes: int
    ) -> None:
        self._max_sequences = max_sequences
        self._max_queued_tokens = max_queued_tokens
        self._max_body_bytes = max_body_bytes
        self._max_event_bytes = max_event_bytes
        self._tokens_per_second = 0.0
        self.num_sequences = 0
        self.num_queued_tokens = 0
        self.num_body_bytes = 0
        self.num_event_bytes = 0

    def admit(self, ticket: Ticket) -> Refusal | None:
        """Hold one sequence, or return a refusal."""
        if self.num_event_bytes > self._max_event_bytes:
            return self._refuse(
                f"{self.num_event_bytes} bytes of answers are not read yet and {self._max_event_bytes} may be"
            )
        return self.resize(ticket, 1, 0)

    def grow(self, ticket: Ticket, num_body_bytes: int, *, max_tokens: int) -> Refusal | None:
        """Hold `num_body_bytes` of the body that have come, and the tokens that they may be.

        The tokens are a guess, until they are counted. They are at most `max_tokens` for each sequence, as
        the model takes no more: else a body of spaces would fill the queue. Bytes that a client only declares
        are not held, because they may never come. A body alone always fits, as do its tokens.
        """
        others = self.num_body_bytes - ticket.num_body_bytes
        if others and others + num_body_bytes > self._max_body_bytes:
            return self._refuse(
                f"{others} bytes of request bodies are held and {self._max_body_bytes} may be"
            )
        num_tokens = min(num_body_bytes // _BYTES_PER_TOKEN, max_tokens * ticket.num_sequences)
        refusal = self.resize(ticket, ticket.num_sequences, num_tokens)
        if refusal is None:
            self._set_body(ticket, num_body_bytes)
        return refusal

    def drop_body(self, ticket: Ticket) -> None:
        """Give back the body; its tokens are still held."""
        self._set_body(ticket, 0)

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
        """Give back the `num_tokens` prompt tokens of a sequence that has its first token."""
        self._set(ticket, ticket.num_sequences, max(0, ticket.num_tokens - num_tokens))

    def end(self, ticket: Ticket) -> None:
        """Give back one sequence that has ended."""
        self._set(ticket, ticket.num_sequences - 1, ticket.num_tokens)

    def hold_events(self, ticket: Ticket, num_bytes: int) -> None:
        """Hold `num_bytes` of the answer in all. Nothing is refused here: they have been computed."""
        self.num_event_bytes += num_bytes - ticket.num_event_bytes
        ticket.num_event_bytes = num_bytes

    def release(self, ticket: Ticket) -> None:
        """Give back whatever the ticket still holds."""
        self._set(ticket, 0, 0)
        self._set_body(ticket, 0)
        self.hold_events(ticket, 0)

    def observe_step(self, num_tokens: int, seconds: float) -> None:
        """Update the engine's throughput, from which Retry-After follows, by one step."""
        if seconds > 0:
            rate = num_tokens / seconds
            known = self._tokens_per_second or rate
            self._tokens_per_second = known + _RATE_WEIGHT * (rate - known)

    def _set(self, ticket: Ticket, num_sequences: int, num_tokens: int) -> None:
        self.num_sequences += num_sequences - ticket.num_sequences
        self.num_queued_tokens += num_tokens - ticket.num_tokens
        ticket.num_sequences, ticket.num_tokens = num_sequences, num_tokens

    def _set_body(self, ticket: Ticket, num_body_bytes: int) -> None:
        self.num_body_bytes += num_body_bytes - ticket.num_body_bytes
        ticket.num_body_bytes = num_body_bytes

    def _refuse(self, message: str) -> Refusal:
        seconds = self.num_queued_tokens / self._tokens_per_second if self._tokens_per_second else 1.0
        return Refusal(
            f"this replica is full: {message}", min(_MAX_RETRY_SECONDS, max(1, math.ceil(seconds)))
        )
