"""Sequences as the scheduler sees them: their tokens, progress, slots and blocks."""

import enum
from dataclasses import dataclass, field
from typing import NamedTuple

from millrace_runtime.engine.block_pool import hash_block
from millrace_runtime.engine.matcher import Matcher
from millrace_runtime.protocol.encoding import TOKEN_BYTES, count_tokens, pack_tokens
from millrace_runtime.protocol.messages import FINISH_ERROR, FINISH_LENGTH, FINISH_STOP, Generate, NewSequence
from millrace_runtime.protocol.step import RowResult

MASKED_DRAWS = 16
"""So many draws have masks after one that did not fit an optimistic grammar: a model's mistake is some tokens
long, and each draw that does not fit takes its sequence from the device."""


class State(enum.Enum):
    """The state of a sequence."""

    WAITING = "waiting"  # holds nothing
    RUNNING = "running"  # has a slot and blocks
    ENDED = "ended"  # its last output is out, or it was aborted


TRANSITIONS: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.RUNNING, State.ENDED}),
    State.RUNNING: frozenset({State.WAITING, State.ENDED}),  # WAITING: by a preemption
    State.ENDED: frozenset(),
}


class Age(NamedTuple):
    """A sequence's place in the order of service: the smallest is the oldest.

    An urgent sequence counts as older than all that are less urgent, whenever they came.
    """

    priority: int
    """The request's: the smaller, the more urgent."""
    arrival: int


class Tenancy(NamedTuple):
    """A sequence's slot. The epoch separates its results from those of the slot's previous tenant."""

    slot: int
    epoch: int


@dataclass(eq=False, slots=True)
class BlockTable:
    """A sequence's blocks in one KV group, in the order of positions."""

    blocks: list[int]
    num_dropped: int = 0
    """Released blocks before these, which no later token sees."""

    @property
    def end(self) -> int:
        """Blocks from position 0 on, with the dropped ones."""
        return self.num_dropped + len(self.blocks)


