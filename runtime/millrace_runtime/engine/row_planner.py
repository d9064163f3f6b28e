"""Which rows a step has: decodes first, then chunks of prefill, the oldest first, then new sequences.

It places sequences on the device and preempts them. `scheduler.py` has the rules by which each one ends.
"""

from millrace_runtime.engine.age_queue import AgeQueue
from millrace_runtime.engine.drafts import add_drafts
from millrace_runtime.engine.planned_step import PlannedStep
from millrace_runtime.engine.preemption import choose_victim
from millrace_runtime.engine.residency import Claims, Residency
from millrace_runtime.engine.sequence import Sequence, State
from millrace_runtime.engine.token_budget import TokenBudget
from millrace_runtime.protocol.step import Limits

MOST_KEYS = 16_384
"""Blocks of the sequences that one step places. To look up and share so many takes 12 ms."""


class RowPlanner:
    """Chooses the rows of each step, over the sequences that wait and those on the device."""

    def __init__(self, limits: Limits, residency: Residency, budget: TokenBudget | None) -> None:
        """Without a `budget` chunks take all tokens that a step has left."""
        self._limits, self._residency, self._budget = limits, residency, budget
        self.waiting = AgeQueue()
        self.running = AgeQueue()
        self.num_preemptions = 0
        self._is_crowded = False
        """Whether no running sequence has ended since the last preemption."""

    def add_rows(self, planned: PlannedStep, *, is_trial: bool = False) -> None:
        """Fill a step. A trial measures plain steps: chunks have no target, and nothing is guessed."""
        self._residency.drop_unseen()
        self._secure_oldest()
        self._add_decodes(planned)
        num_withheld = 0 if is_trial else self._limit_chunks(planned)
        self._add_prefills(planned)
        self._admit(planned)
        if not planned.work.num_chunked:
            planned.num_tokens_left += num_withheld  # for drafts: these shorten the wait for a token
        if not is_trial:
            add_drafts(planned, self._residency, self._limits.max_draws)

    def end(self, sequence: Sequence) -> None:
        """Take a sequence from its queue, and its blocks and its slot from it."""
        if sequence.state is State.RUNNING:
            self.running.remove(sequence)
            self._residency.evict(sequence)
            self._is_crowded = False
        else:
            self.waiting.remove(sequence)
        sequence.move_to(State.ENDED)

    def send_back(self, sequence: Sequence) -> None:
        """Take a running sequence from the device. It keeps its tokens, and waits at its old place."""
        self.running.remove(sequence)
        self._residency.evict(sequence)
        sequence.move_to(State.WAITING)
        self.waiting.add(sequence)

    def check_integrity(self) -> None:
        """Assert that every sequence is in the queue of its state."""
        assert all(s.state is State.WAITING and not s.tables for s in self.waiting)
        assert all(s.state is State.RUNNING and s.tenancy for s in self.running)

    def _secure_oldest(self) -> None:
        """Place the oldest sequence with room for its next token. It may preempt younger ones."""
        oldest = self._oldest()
        if oldest is None:
            return
        if oldest.state is State.WAITING:
            while not self._residency.has_room_for(oldest, ()):
                self._preempt_cheapest()
            self._place(oldest)
        if oldest.is_prefilling:
            while self._residency.extend(oldest, oldest.num_computed + 1) == oldest.num_computed:
                self._preempt_cheapest()

    def _add_decodes(self, planned: PlannedStep) -> None:
        """Add a token of each, and then the forced ones that fit, those of the oldest first.

        Forced tokens get the tokens and blocks that remain, and preempt no sequence.
        """
        oldest = self.running.oldest
        num_left = planned.num_tokens_left - (oldest is not None and oldest.is_prefilling)
        decodes = self._choose_decodes(num_left)
        num_left -= len(decodes)
        for sequence in decodes:
            num_tokens = 1
            if sequence.num_forced and (num_more := min(sequence.num_uncomputed - 1, num_left)):
                wanted = sequence.num_computed + 1 + num_more
                num_tokens = self._residency.extend(sequence, wanted) - sequence.num_computed
                num_left -= num_tokens - 1
            planned.add_row(sequence, num_tokens)

    def _choose_decodes(self, num_rows: int) -> list[Sequence]:
        """Return at most `num_rows` decodes, with blocks for their next tokens. It may preempt others."""
        while True:
            decodes = [sequence for sequence in self.running if sequence.is_decoding][:num_rows]
            needy = [sequence for sequence in decodes if sequence.num_computed >= sequence.room]
            if self._residency.can_extend(needy):
                for sequence in needy:
                    self._residency.extend(sequence, sequence.num_computed + 1)
                return decodes
            self._preempt_cheapest()

    def _limit_chunks(self, planned: PlannedStep) -> int:
        """Shorten the step for the sequences that decode, with or without a row in it.

        Return the tokens that it loses.
        """
        if self._budget is None or all(sequence.has_chunks for sequence in self.running):
            return 0
        prefilling = (sequence.num_computed for sequence in self.running if sequence.is_prefilling)
        most = self._budget.limit_chunk(planned.work, planned.count_seen(next(prefilling, 0)))
        num_withheld = max(planned.num_tokens_left - most, 0)
        planned.num_tokens_left -= num_withheld
        return num_withheld

    def _add_prefills(self, planned: PlannedStep) -> None:
        """Add chunks of the running sequences. More urgent ones that wait come before."""
        for sequence in [sequence for sequence in self.running if sequence.is_prefilling]:
            self._admit(planned, before=sequence)
            if not planned.num_tokens_left:
                return
            self._add_chunk(planned, sequence)

    def _admit(self, planned: PlannedStep, *, before: Sequence | None = None) -> None:
        """Start waiting sequences in order of age, as long as there is room.

        Those that wait for a prefix keep their places: younger ones get the rest. With `before`,
        only those start that are more urgent than this one.
        """
        claims, num_keys = Claims.none(len(self._limits.groups)), 0
        for sequence in tuple(self.waiting):
            if before is not None and sequence.age.priority >= before.age.priority:
                return
            if not planned.num_tokens_left or num_keys > MOST_KEYS:
                return
            if not self._leaves_headroom(sequence, claims):
                return
            if self._residency.awaits_prefix(sequence):
                claims = self._residency.claim(sequence, claims)
            else:
                num_keys += len(sequence.keys)
                self._place(sequence)
                self._add_chunk(planned, sequence)

    def _leaves_headroom(self, sequence: Sequence, claims: Claims) -> bool:
        """Whether a new sequence leaves blocks for the running ones; else these would preempt it next.

        One block for each running sequence is enough, and none for a sequence that grows no more. After a
        preemption the new one must leave all blocks that the running ones may ever need, so that it is not
        preempted again.
        """
        enough = None if self._is_crowded else len(self.running)
        return self._residency.has_room_for(sequence, self.running, enough, claims)

    def _add_chunk(self, planned: PlannedStep, sequence: Sequence) -> None:
        """Add a row of known tokens: as many as the budget and the blocks allow."""
        wanted = sequence.num_computed + min(sequence.num_uncomputed, planned.num_tokens_left)
        num_tokens = self._residency.extend(sequence, wanted) - sequence.num_computed
        if num_tokens > 0:
            planned.add_row(sequence, num_tokens)

    def _place(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        sequence.move_to(State.RUNNING)
        self._residency.place(sequence)
        self.running.add(sequence)

    def _preempt_cheapest(self) -> None:
        """Free the blocks of a sequence, but never of the oldest."""
        oldest = self._oldest()
        self.send_back(choose_victim(sequence for sequence in self.running if sequence is not oldest))
        self.num_preemptions += 1
        self._is_crowded = True

    def _oldest(self) -> Sequence | None:
        heads = [head for head in (self.waiting.oldest, self.running.oldest) if head is not None]
        return min(heads, key=lambda sequence: sequence.age, default=None)
