"""An executor without a device, for the scheduler's tests. It checks everything in a plan.

Its KV cache holds token ids. The next token is a function of the ids that it reads there through the block
tables, as far as each group's window sees. So a block with the wrong tokens, or that was freed too early,
changes a text. Sequences may share blocks, and none may write to a block that another sees. A plan runs when
it is collected, so its masks may come until then.

There are no logits. Where a mask, a bias or `min_tokens` bans a token, the next one that they leave is drawn;
of a sequence's sampling only the numbers of log-probabilities count beside these. A token's rank is its
distance behind the token that would have been drawn there, and its log-probability is minus the rank. For a
prompt's tokens that is the only likely one.
"""

from collections import deque
from collections.abc import Callable

from millrace_runtime.engine.simulated_cache import SimulatedCache, Slot, unpack_mask
from millrace_runtime.protocol.encoding import pack_floats, pack_tokens, unpack_tokens
from millrace_runtime.protocol.executor import Command, Record, Sleep
from millrace_runtime.protocol.sampling import count_mask_bytes
from millrace_runtime.protocol.step import (
    FAULT_NOTHING_ALLOWED,
    Limits,
    Placement,
    PromptLogprobs,
    Row,
    RowResult,
    SlotStart,
    StepPlan,
    StepResult,
    StepSize,
    TokenLogprobs,
)

FAULT_NOT_FINITE = "the logits are not finite"

NextToken = Callable[[list[list[int]]], int | None]
"""Maps the tokens that each KV group sees of a sequence to its next token, or to None for a fault."""
Propose = Callable[[list[int]], list[int]]
"""Maps a sequence's tokens to guesses at the next ones."""


