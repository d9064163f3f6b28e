"""Continuous batching: what each step computes.

Every step takes the decodes first and fills the rest of its token budget with chunks of prefill, the oldest
first. Drafts come last: they get the tokens and blocks that remain, and no draft preempts a sequence. A
sequence whose prefix a running one computes is admitted once it can share it, and keeps its place meanwhile.
The more urgent of two sequences is the older, and of equally urgent ones the one that came first. Three rules
make every admitted sequence end, unless more urgent ones come for ever:
- The scheduler refuses at once a sequence that can never fit.
- The oldest sequence is on the device, is never preempted, and has a row in every plan in which it wants one.
- A preempted sequence keeps its tokens and its age, so it becomes the oldest. The least urgent are preempted
  first.
"""

from collections import deque
from collections.abc import Sequence as Items
from itertools import zip_longest
from typing import NamedTuple

from millrace_runtime.engine.bad_words import ban_words
from millrace_runtime.engine.drafts import DraftCounts, add_drafts
from millrace_runtime.engine.matcher import Masks, Matcher
from millrace_runtime.engine.planned_step import PlannedStep
from millrace_runtime.engine.prefix import hash_prompt
from millrace_runtime.engine.residency import Claims, Residency
from millrace_runtime.engine.sequence import Age, AgeQueue, Sequence, State
from millrace_runtime.engine.step_time import StepWork
from millrace_runtime.engine.token_budget import TokenBudget
from millrace_runtime.engine.validation import check_request
from millrace_runtime.protocol.encoding import TOKEN_BYTES
from millrace_runtime.protocol.messages import (
    FINISH_ERROR,
    Begun,
    Generate,
    SequenceOutput,
    Stats,
    StepTiming,
)
from millrace_runtime.protocol.step import FAULT_NOTHING_ALLOWED, Limits, RowResult, StepPlan, StepResult

MOST_KEYS = 16_384
"""Blocks of the sequences that one step places. To look up and share so many takes 12 ms."""


class Committed(NamedTuple):
    """The changes by a step's result."""

    outputs: list[SequenceOutput]
    timing: StepTiming | None
    """None for a step without rows."""
    work: StepWork
    """For `observe`."""


