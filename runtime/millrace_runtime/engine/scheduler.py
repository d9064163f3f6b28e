"""Continuous batching: what each step computes.

Every step takes the decodes first and fills the rest of its token budget with chunks of prefill, the oldest
first. Three rules make every admitted sequence end:
- what could never fit is refused at once;
- the oldest sequence is on the device, is never preempted and has a row in every plan that it wants one in;
- a sequence that was preempted for another's blocks keeps its tokens and its age, so it becomes the oldest.
"""

from collections import deque
from dataclasses import dataclass

from millrace_runtime.engine.age_queue import AgeQueue
from millrace_runtime.engine.errors import InvalidSequence, NeverFits
from millrace_runtime.engine.residency import Residency
from millrace_runtime.engine.sequence import Sequence, State
from millrace_runtime.protocol.messages import FINISH_ERROR, Generate, SequenceOutput, Stats, StepTiming
from millrace_runtime.protocol.step import Limits, Row, RowResult, StepPlan, StepResult


@dataclass
class _Draft:
    """A step being planned."""

    num_tokens_left: int
    rows: list[Row]
    num_context_tokens: int = 0

    def add_row(self, sequence: Sequence, num_tokens: int) -> None:
        """Have the step compute the sequence's next tokens, and draw one if these are all it knows."""
        assert sequence.tenancy is not None
        assert 0 < num_tokens <= min(self.num_tokens_left, sequence.num_uncomputed)
        emit = num_tokens == sequence.num_uncomputed
        sequence.num_computed += num_tokens
        sequence.num_pending += emit
        self.num_tokens_left -= num_tokens
        self.num_context_tokens += sequence.num_computed
        self.rows.append(Row(sequence.tenancy.slot, num_tokens, emit))


@dataclass(frozen=True)
class _Flight:
    """A submitted step."""

    plan: StepPlan
    num_context_tokens: int