class SimulatedExecutor:
    """Runs plans on token ids. A plan that breaks the protocol fails an assertion."""

    def __init__(self, limits: Limits, next_token: NextToken, propose: Propose | None = None) -> None:
        """The guesses of `propose` are offered as drafts; without it there are none."""
        self.limits = limits
        self.placement = Placement("cpu", "simulated", "float32", "FromCheckpoint", 1)
        self.progress = 0
        self._next_token = next_token
        self._propose = propose
        self._cache = SimulatedCache(limits.groups, limits.block_size)
        self._slots: dict[int, Slot] = {}
        self._plans: deque[StepPlan] = deque()
        self._masks: dict[int, bytes] = {}
        self._next_step = 0
        self.recorded: list[StepSize] = []

    def submit(self, plan: StepPlan) -> None:
        """Keep a plan for `collect`."""
        assert plan.step == self._next_step
        assert len(self._plans) < self.limits.depth
        assert not self._cache.is_dropped, "a step in its sleep"
        assert all(self._has_masks(before) for before in self._plans), "a plan before has no masks yet"
        assert _num_tokens(plan) <= self.limits.max_batched_tokens, "a step has too many tokens"
        num_draws = sum(row.emit + len(row.draft) for row in plan.rows)
        assert num_draws <= max(self.limits.max_draws, self.limits.num_slots), "a step has too many draws"
        self._next_step += 1
        self._plans.append(plan)

    def provide_masks(self, step: int, masks: memoryview) -> None:
        """Keep the masks of a plan in flight."""
        [plan] = [plan for plan in self._plans if plan.step == step]
        num_masks = sum(1 + len(row.draft) for row in plan.rows if row.is_masked)
        wanted = num_masks * count_mask_bytes(self.limits.vocabulary_size)
        assert masks.nbytes == wanted > 0, "each draw of a masked row has a mask"
        assert step not in self._masks, "masks came twice"
        self._masks[step] = bytes(masks)

    def wait(self, timeout_seconds: float) -> bool:  # noqa: ARG002  nothing takes time here
        """Return at once: `collect` does, too."""
        assert all(self._has_masks(plan) for plan in [*self._plans][:1]), "a masked row has no mask"
        return True

    def collect(self) -> StepResult:
        """Run the oldest plan."""
        plan = self._plans.popleft()
        for slot in plan.released:
            del self._slots[slot]
        for start in plan.starts:
            self._start(start)
        for append in plan.appends:
            self._slots[append.slot].tables[append.group].extend(append.blocks)
        self._cache.check_writes(plan.rows, self._slots)
        assert len({row.slot for row in plan.rows}) == len(plan.rows)
        masks = self._split_masks(plan)
        self.progress += 1
        for row in plan.rows:  # a device writes every row's KV before any row reads
            self._compute(row)
        rows = [
            self._answer(row, [masks.pop(0) if row.is_masked else None for _ in range(1 + len(row.draft))])
            for row in plan.rows
        ]
        return StepResult(plan.step, rows, 0.001)

    def check(self) -> None:
        """Nothing fails."""

    def control(self, command: Command) -> None:
        """Sleep, which drops every cell; wake; or note the size of a recording."""
        assert not self._plans, "a command with a step in flight"
        if isinstance(command, Record):
            assert not self._cache.is_dropped, "recording in its sleep"
            assert command.size in self.limits.recordable
            self.recorded.append(command.size)
        elif isinstance(command, Sleep):
            assert not self._slots, "asleep with sequences on the device"
            self._cache.drop()
        else:
            assert self._cache.is_dropped, "awake already"
            self._cache.renew()

    def _start(self, start: SlotStart) -> None:
        tokens = list(unpack_tokens(start.tokens))
        assert 0 <= start.slot < self.limits.num_slots
        assert start.slot not in self._slots, "a slot was started that is not released"
        assert 0 < start.num_prompt <= len(tokens)
        assert 0 <= start.num_computed < len(tokens), "a sequence starts with nothing to compute"
        is_scored = start.sampling.num_prompt_logprobs is not None
        assert not (is_scored and start.num_computed), "a prompt with scores is not computed"
        assert len(start.blocks) == len(self.limits.groups)
        tables = [list(blocks) for blocks in start.blocks]
        self._slots[start.slot] = Slot(start, tokens, tables, start.num_computed)

    def _has_masks(self, plan: StepPlan) -> bool:
        return plan.step in self._masks or not any(row.is_masked for row in plan.rows)

    def _split_masks(self, plan: StepPlan) -> list[set[int]]:
        if not any(row.is_masked for row in plan.rows):
            return []
        assert self._has_masks(plan), "a masked row has no mask"
        data, size = self._masks.pop(plan.step), count_mask_bytes(self.limits.vocabulary_size)
        return [unpack_mask(data[at : at + size]) for at in range(0, len(data), size)]

    def _compute(self, row: Row) -> None:
        slot = self._slots[row.slot]
        slot.tokens.extend(row.forced)
        end = slot.num_computed + row.num_tokens
        assert row.num_tokens > 0
        assert end == len(slot.tokens) or not row.emit, "a row emits only at the last known token"
        self._check_draft(row, slot)
        self._cache.write(slot, [*slot.tokens[slot.num_computed : end], *row.draft])

    def _answer(self, row: Row, masks: list[set[int] | None]) -> RowResult:
        slot = self._slots[row.slot]
        self._cache.check_chunk(slot, row.num_tokens)
        scores = self._score(slot, row.num_tokens)
        slot.num_computed += row.num_tokens
        if not row.emit:
            return RowResult(row.slot, slot.start.epoch, [], slot.num_computed, prompt_logprobs=scores)
        drawn = self._draw(slot, row.draft, masks)
        tokens = [token for token in drawn if token is not None]
        if drawn[-1] is None:
            return self._fail(row, slot, tokens, masks[len(tokens)])
        assert len(slot.tokens) <= self.limits.max_model_length, "a token was drawn beyond the model's length"
        guesses = self._propose(slot.tokens) if self._propose else []
        logprobs = self._rank_drawn(tokens, slot.start.sampling.num_logprobs)
        return RowResult(
            row.slot,
            slot.start.epoch,
            tokens,
            slot.num_computed,
            next_draft=tuple(guesses[: self.limits.max_draft]),
            logprobs=logprobs,
            prompt_logprobs=scores,
        )

    def _rank_drawn(self, drawn: list[int], num_top: int | None) -> list[TokenLogprobs]:
        if num_top is None:
            return []
        numbers = [-1.0 - place for place in range(num_top)]
        size = self.limits.vocabulary_size
        return [TokenLogprobs(-1.0, _from(token, size)[:num_top], numbers) for token in drawn]

    def _score(self, slot: Slot, num_tokens: int) -> PromptLogprobs | None:
        """Return the log-probabilities of the prompt's tokens that follow the row's tokens."""
        first = max(slot.num_computed, slot.start.num_scored) + 1
        positions = range(first, min(slot.num_computed + num_tokens + 1, slot.start.num_prompt))
        if slot.start.sampling.num_prompt_logprobs is None or not positions:
            return None
        likely = [self._next_token(self._cache.find_seen(slot, end)) or 0 for end in positions]
        size = self.limits.vocabulary_size
        ranks = [1 + (slot.tokens[at] - token) % size for at, token in zip(positions, likely, strict=True)]
        return PromptLogprobs(
            first,
            pack_tokens(ranks),
            pack_floats(-rank for rank in ranks),
            pack_tokens(likely),
            pack_floats(-1.0 for _ in ranks),
        )

    def _fail(self, row: Row, slot: Slot, drawn: list[int], allowed: set[int] | None) -> RowResult:
        is_any_left = self._give_way(slot, 0, allowed) is not None
        slot.tokens.append(0)  # a row that is already in flight continues from a meaningless token
        fault = FAULT_NOT_FINITE if is_any_left else FAULT_NOTHING_ALLOWED
        return RowResult(row.slot, slot.start.epoch, drawn, slot.num_computed, fault=fault)

    def _check_draft(self, row: Row, slot: Slot) -> None:
        assert len(row.draft) <= self.limits.max_draft, "more draft than is allowed"
        assert row.emit or not (row.draft or row.is_masked), "a draft or a mask without a draw"
        reserved = slot.num_computed + row.num_tokens + len(row.draft)
        room = min(len(table) for table in slot.tables) * self.limits.block_size
        assert reserved <= room, "a row has no room for its tokens and its draft"

    def _draw(self, slot: Slot, draft: tuple[int, ...], masks: list[set[int] | None]) -> list[int | None]:
        """Return the token after the known ones, and one after each right guess; a fault is a last None.

        Where nothing is allowed behind a guess, no draw follows it.
        """
        drawn: list[int | None] = []
        for number, allowed in enumerate(masks):
            if drawn:
                if self._give_way(slot, 0, allowed) is None:
                    break
                slot.num_computed += 1
            token = self._next_token(self._cache.find_seen(slot, slot.num_computed))
            if token is not None:
                token = self._give_way(slot, token, allowed)
            drawn.append(token)
            if token is None:
                break
            slot.tokens.append(token)
            if draft[number : number + 1] != (token,):
                break
        return drawn

    def _give_way(self, slot: Slot, token: int, allowed: set[int] | None) -> int | None:
        """Return the token, or the next one that may come; None where none may."""
        banned = slot.banned
        if allowed is None and not banned:
            return token
        candidates = _from(token, self.limits.vocabulary_size)
        return next((t for t in candidates if t not in banned and (allowed is None or t in allowed)), None)


def _num_tokens(plan: StepPlan) -> int:
    return sum(row.num_tokens + len(row.draft) for row in plan.rows)


def _from(token: int, vocabulary_size: int) -> list[int]:
    """Return all tokens of the vocabulary, beginning with this one."""
    return [*range(token, vocabulary_size), *range(token)]
