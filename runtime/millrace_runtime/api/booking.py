"""What one request holds of the replica's bounds, and how its sequences are counted."""

from millrace_runtime.api.admission import Admission, Refusal, Ticket
from millrace_runtime.api.errors import ApiError, OverloadedError
from millrace_runtime.api.metrics import ReplicaMetrics
from millrace_runtime.protocol.messages import FINISH_ABORT


class Booking:
    """One request's ticket and counts. A refusal of admission is raised as OverloadedError.

    As a context manager it gives back at the end whatever it holds.
    """

    def __init__(self, admission: Admission, metrics: ReplicaMetrics) -> None:
        self._admission = admission
        self._metrics = metrics
        self._ticket = Ticket()
        self._num_sequences = 0
        """Sequences received whose end is not counted yet."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._admission.release(self._ticket)

    def admit(self) -> None:
        """Hold one sequence: how many the request has is not known yet."""
        self._receive(1)
        _check(self._admission.admit(self._ticket))

    def grow(self, num_body_bytes: int, *, max_tokens: int) -> None:
        """Hold `num_body_bytes` of a body, and at most `max_tokens` prompt tokens for each sequence."""
        _check(self._admission.grow(self._ticket, num_body_bytes, max_tokens=max_tokens))

    def drop_body(self) -> None:
        """Give back the body."""
        self._admission.drop_body(self._ticket)

    def resize(self, num_sequences: int, num_tokens: int | None = None) -> None:
        """Hold `num_sequences`, and `num_tokens` prompt tokens that wait; None: as many as before."""
        self._receive(num_sequences)
        num_tokens = self._ticket.num_tokens if num_tokens is None else num_tokens
        _check(self._admission.resize(self._ticket, num_sequences, num_tokens))

    def start_sequence(self, num_tokens: int) -> None:
        """Give back the `num_tokens` prompt tokens of a sequence that waits no longer."""
        self._admission.start(self._ticket, num_tokens)

    def end_sequence(self) -> None:
        """Give back one sequence: the engine has ended it, however slowly the client reads."""
        self._admission.end(self._ticket)

    def hold_events(self, num_bytes: int) -> None:
        """Hold `num_bytes` more of the answer."""
        self._admission.hold_events(self._ticket, self._ticket.num_event_bytes + num_bytes)

    def drop_events(self, num_bytes: int) -> None:
        """Give back `num_bytes` of the answer: they are written."""
        self._admission.hold_events(self._ticket, self._ticket.num_event_bytes - num_bytes)

    def reject(self, failure: ApiError) -> None:
        """Count the sequences as refused. A request that was not admitted counts as one."""
        self._receive(max(1, self._num_sequences))
        self._metrics.rejected[failure.reason] += self._num_sequences

    def abort(self) -> None:
        """Count the sequences of a client that left before the engine knew of them."""
        self._metrics.finished[FINISH_ABORT] += self._num_sequences

    def _receive(self, num_sequences: int) -> None:
        self._metrics.num_received += num_sequences - self._num_sequences
        self._num_sequences = num_sequences


def _check(refusal: Refusal | None) -> None:
    if refusal is not None:
        raise OverloadedError(refusal.message, retry_after=refusal.retry_after_seconds)