class Scheduler:
    """Decides each step of one executor. `schedule`, submit, collect, `commit`, in the steps' order."""

    def __init__(self, limits: Limits, max_batched_tokens: int) -> None:
        """`max_batched_tokens`: the most tokens that one step computes, at least 1."""
        assert max_batched_tokens >= 1
        self._limits = limits
        self._max_batched_tokens = max_batched_tokens
        self._residency = Residency(limits)
        self._sequences: dict[int, Sequence] = {}
        self._waiting = AgeQueue()
        self._running = AgeQueue()
        self._flights: deque[_Flight] = deque()
        self._next_age = 0
        self._next_step = 0
        self._num_preemptions = 0
        self._is_crowded = False
        """A sequence was preempted, and since then none that ran has ended."""

    @property
    def max_model_length(self) -> int:
        """Tokens, prompt and output together, that a sequence can have: the model's and the pool's bound."""
        return min(self._limits.max_model_length, self._limits.num_blocks * self._limits.block_size)

    @property
    def has_work(self) -> bool:
        """Whether a step is in flight or wanted."""
        return bool(self._sequences or self._flights)

    @property
    def num_flights(self) -> int:
        """Steps submitted and not committed."""
        return len(self._flights)

    def add(self, request: Generate) -> None:
        """Queue a sequence. Raises NeverFits or InvalidSequence."""
        self._check(request)
        max_length = min(len(request.prompt) + request.max_tokens, self.max_model_length)
        sequence = Sequence(request, self._next_age, max_length)
        self._next_age += 1
        self._sequences[request.sequence_id] = sequence
        self._waiting.add(sequence)

    def abort(self, sequence_id: int) -> None:
        """Drop a sequence without another output. One that has ended already is no error."""
        if sequence_id in self._sequences:
            self._end(self._sequences[sequence_id])

    def schedule(self) -> StepPlan | None:
        """Return the next step, or None with nothing to compute or `depth` steps in flight."""
        if len(self._flights) >= self._limits.depth:
            return None
        draft = _Draft(self._max_batched_tokens, [])
        self._place_oldest()
        self._add_decodes(draft)
        self._add_prefills(draft)
        self._admit(draft)
        return self._launch(draft) if draft.rows else None

    def commit(self, result: StepResult) -> list[SequenceOutput]:
        """Take the result of the oldest step in flight, and return what it brought to its sequences.

        A stop token is the last of its sequence's tokens: it counts, though it is no text.
        """
        flight = self._flights.popleft()
        assert flight.plan.step == result.step, f"step {flight.plan.step} awaited, not {result.step}"
        outputs = []
        for row in result.rows:
            sequence = self._residency.tenant(row.slot, row.epoch)
            if sequence is not None and (output := self._take(sequence, row)) is not None:
                outputs.append(output)
        return outputs

    def timing(self, result: StepResult) -> StepTiming:
        """Return what the oldest step in flight did and cost. To be read before `commit` takes it."""
        flight = self._flights[0]
        rows = flight.plan.rows
        return StepTiming(
            seconds=result.seconds,
            num_sequences=len(rows),
            num_tokens=sum(row.num_tokens for row in rows),
            num_context_tokens=flight.num_context_tokens,
            is_decode_only=all(row.num_tokens == 1 for row in rows),
        )

    def stats(self) -> Stats:
        """Return the state that gauges show."""
        return Stats(
            num_waiting=len(self._waiting),
            num_running=len(self._running),
            num_blocks=self._residency.num_blocks,
            num_free_blocks=self._residency.num_free_blocks,
            num_preemptions=self._num_preemptions,
        )

    def check_integrity(self) -> None:
        """Assert that no slot or block is lost or shared, and that every sequence is in its queue."""
        self._residency.check_integrity()
        assert len(self._waiting) + len(self._running) == len(self._sequences)
        assert all(s.state is State.WAITING and not s.blocks for s in self._waiting)
        assert all(s.state is State.RUNNING and s.tenancy for s in self._running)

    def _check(self, request: Generate) -> None:
        if request.sequence_id in self._sequences:
            raise InvalidSequence(f"sequence id {request.sequence_id} is in use")
        if not request.prompt:
            raise InvalidSequence("the prompt is empty; give it at least one token")
        if request.max_tokens < 1:
            raise InvalidSequence(f"max_tokens is {request.max_tokens}; make it at least 1")
        if not 0 <= min(request.prompt) <= max(request.prompt) < self._limits.vocabulary_size:
            raise InvalidSequence(f"the prompt has a token outside 0 … {self._limits.vocabulary_size - 1}")
        if len(request.prompt) >= self.max_model_length:
            raise NeverFits(
                f"the prompt has {len(request.prompt)} tokens and this model takes {self.max_model_length}"
                " with the output; shorten the prompt"
            )

    def _place_oldest(self) -> None:
        """Put the oldest sequence on the device, at the cost of younger ones if it was preempted before."""
        oldest = self._oldest()
        if oldest is None or oldest.state is State.RUNNING:
            return
        while not self._has_room_for(oldest, headroom=0):
            self._preempt_cheapest()
        self._place(oldest)

    def _add_decodes(self, draft: _Draft) -> None:
        for sequence in self._choose_decodes(draft.num_tokens_left):
            self._residency.extend(sequence, sequence.num_known)
            draft.add_row(sequence, 1)

    def _choose_decodes(self, num_tokens: int) -> list[Sequence]:
        """Choose at most so many decodes, and preempt until the blocks they grow by are free."""
        oldest = self._running.oldest
        num_rows = num_tokens - (oldest is not None and oldest.is_prefilling)
        while True:
            decodes = [sequence for sequence in self._running if sequence.is_decoding][:num_rows]
            growth = sum(self._residency.num_missing_blocks(s, s.num_known) for s in decodes)
            if growth <= self._residency.num_free_blocks:
                return decodes
            self._preempt_cheapest()

    def _add_prefills(self, draft: _Draft) -> None:
        for sequence in self._running:
            if not draft.num_tokens_left:
                return
            if sequence.is_prefilling:
                draft.add_row(sequence, min(sequence.num_uncomputed, draft.num_tokens_left))

    def _admit(self, draft: _Draft) -> None:
        """Start waiting sequences in order of age, for as long as there is room."""
        while draft.num_tokens_left and (sequence := self._waiting.oldest) is not None:
            if not self._has_room_for(sequence, self._headroom()):
                return
            self._place(sequence)
            draft.add_row(sequence, min(sequence.num_uncomputed, draft.num_tokens_left))

    def _headroom(self) -> int:
        """Blocks to leave free for those that run: else the newcomer is what they preempt next.

        Once crowded, all that they may ever grow by, so that nothing is admitted to be preempted again.
        """
        if not self._is_crowded:
            return len(self._running)
        return sum(self._residency.num_missing_blocks(s, s.max_length) for s in self._running)

    def _has_room_for(self, sequence: Sequence, headroom: int) -> bool:
        num_blocks = self._residency.num_missing_blocks(sequence, sequence.num_known) + headroom
        return self._residency.has_free_slot and num_blocks <= self._residency.num_free_blocks

    def _place(self, sequence: Sequence) -> None:
        self._waiting.remove(sequence)
        sequence.move_to(State.RUNNING)
        self._residency.place(sequence)
        self._running.add(sequence)

    def _preempt_cheapest(self) -> None:
        """Send the sequence back that has the least to compute again; of equals the youngest."""
        oldest = self._oldest()
        candidates = (sequence for sequence in self._running if sequence is not oldest)
        victim = min(candidates, key=lambda sequence: (sequence.num_computed, -sequence.age))
        self._running.remove(victim)
        self._residency.evict(victim)
        victim.move_to(State.WAITING)
        self._waiting.add(victim)
        self._num_preemptions += 1
        self._is_crowded = True

    def _oldest(self) -> Sequence | None:
        heads = [head for head in (self._waiting.oldest, self._running.oldest) if head is not None]
        return min(heads, key=lambda sequence: sequence.age, default=None)

    def _launch(self, draft: _Draft) -> StepPlan:
        changes = self._residency.take_changes()
        plan = StepPlan(self._next_step, changes.released, changes.starts, changes.appends, draft.rows)
        self._next_step += 1
        self._flights.append(_Flight(plan, draft.num_context_tokens))
        return plan

    def _take(self, sequence: Sequence, row: RowResult) -> SequenceOutput | None:
        """Bring a row's result to its sequence."""
        sequence_id = sequence.request.sequence_id
        if row.fault is not None:
            self._end(sequence)
            return SequenceOutput(sequence_id, [], [], FINISH_ERROR, row.fault)
        if row.token is None:
            return None
        finish_reason = sequence.take_token(row.token)
        logprobs = [row.logprobs] if row.logprobs is not None else []
        if finish_reason is not None:
            self._end(sequence)
        return SequenceOutput(sequence_id, [row.token], logprobs, finish_reason, None)

    def _end(self, sequence: Sequence) -> None:
        if sequence.state is State.RUNNING:
            self._running.remove(sequence)
            self._residency.evict(sequence)
            self._is_crowded = False
        else:
            self._waiting.remove(sequence)
        sequence.move_to(State.ENDED)
        del self._sequences[sequence.request.sequence_id]
