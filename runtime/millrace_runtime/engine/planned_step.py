"""A step while it is planned, and what is kept of it until its result is here."""

from dataclasses import dataclass, field

from millrace_runtime.engine.sequence import Sequence
from millrace_runtime.protocol.messages import StepTiming
from millrace_runtime.protocol.step import Row


@dataclass(slots=True)
class PlannedStep:
    """Rows, the budget left for more, and the sums that its timing will tell."""

    step: int
    num_tokens_left: int
    rows: list[Row] = field(default_factory=list)
    offers: list[tuple[int, Sequence]] = field(default_factory=list)
    """Rows that could verify a draft, by number."""
    num_tokens: int = 0
    num_context_tokens: int = 0
    is_decode_only: bool = True
    is_masked: bool = False
    """Whether any row is."""

    def add_row(self, sequence: Sequence, num_tokens: int) -> None:
        """Have the step compute the sequence's next tokens, and draw one if these are all it knows."""
        assert sequence.tenancy is not None
        sequence.num_computed += num_tokens
        emit = sequence.num_computed == sequence.num_known
        is_masked = emit and sequence.request.is_masked
        if emit:
            if sequence.next_draft and not is_masked:
                self.offers.append((len(self.rows), sequence))
            sequence.num_known += 1
            sequence.num_pending += 1
        self.num_tokens_left -= num_tokens
        self.num_tokens += num_tokens
        self.num_context_tokens += sequence.num_computed
        self.is_decode_only = self.is_decode_only and num_tokens == 1
        self.is_masked = self.is_masked or is_masked
        self.rows.append(Row(sequence.tenancy.slot, num_tokens, emit, 0, (), is_masked))

    def add_draft(self, number: int, max_draft: int) -> None:
        """Let a row verify a draft."""
        row = self.rows[number]
        self.rows[number] = Row(row.slot, row.num_tokens, row.emit, max_draft)
        self.num_tokens_left -= max_draft
        self.num_tokens += max_draft

    def timing(self, seconds: float) -> StepTiming | None:
        """Return what the step did and cost; None where it computed nothing."""
        if not self.rows:
            return None
        return StepTiming(
            seconds, len(self.rows), self.num_tokens, self.num_context_tokens, self.is_decode_only
        )
