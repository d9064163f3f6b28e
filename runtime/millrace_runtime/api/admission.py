"""Admission: which requests the replica accepts before it does any work for them, and what each one holds.

Pure: no clock, no I/O.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from millrace_runtime.api.errors import ApiError, OverloadedError
from millrace_runtime.api.metrics import ReplicaMetrics
from millrace_runtime.protocol.messages import FINISH_ABORT

_MAX_RETRY_SECONDS = 60
_BYTES_PER_TOKEN = 4
"""For an estimate of a body's tokens, so that admission can decide while the body arrives."""
_RATE_WEIGHT = 0.05
"""Weight of one step in the moving mean of token throughput: about the last twenty steps count."""
MOST_COUNTS = 16
"""The most requests at the same time that only count tokens. They cost the engine nothing, and gateways give
them no turn to wait for: more of them would take the places of sequences and the text worker's time."""


class Refusal(NamedTuple):
    """Why admission refuses a request, and when the client may retry."""

    message: str
    retry_after_seconds: int


@dataclass(eq=False)
class Ticket:
    """The sequences, tokens and bytes that one admitted request holds. Only Admission changes them."""

    num_sequences: int = 0
    num_tokens: int = 0
    num_body_bytes: int = 0
    num_event_bytes: int = 0
    is_count: bool = False
    """Whether its request only counts tokens."""


class Admission:
    """Limits sequences in flight, prompt tokens that wait for a first step, bodies, and unread answers.

    A sequence is in flight until the engine has ended it. So a client that reads slowly keeps no other client
    from an idle engine: admission limits only the memory of its unread answer.
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
        self.num_counts = 0

    def admit_count(self, ticket: Ticket) -> Refusal | None:
        """Admit a request that only counts tokens, or return a refusal."""
        if self.num_counts >= MOST_COUNTS:
            return self._refuse(f"{self.num_counts} requests count tokens, and that is the limit")
        refusal = self.admit(ticket)
        if refusal is None:
            ticket.is_count = True
            self.num_counts += 1
        return refusal

    def admit(self, ticket: Ticket) -> Refusal | None:
        """Hold one sequence, or return a refusal."""
        if self.num_event_bytes > self._max_event_bytes:
            return self._refuse(
                f"clients have not read {self.num_event_bytes} bytes of answers, and the limit is"
                f" {self._max_event_bytes}"
            )
        return self.resize(ticket, 1, 0)

    def grow(self, ticket: Ticket, num_body_bytes: int, *, max_tokens: int) -> Refusal | None:
        """Hold the `num_body_bytes` that have arrived, and an estimate of their tokens.

        The estimate is at most `max_tokens` for each sequence, because the model takes no more: otherwise a
        body of spaces would fill the queue. Bytes that a client only declares do not count, because they may
        never arrive. A single body always fits, and so do its tokens.
        """
        others = self.num_body_bytes - ticket.num_body_bytes
        if others and others + num_body_bytes > self._max_body_bytes:
            return self._refuse(
                f"it holds {others} bytes of request bodies, and the limit is {self._max_body_bytes}"
            )
        num_tokens = min(num_body_bytes // _BYTES_PER_TOKEN, max_tokens * ticket.num_sequences)
        refusal = self.resize(ticket, ticket.num_sequences, num_tokens)
        if refusal is None:
            self._set_body(ticket, num_body_bytes)
        return refusal

    def drop_body(self, ticket: Ticket) -> None:
        """Release the body and keep its tokens."""
        self._set_body(ticket, 0)

    def resize(self, ticket: Ticket, num_sequences: int, num_tokens: int) -> Refusal | None:
        """Set what the ticket holds, or return a refusal and leave the ticket unchanged.

        A request that is alone in the queue always fits, so no limit can refuse a long prompt for ever.
        """
        others = self.num_sequences - ticket.num_sequences
        if others + num_sequences > self._max_sequences:
            return self._refuse(f"{others} sequences are in flight, and the limit is {self._max_sequences}")
        queued = self.num_queued_tokens - ticket.num_tokens
        if queued and num_tokens > ticket.num_tokens and queued + num_tokens > self._max_queued_tokens:
            return self._refuse(f"{queued} prompt tokens wait, and the limit is {self._max_queued_tokens}")
        self._set(ticket, num_sequences, num_tokens)
        return None

    def start(self, ticket: Ticket, num_tokens: int) -> None:
        """Release the `num_tokens` prompt tokens of a sequence that has its first token."""
        self._set(ticket, ticket.num_sequences, max(0, ticket.num_tokens - num_tokens))

    def end(self, ticket: Ticket) -> None:
        """Release one sequence that has ended."""
        self._set(ticket, ticket.num_sequences - 1, ticket.num_tokens)

    def hold_events(self, ticket: Ticket, num_bytes: int) -> None:
        """Hold `num_bytes` of the answer in total. It refuses nothing: they are already computed."""
        self.num_event_bytes += num_bytes - ticket.num_event_bytes
        ticket.num_event_bytes = num_bytes

    def release(self, ticket: Ticket) -> None:
        """Release everything that the ticket still holds."""
        self.num_counts -= ticket.is_count
        ticket.is_count = False
        self._set(ticket, 0, 0)
        self._set_body(ticket, 0)
        self.hold_events(ticket, 0)

    def observe_step(self, num_tokens: int, seconds: float) -> None:
        """Update the engine's throughput with one step. Retry-After follows from the throughput."""
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


