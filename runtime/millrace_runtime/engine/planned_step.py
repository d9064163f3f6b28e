"""A step, from its planning until its result arrives."""

from dataclasses import dataclass, field

from millrace_runtime.engine.sequence import Sequence, Tenancy
from millrace_runtime.engine.token_budget import StepWork
from millrace_runtime.protocol.messages import Begun, StepTiming
from millrace_runtime.protocol.sampling import count_mask_bytes
from millrace_runtime.protocol.step import Row


@dataclass(slots=True)
class PlannedStep:
    """A step's rows, the rest of its token budget, and the sums for its timing."""

    step: int
    num_tokens_left: int
    longest_window: int | None = None
    """The most tokens that a token sees; None: all before it."""
    rows: list[Row] = field(default_factory=list)
    offers: list[tuple[int, Sequence]] = field(default_factory=list)
    """Rows that could verify a draft: each row's number and its sequence."""
    begun: list[Begun] = field(default_factory=list)
    """The sequences that have a row for the first time."""
    num_tokens: int = 0
    num_draws: int = 0
    num_context_tokens: int = 0
    is_decode_only: bool = True
    work: StepWork = field(default_factory=StepWork)
    masked: list[tuple[int, Tenancy, Sequence]] = field(default_factory=list)
    """The numbers and the sequences of the masked rows, in the order of the rows."""
    awaits_masks: bool = False
    """Whether it has masked rows, and their masks were not made yet."""

    def add_row(self, sequence: Sequence, num_tokens: int) -> None:
        """Compute the sequence's next `num_tokens`, and draw one more if these are its last known tokens.

        A sequence that wants no more tokens draws none.
        """
        assert sequence.tenancy is not None
        if not sequence.has_begun:
            sequence.has_begun = True
            self.begun.append(Begun(sequence.new.sequence_id, sequence.num_computed))
        sequence.num_computed += num_tokens
        emit = sequence.num_computed == sequence.num_known and sequence.draws_next
        is_masked = emit and sequence.masks_next
        if emit:
            if sequence.next_draft:
                self.offers.append((len(self.rows), sequence))
            sequence.num_known += 1
            sequence.num_pending += 1
            self.num_draws += 1
        self.num_tokens_left -= num_tokens
        self.num_tokens += num_tokens
        num_read = self._count_read(sequence.num_computed, num_tokens)
        self.num_context_tokens += num_read
        is_decode = emit and num_tokens <= 1 + sequence.num_forced
        if is_decode:
            self.work.num_decoded += num_tokens
            self.work.num_decode_reads += num_read
        else:
            self.work.add_chunk(num_tokens, num_read)
        self.is_decode_only = self.is_decode_only and (is_decode or num_tokens == 1)
        if is_masked:
            self.masked.append((len(self.rows), sequence.tenancy, sequence))
            self.awaits_masks = True
        forced = sequence.forced
        if forced:
            sequence.forced = ()
        self.rows.append(Row(sequence.tenancy.slot, num_tokens, emit, is_masked=is_masked, forced=forced))

    def _count_read(self, num_computed: int, num_tokens: int) -> int:
        """Return the tokens whose KV a row reads."""
        if self.longest_window is None:
            return num_computed
        return min(num_computed, self.longest_window + num_tokens - 1)

    def count_seen(self, num_computed: int) -> int:
        """Return how many of the computed tokens a sequence's next token sees."""
        return self._count_read(num_computed + 1, 1) - 1

    def add_draft(self, number: int, draft: tuple[int, ...]) -> None:
        """Let row `number` verify a draft."""
        row = self.rows[number]
        self.rows[number] = Row(row.slot, row.num_tokens, row.emit, draft, row.is_masked, row.forced)
        self.num_tokens_left -= len(draft)
        self.num_tokens += len(draft)
        self.work.num_decoded += len(draft)
        self.num_draws += len(draft)

    @property
    def can_mask(self) -> bool:
        """Whether the tokens before every masked draw are collected. A sequence that has left needs none."""
        return all(s.num_pending == 1 for _, tenancy, s in self.masked if s.tenancy == tenancy)

    def make_masks(self, vocabulary_size: int) -> memoryview:
        """Return the masks of its masked rows. A sequence that has left may draw anything.

        The masks behind guesses are empty from the first guess on that does not fit. They are made once all
        rows have their first one, and a matcher makes none 2 ms after its own first: so the time of all rows'
        guesses is bounded, not only that of each.
        """
        self.awaits_masks = False
        size = count_mask_bytes(vocabulary_size)
        drafts = [self.rows[number].draft for number, *_ in self.masked]
        masks = memoryview(bytearray(size * sum(1 + len(draft) for draft in drafts)))
        left, guessing = masks, []
        for draft, (_, tenancy, sequence) in zip(drafts, self.masked, strict=True):
            mine = [left[place * size : (place + 1) * size] for place in range(1 + len(draft))]
            left = left[len(mine) * size :]
            mine[0][:] = b"\xff" * size
            if sequence.tenancy == tenancy and sequence.matcher is not None:
                sequence.matcher.fill(mine[0])
                if draft:
                    guessing.append((sequence.matcher, draft, mine))
        for matcher, draft, mine in guessing:
            matcher.look_ahead(draft, mine)
        return masks

    def timing(self, seconds: float) -> StepTiming | None:
        """Return the step's sizes and its `seconds`; None for a step without rows."""
        if not self.rows:
            return None
        return StepTiming(
            seconds, len(self.rows), self.num_tokens, self.num_context_tokens, self.is_decode_only
        )