@dataclass(eq=False, slots=True)
class Sequence:
    """One generation. Only the scheduler changes it. It stores counts, because every step reads them."""

    request: Generate
    """Shared by the sequences of its prompt."""
    new: NewSequence
    age: Age
    max_length: int
    """The most tokens of prompt and output together."""
    matcher: Matcher | None = None
    """Binds its draws to a grammar. It has consumed `outputs`, so a preemption leaves it as it is."""
    outputs: list[int] = field(default_factory=list)
    """Generated tokens of the collected steps."""
    num_scored: int = 0
    """The prompt's tokens after the first whose log-probabilities are collected."""
    state: State = State.WAITING
    tenancy: Tenancy | None = None
    tables: list[BlockTable] = field(default_factory=list)
    """By KV group; empty without a slot."""
    root: bytes = b""
    """The key that its first block's key continues."""
    keys: list[bytes] = field(default_factory=list)
    """Of its full blocks (`block_pool.py`): of the prompt's, and of as many of the outputs as were named."""
    num_named: int = 0
    """Blocks that others can find, or that it found itself."""
    next_named: int = 0
    """The computed tokens with which the next block is full."""
    awaited: int | None = None
    """While it waits: how many of its first blocks were found, or None before it was looked up."""
    room: int = 0
    """Tokens that every table has blocks for."""
    num_known: int = field(init=False)
    """The tokens that the executor will know at least, once every submitted step has run."""
    num_computed: int = 0
    """Tokens whose KV is written once every submitted step has run; a draft counts once it is accepted."""
    num_pending: int = 0
    """Rows in flight that draw."""
    next_draft: tuple[int, ...] = ()
    """The guesses of the executor's last offer that a row may verify."""
    takes_forced: bool = False
    """Whether tokens that its grammar forces are appended without a draw."""
    forced: tuple[int, ...] = ()
    """Forced tokens that the executor does not know: its next row brings them."""
    num_forced: int = 0
    """Forced tokens behind the last drawn one. A row that computes them is a decode nevertheless."""
    masked_until: int = 0
    """With an optimistic grammar: the draws before this one have masks."""
    has_begun: bool = False
    """Whether a step has had a row of it, even before a preemption."""

    def __post_init__(self) -> None:
        self.num_known = self.num_prompt

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return count_tokens(self.request.prompt)

    @property
    def reads_prefixes(self) -> bool:
        """Whether it may share computed blocks. Log-probabilities of a prompt need all of it computed."""
        return self.new.sampling.num_prompt_logprobs is None

    @property
    def num_uncomputed(self) -> int:
        """Known tokens that no submitted step computes; at least 1 while it wants another row."""
        return self.num_known - self.num_computed

    @property
    def wants_row(self) -> bool:
        """Whether another step would advance it: its last token is neither drawn nor being drawn.

        With max_tokens 0 it draws none, and its prompt alone is computed.

        A draft depends on how much of the last draft was accepted. So a sequence with a draft has at most one
        drawing row in flight, whatever the executor's depth.
        A sequence with slow masks sits out the steps until its mask is there: no other one waits for it.
        """
        if self.matcher is not None and (self.matcher.is_busy or (self.num_pending and self.matcher.is_slow)):
            return False
        if self.num_pending and self.next_draft:
            return False
        return self.num_known < self.max_length or self.num_computed < self.num_prompt

    @property
    def draws_next(self) -> bool:
        """Whether the row with its last known token draws another one."""
        return self.num_known < self.max_length

    @property
    def masks_next(self) -> bool:
        """Whether its next draw has a mask."""
        if self.matcher is None:
            return False
        return not self.matcher.is_optimistic or self.num_known - self.num_prompt < self.masked_until

    @property
    def is_decoding(self) -> bool:
        """Whether its next row computes the last drawn token."""
        return 0 < self.num_known - self.num_computed <= 1 + self.num_forced and self.wants_row

    @property
    def is_prefilling(self) -> bool:
        """Whether it has tokens to compute before the last drawn one."""
        return self.has_chunks and self.wants_row

    @property
    def has_chunks(self) -> bool:
        """Whether tokens before the last drawn one are not computed, such as those of a prompt."""
        return self.num_known - self.num_computed > 1 + self.num_forced

    @property
    def fault(self) -> str | None:
        """Why its grammar can't go on; None if it can."""
        return None if self.matcher is None else self.matcher.fault

    def pack_tokens(self) -> bytes:
        """Return the prompt and every collected token, packed."""
        return self.request.prompt + pack_tokens(self.outputs)

    def extend_keys(self, num_blocks: int, block_size: int) -> None:
        """Make the keys of its first `num_blocks` blocks, whose tokens are collected."""
        for begin in range(len(self.keys) * block_size, num_blocks * block_size, block_size):
            end, num_prompt = begin + block_size, self.num_prompt
            prompt = self.request.prompt[begin * TOKEN_BYTES : end * TOKEN_BYTES]
            drawn = self.outputs[max(begin - num_prompt, 0) : end - num_prompt]
            before = self.keys[-1] if self.keys else self.root
            self.keys.append(hash_block(before, prompt + pack_tokens(drawn)))

    def move_to(self, state: State) -> None:
        """Change the state along TRANSITIONS."""
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state

    def forget_computed(self) -> None:
        """Forget its state on the device. Tokens that are being drawn there will be drawn again, the same."""
        self.tenancy = None
        self.tables = []
        self.room = self.num_computed = self.num_named = self.next_named = 0
        self.num_pending, self.next_draft = 0, ()
        self.num_forced, self.forced = 0, ()
        self.num_known = self.num_prompt + len(self.outputs)

    def append_scores(self, row: RowResult) -> None:
        """Count the log-probabilities of the prompt that a row brings: the next ones, each once."""
        if (scores := row.prompt_logprobs) is not None:
            assert scores.first == self.num_scored + 1, f"position {scores.first} after {self.num_scored}"
            self.num_scored += count_tokens(scores.ranks)

    def append_tokens(self, row: RowResult) -> "Appended":
        """Append a row's tokens up to the sequence's last, and make the counts exact.

        A row that draws nothing ends a sequence that wants no token, once its prompt is computed.
        """
        if not row.tokens and row.fault is None:
            is_over = self.max_length == self.num_prompt == row.num_computed
            return Appended([], FINISH_LENGTH if is_over else None)
        self.num_pending, num_accepted = self.num_pending - 1, len(row.tokens) - 1
        self.num_known += num_accepted
        self.num_computed += num_accepted
        exact = self.num_pending or row.fault or row.num_computed == self.num_computed
        assert exact, f"the executor computed {row.num_computed} tokens, not {self.num_computed}"
        for number, token in enumerate(row.tokens, 1):
            if not self._accepts(token):
                self.masked_until = len(self.outputs) + MASKED_DRAWS
                return Appended(row.tokens[: number - 1], None, is_refused=True)
            self.outputs.append(token)
            reason = FINISH_STOP if token in self.request.stop_token_ids else None
            if reason is None and self.matcher is not None:
                self.matcher.consume(token)
                reason = self._find_grammars_end()
            if reason is None and self.num_prompt + len(self.outputs) >= self.max_length:
                reason = FINISH_LENGTH
            if reason is not None:
                return Appended(row.tokens[:number], reason)
        if self.matcher is not None and row.fault is None:
            return self._follow_grammar(self.matcher, row)
        self.next_draft = row.next_draft
        return Appended(row.tokens, None if row.fault is None else FINISH_ERROR)

    def _follow_grammar(self, matcher: Matcher, row: RowResult) -> "Appended":
        """Append the tokens that the grammar forces behind a row's tokens, and begin with the next mask."""
        reason = None
        if self.takes_forced:
            self.forced = tuple(matcher.force(self.max_length - self.num_known))
            self.num_forced = len(self.forced)
            self.num_known += self.num_forced
            self.outputs += self.forced
            is_full = self.num_known >= self.max_length
            reason = self._find_grammars_end() or (FINISH_LENGTH if is_full else None)
        if reason is None:
            matcher.prepare()
        self.next_draft = () if self.forced else row.next_draft[: self._most_guesses]
        return Appended([*row.tokens, *self.forced], reason)

    def _find_grammars_end(self) -> str | None:
        """Return why the grammar ends the text, if it does. A failed optional one binds no more."""
        if self.fault is not None and self._has_optional_grammar:
            self.matcher = None
        if self.matcher is None or not self.matcher.is_stopped:
            return None
        return FINISH_STOP if self.matcher.fault is None else FINISH_ERROR

    @property
    def _most_guesses(self) -> int | None:
        """The most guesses that its next row may verify; None: any number.

        Those of slow masks would hold up the step. Of an optimistic grammar a row's draws have all masks, or
        none.
        """
        if self.matcher is None or not self.masks_next:
            return None
        if self.matcher.is_optimistic:
            return self.masked_until - len(self.outputs) - 1
        return 0 if self.matcher.is_slow else None

    @property
    def _has_optional_grammar(self) -> bool:
        return self.request.grammar is not None and self.request.grammar.is_optional

    def _accepts(self, token: int) -> bool:
        """Whether the grammar takes a drawn token. One that was drawn with a mask fits."""
        if self.matcher is None or not self.matcher.is_optimistic or len(self.outputs) < self.masked_until:
            return True
        return self.matcher.accepts(token)


class Appended(NamedTuple):
    """The tokens that a row added to its sequence."""

    tokens: list[int]
    finish_reason: str | None
    is_refused: bool = False
    """Whether the grammar refuses the row's next token, so that it is drawn again with a mask."""
