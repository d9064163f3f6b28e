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
from millrace_runtime.engine.block_pool import hash_prompt, hash_root
from millrace_runtime.engine.drafts import DraftCounts
from millrace_runtime.engine.matcher import Masks, Matcher
from millrace_runtime.engine.planned_step import PlannedStep
from millrace_runtime.engine.residency import Residency
from millrace_runtime.engine.row_planner import RowPlanner
from millrace_runtime.engine.sequence import Age, Sequence
from millrace_runtime.engine.token_budget import StepWork, TokenBudget
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
        self._forces = limits.depth == 1
        """Whether forced tokens are appended: with more steps in flight the next draw is planned already."""
        self._residency = Residency(limits)
        self._planner = RowPlanner(limits, self._residency, self._budget)
        self._sequences: dict[int, Sequence] = {}
        self._in_flight: deque[PlannedStep] = deque()
        self._next_age = 0
        self._next_step = 0
        self._num_prefix_queries = self._num_prefix_hits = 0
        self._drafts = DraftCounts()
        self._begun: list[Begun] = []

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
        root = hash_root(request.salt, self._limits.kv_format)
        keys = hash_prompt(root, request.prompt, self._limits.block_size)
        for new, matcher in zip_longest(request.sequences, matchers):
            age = Age(request.priority, self._next_age)
            sequence = Sequence(
                request,
                new,
                age,
                max_length,
                matcher,
                takes_forced=self._forces and new.sampling.num_logprobs is None,
                root=root,
                keys=[*keys],
            )
            self._next_age += 1
            self._sequences[new.sequence_id] = sequence
            self._planner.waiting.add(sequence)

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
        self._planner.add_rows(planned, is_trial=is_trial)
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
                if asked.draft:
                    self._drafts.count(asked, row, output)
                if asked.forced:
                    self._drafts.count_forced(len(asked.forced))
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
            num_waiting=len(self._planner.waiting),
            num_running=len(self._planner.running),
            num_blocks=pool.num_blocks,
            num_free_blocks=pool.num_free,
            num_preemptions=self._planner.num_preemptions,
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
        self._planner.check_integrity()
        assert len(self._planner.waiting) + len(self._planner.running) == len(self._sequences)

    @property
    def _has_last_releases(self) -> bool:
        """Whether no sequence runs and a step without rows must release the last slots."""
        return not self._planner.running and self._residency.has_releases

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
        tokens, finish_reason, is_refused = sequence.append_tokens(row)
        if row.num_computed >= sequence.next_named or row.fault is not None:
            self._name_computed(sequence, row)
        if is_refused:
            self._planner.send_back(sequence)  # its rows in flight follow the refused token
        if not tokens and finish_reason is None and row.prompt_logprobs is None:
            return None
        if finish_reason is not None:
            self._end(sequence)
        error = (sequence.fault or row.fault) if finish_reason == FINISH_ERROR else None
        logprobs = row.logprobs[: len(tokens)]
        return SequenceOutput(
            sequence.new.sequence_id,
            tokens,
            logprobs,
            finish_reason,
            error,
            prompt_logprobs=row.prompt_logprobs,
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
        self._planner.end(sequence)
        del self._sequences[sequence.new.sequence_id]
