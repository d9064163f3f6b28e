"""What one request holds of the replica's bounds, and how its sequences are counted."""

from millrace_runtime.api.admission import Admission, Refusal, Ticket
from millrace_runtime.api.errors import ApiError, OverloadedError
from millrace_runtime.api.metrics import ReplicaMetrics
from millrace_runtime.protocol.messages import FINISH_ABORT


class Booking:
    """One request's ticket and counts. Whatever admission refuses is raised as OverloadedError."""

    def __init__(self, admission: Admission, metrics: ReplicaMetrics) -> None:
        self._admission = admission
        self._metrics = metrics
        self._ticket = Ticket()
        self._num_sequences = 0
        """Sequences received whose end is not counted yet."""

    def admit(self) -> None:
        """Take a place for one sequence."""
        self._receive(1)
        _check(self._admission.admit(self._ticket))

    def grow(self, num_body_bytes: int, *, max_tokens: int) -> None:
        """Hold so much of a body, whose sequences have `max_tokens` at most."""
        _check(self._admission.grow(self._ticket, num_body_bytes, max_tokens=max_tokens))

    def drop_body(self) -> None:
        """Hold no body any more."""
        self._admission.drop_body(self._ticket)

    def resize(self, num_sequences: int, num_tokens: int | None = None) -> None:
        """Hold so many sequences, and prompt tokens that wait; None: as many as before."""
        self._receive(num_sequences)
        num_tokens = self._ticket.num_tokens if num_tokens is None else num_tokens
        _check(self._admission.resize(self._ticket, num_sequences, num_tokens))

    def start_sequence(self, num_tokens: int) -> None:
        """Note that a sequence with a prompt of `num_tokens` waits no longer."""
        self._admission.start(self._ticket, num_tokens)

    def end_sequence(self) -> None:
        """Hold one sequence less: the engine has done its part, however slowly the client reads."""
        self._admission.end(self._ticket)

    def hold_events(self, num_bytes: int) -> None:
        """Hold so many more bytes of the answer."""
        self._admission.hold_events(self._ticket, self._ticket.num_event_bytes + num_bytes)

    def drop_events(self, num_bytes: int) -> None:
        """Hold so many bytes of the answer less: they are written."""
        self._admission.hold_events(self._ticket, self._ticket.num_event_bytes - num_bytes)

    def release(self) -> None:
        """Give everything back. The generation has counted the sequences, or `reject` or `abort` does."""
        self._admission.release(self._ticket)

    def reject(self, failure: ApiError) -> None:
        """Count the sequences as refused, a request that was not even admitted as one."""
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