class Scheduler:
    """Decides each step of one executor. The order is `schedule`, submit, collect, `commit`."""

    def __init__(self, limits: Limits, target_seconds: float | None = None) -> None:
        """`limits` are the executor's. Chunks beside decodes keep a step within `target_seconds`, if any."""
        assert limits.max_batched_tokens >= 1
        self._limits = limits
        self._max_batched_tokens = limits.max_batched_tokens
        self._budget = None if target_seconds is None else TokenBudget(target_seconds)
        self._longest_window = limits.longest_window
        self._residency = Residency(limits)
        self._sequences: dict[int, Sequence] = {}
        self._waiting = AgeQueue()
        self._running = AgeQueue()
        self._in_flight: deque[PlannedStep] = deque()
        self._next_age = 0
        self._next_step = 0
        self._num_preemptions = 0
        self._num_prefix_queries = self._num_prefix_hits = 0
        self._drafts = DraftCounts()
        self._begun: list[Begun] = []
        self._is_crowded = False
        """Whether no running sequence has ended since the last preemption."""

    @property
    def max_model_length(self) -> int:
        """The most tokens, prompt and output together, that a sequence can have."""
        return self._residency.max_length

    @property
    def has_work(self) -> bool:
        """Whether a step is in flight or can be planned."""
        return bool(self._sequences or self._in_flight) or self._has_last_releases

    @property
    def num_in_flight(self) -> int:
        """Steps that are submitted and not committed."""
        return len(self._in_flight)

    def add(self, request: Generate, matchers: Items[Matcher] = ()) -> None:
        """Queue a prompt's sequences, all or none. Raises NeverFits or InvalidSequence.

        With a grammar each has a matcher of its own.
        """
        assert len(matchers) == (0 if request.grammar is None else len(request.sequences))
        check_request(
            request,
            used_ids=self._sequences.keys(),
            vocabulary_size=self._limits.vocabulary_size,
            max_model_length=self.max_model_length,
        )
        num_prompt = len(request.prompt) // TOKEN_BYTES
        max_length = min(num_prompt + request.max_tokens, self.max_model_length)
        matchers = ban_words(request.bad_words, matchers, len(request.sequences))
        keys = hash_prompt(request.salt, request.prompt, self._limits.block_size)
        for new, matcher in zip_longest(request.sequences, matchers):
            age = Age(request.priority, self._next_age)
            sequence = Sequence(request, new, age, max_length, matcher, keys=[*keys])
            self._next_age += 1
            self._sequences[new.sequence_id] = sequence
            self._waiting.add(sequence)

    def abort(self, sequence_id: int) -> None:
        """Drop a sequence without another output. An ended sequence is ignored."""
        if sequence_id in self._sequences:
            self._end(self._sequences[sequence_id])

    def schedule(self, *, is_trial: bool = False) -> StepPlan | None:
        """Return the next step; None with nothing to do or with `depth` steps in flight.

        It plans nothing after a step whose masks were not popped yet. When the last sequence has left, a step
        without rows releases its slot: at rest the executor holds no sequence. In a trial, which measures
        plain steps, chunks keep no target and nothing is guessed.
        """
        if len(self._in_flight) >= self._limits.depth:
            return None
        if self._in_flight and self._in_flight[-1].awaits_masks:
            return None
        planned = PlannedStep(self._next_step, self._max_batched_tokens, self._longest_window)
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
        return self._launch(planned) if planned.rows or self._has_last_releases else None

    def pop_masks(self) -> Masks | None:
        """Return the masks of the newest step, once the tokens before all of them are collected.

        None if it needs no masks, or has them. Ask after each `submit` and after each `commit`.
        """
        if not self._in_flight:
            return None
        newest = self._in_flight[-1]
        if not newest.awaits_masks or not newest.can_mask:
            return None
        return Masks(newest.step, newest.make_masks(self._limits.vocabulary_size))

    def pop_begun(self) -> list[Begun]:
        """Return the sequences that got their first row since the last call."""
        begun, self._begun = self._begun, []
        return begun

    def commit(self, result: StepResult) -> Committed:
        """Apply the result of the oldest step in flight, and return its changes.

        It drops the rows of sequences that have left meanwhile.
        """
        planned = self._in_flight.popleft()
        assert result.step == planned.step, f"step {planned.step} awaited, not {result.step}"
        tenant = self._residency.tenant
        outputs = []
        for row, asked in zip(result.rows, planned.rows, strict=True):
            if (sequence := tenant(row.slot, row.epoch)) is not None:
                output = self._commit_row(sequence, row)
                if asked.max_draft:
                    self._drafts.count(asked, row, output)
                if output is not None:
                    outputs.append(output)
        return Committed(outputs, planned.timing(result.seconds), planned.work)

    def observe(self, work: StepWork, seconds: float) -> None:
        """Learn how long a committed step took, from the step before it until its own end.

        A step that only releases slots says nothing.
        """
        if self._budget is not None and (work.num_decoded or work.num_chunked):
            self._budget.observe(work, seconds)

    def stats(self) -> Stats:
        """Return the state that gauges show."""
        pool = self._residency.fullest_pool
        return Stats(
            num_waiting=len(self._waiting),
            num_running=len(self._running),
            num_blocks=pool.num_blocks,
            num_free_blocks=pool.num_free,
            num_preemptions=self._num_preemptions,
            num_prefix_queries=self._num_prefix_queries,
            num_prefix_hits=self._num_prefix_hits,
            num_drafts=self._drafts.num_drafts,
            num_drafted=self._drafts.num_drafted,
            num_accepted=self._drafts.num_accepted,
        )

    def forget_prefixes(self) -> None:
        """Empty the prefix cache, and count its hits from 0. Needed before the executor sleeps."""
        self._residency.forget_prefixes()
        self._num_prefix_queries = self._num_prefix_hits = 0

    def check_integrity(self) -> None:
        """Assert that every slot and block has the holders that it counts, and every sequence its queue."""
        self._residency.check_integrity()
        assert len(self._waiting) + len(self._running) == len(self._sequences)
        assert all(s.state is State.WAITING and not s.tables for s in self._waiting)
        assert all(s.state is State.RUNNING and s.tenancy for s in self._running)

    @property
    def _has_last_releases(self) -> bool:
        """Whether no sequence runs and a step without rows must release the last slots."""
        return not self._running and self._residency.has_releases

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
        for sequence in self._choose_decodes(planned.num_tokens_left):
            if sequence.num_known > sequence.room:
                self._residency.extend(sequence, sequence.num_known)
            planned.add_row(sequence, 1)

    def _choose_decodes(self, num_tokens: int) -> list[Sequence]:
        """Return at most `num_tokens` decodes. It preempts sequences until these have their blocks."""
        oldest = self._running.oldest
        num_rows = num_tokens - (oldest is not None and oldest.is_prefilling)
        while True:
            decodes = [sequence for sequence in self._running if sequence.is_decoding][:num_rows]
            if self._residency.can_extend([s for s in decodes if s.num_known > s.room]):
                return decodes
            self._preempt_cheapest()

    def _limit_chunks(self, planned: PlannedStep) -> int:
        """Shorten the step for the sequences that decode, with or without a row in it.

        Return the tokens that it loses.
        """
        if self._budget is None or all(sequence.num_uncomputed > 1 for sequence in self._running):
            return 0
        prefilling = (sequence.num_computed for sequence in self._running if sequence.is_prefilling)
        most = self._budget.limit_chunk(planned.work, planned.count_seen(next(prefilling, 0)))
        num_withheld = max(planned.num_tokens_left - most, 0)
        planned.num_tokens_left -= num_withheld
        return num_withheld

    def _add_prefills(self, planned: PlannedStep) -> None:
        """Add chunks of the running sequences. More urgent ones that wait come before."""
        for sequence in [sequence for sequence in self._running if sequence.is_prefilling]:
            self._admit(planned, before=sequence)
            if not planned.num_tokens_left:
                return
            self._add_chunk(planned, sequence)

    def _admit(self, planned: PlannedStep, *, before: Sequence | None = None) -> None:
        """Start waiting sequences in order of age, as long as there is room.

        Those that wait for a prefix keep their places: younger ones have what these leave. With `before`,
        only those start that are more urgent than this one.
        """
        claims, num_keys = Claims.none(len(self._limits.groups)), 0
        for sequence in tuple(self._waiting):
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
        enough = None if self._is_crowded else len(self._running)
        return self._residency.has_room_for(sequence, self._running, enough, claims)

    def _add_chunk(self, planned: PlannedStep, sequence: Sequence) -> None:
        """Add a row of known tokens: as many as the budget and the blocks allow."""
        wanted = sequence.num_computed + min(sequence.num_uncomputed, planned.num_tokens_left)
        num_tokens = self._residency.extend(sequence, wanted) - sequence.num_computed
        if num_tokens > 0:
            planned.add_row(sequence, num_tokens)

    def _place(self, sequence: Sequence) -> None:
        self._waiting.remove(sequence)
        sequence.move_to(State.RUNNING)
        self._residency.place(sequence)
        self._running.add(sequence)

    def _preempt_cheapest(self) -> None:
        """Preempt the least urgent: the sequence with the fewest tokens to recompute, then the youngest."""
        oldest = self._oldest()
        candidates = (sequence for sequence in self._running if sequence is not oldest)
        victim = max(candidates, key=lambda s: (s.age.priority, -s.num_computed, s.age.arrival), default=None)
        assert victim is not None, "the oldest sequence alone has no room: it should never have been admitted"
        self._running.remove(victim)
        self._residency.evict(victim)
        victim.move_to(State.WAITING)
        self._waiting.add(victim)
        self._num_preemptions += 1
        self._is_crowded = True

    def _oldest(self) -> Sequence | None:
        heads = [head for head in (self._waiting.oldest, self._running.oldest) if head is not None]
        return min(heads, key=lambda sequence: sequence.age, default=None)

    def _launch(self, planned: PlannedStep) -> StepPlan:
        changes = self._residency.pop_changes()
        self._next_step += 1
        self._in_flight.append(planned)
        for begun in planned.begun:
            self._count_hits(begun)
        return StepPlan(planned.step, changes.released, changes.starts, changes.appends, planned.rows)

    def _count_hits(self, begun: Begun) -> None:
        sequence = self._sequences[begun.sequence_id]
        self._begun.append(begun)
        if sequence.reads_prefixes:
            self._num_prefix_queries += sequence.num_prompt
            self._num_prefix_hits += begun.num_cached

    def _commit_row(self, sequence: Sequence, row: RowResult) -> SequenceOutput | None:
        """Add a row's result to its sequence. Return the output; None if it has nothing for the client."""
        sequence.append_scores(row)
        tokens, finish_reason = sequence.append_tokens(row)
        if row.num_computed >= sequence.next_named or row.fault is not None:
            self._name_computed(sequence, row)
        if not tokens and finish_reason is None and row.prompt_logprobs is None:
            return None
        if finish_reason is not None:
            self._end(sequence)
        error = (sequence.fault or row.fault) if finish_reason == FINISH_ERROR else None
        logprobs = row.logprobs[: len(tokens)]
        return SequenceOutput(
            sequence.new.sequence_id, tokens, logprobs, finish_reason, error, row.prompt_logprobs
        )

    def _name_computed(self, sequence: Sequence, row: RowResult) -> None:
        """Let others find the blocks that a row has filled, and none after a fault of the model."""
        if row.fault is not None and row.fault != FAULT_NOTHING_ALLOWED:
            self._residency.distrust(sequence)
        else:
            # A stop within an accepted draft leaves computed tokens that are no part of the text.
            num_collected = sequence.num_prompt + len(sequence.outputs)
            self._residency.name_computed(sequence, min(row.num_computed, num_collected))

    def _end(self, sequence: Sequence) -> None:
        if sequence.state is State.RUNNING:
            self._running.remove(sequence)
            self._residency.evict(sequence)
            self._is_crowded = False
        else:
            self._waiting.remove(sequence)
        sequence.move_to(State.ENDED)
        del self._sequences[sequence.new.sequence_id]