class Booking:
    """One request's ticket and counts. It raises admission's refusals as OverloadedError.

    As a context manager it releases at the end everything that it still holds.
    """

    def __init__(self, admission: Admission, metrics: ReplicaMetrics) -> None:
        self._admission = admission
        self._metrics = metrics
        self._ticket = Ticket()
        self._num_sequences = 0
        """Sequences that count as received, and not yet as ended."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._admission.release(self._ticket)

    def admit(self) -> None:
        """Hold one sequence. The number of the request's sequences is not known yet."""
        self._receive(1)
        _check(self._admission.admit(self._ticket))

    def grow(self, num_body_bytes: int, *, max_tokens: int) -> None:
        """Hold `num_body_bytes` of a body, and at most `max_tokens` prompt tokens for each sequence."""
        _check(self._admission.grow(self._ticket, num_body_bytes, max_tokens=max_tokens))

    def drop_body(self) -> None:
        """Release the body."""
        self._admission.drop_body(self._ticket)

    def resize(self, num_sequences: int, num_tokens: int | None = None) -> None:
        """Hold `num_sequences` and `num_tokens` waiting prompt tokens; None: as many tokens as before."""
        self._receive(num_sequences)
        num_tokens = self._ticket.num_tokens if num_tokens is None else num_tokens
        _check(self._admission.resize(self._ticket, num_sequences, num_tokens))

    def start_sequence(self, num_tokens: int) -> None:
        """Release the `num_tokens` prompt tokens of a sequence that no longer waits."""
        self._admission.start(self._ticket, num_tokens)

    def end_sequence(self) -> None:
        """Release one sequence that the engine has ended. Its client may still read the answer."""
        self._admission.end(self._ticket)

    def hold_events(self, num_bytes: int) -> None:
        """Hold `num_bytes` more of the answer."""
        self._admission.hold_events(self._ticket, self._ticket.num_event_bytes + num_bytes)

    def drop_events(self, num_bytes: int) -> None:
        """Release `num_bytes` of the answer that are written."""
        self._admission.hold_events(self._ticket, self._ticket.num_event_bytes - num_bytes)

    def reject(self, failure: ApiError) -> None:
        """Count the sequences as refused. A request without any counts as one sequence."""
        self._receive(max(1, self._num_sequences))
        self._metrics.rejected[failure.reason] += self._num_sequences

    def abort(self) -> None:
        """Count the sequences of a client that left before they reached the engine."""
        self._metrics.finished[FINISH_ABORT] += self._num_sequences

    def _receive(self, num_sequences: int) -> None:
        self._metrics.num_received += num_sequences - self._num_sequences
        self._num_sequences = num_sequences


def _check(refusal: Refusal | None) -> None:
    if refusal is not None:
        raise OverloadedError(refusal.message, retry_after=refusal.retry_after_seconds)
