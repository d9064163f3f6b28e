"""A scheduler joined to the simulated executor, for the tests beside this."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from millrace_runtime.engine.matcher import Matcher, allows
from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.engine.simulated_executor import NextToken, SimulatedExecutor
from millrace_runtime.engine.token_budget import StepWork
from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.protocol import messages
from millrace_runtime.protocol.encoding import pack_tokens, unpack_tokens
from millrace_runtime.protocol.messages import Generate, NewSequence, SequenceOutput, StepTiming
from millrace_runtime.protocol.sampling import Sampling, count_mask_bytes
from millrace_runtime.protocol.step import KvGroup, Limits, StepPlan
from millrace_runtime.replica.grammar_compiler import may_force

VOCABULARY = 50
MAX_STEPS = 20_000
Grammar = Callable[[list[int]], set[int]]
"""Maps a sequence's tokens to those that may follow."""


def next_token(seen: list[list[int]]) -> int | None:
    """A text that depends on each token that a group sees and their order, and on nothing else."""
    value = 7
    for tokens in seen:
        for token in tokens:
            assert token >= 0, "a token was read that nobody computed"
            value = (value * 31 + token + 1) % 1_000_003
    return value % VOCABULARY


def limits(  # noqa: PLR0917
    num_blocks: int = 64,
    block_size: int = 4,
    num_slots: int = 4,
    depth: int = 1,
    length: int = 100,
    budget: int = 16,
) -> Limits:
    return Limits((KvGroup(num_blocks),), block_size, num_slots, depth, length, VOCABULARY, budget)


def request(
    sequence_id: int,
    prompt: Iterable[int],
    max_tokens: int = 5,
    stop: Iterable[int] = (),
    *,
    grammar: str | None = None,
    others: Iterable[int] = (),
    bad_words: Sequence[list[int]] = (),
    salt: bytes = b"",
    priority: int = 0,
    **sampling: Any,
) -> Generate:
    """`others`: ids of further choices of the prompt."""
    asked = Sampling(**({"temperature": 0.0} | sampling))
    return Generate(
        sequences=[NewSequence(number, asked) for number in (sequence_id, *others)],
        prompt=pack_tokens(prompt),
        max_tokens=max_tokens,
        stop_token_ids=list(stop),
        grammar=None if grammar is None else messages.Grammar(grammar, is_optimistic=grammar == OPTIMISTIC),
        bad_words=list(bad_words),
        salt=salt,
        priority=priority,
    )


def expected(
    generate: Generate,
    max_length: int,
    groups: tuple[KvGroup, ...] = (KvGroup(0),),
    grammar: Grammar | None = None,
    draw: NextToken = next_token,
    *,
    most_forced: int = 0,
) -> tuple[list[int], str]:
    """What a sequence alone on an endless device would say.

    Forced tokens need no draw: so many behind each drawn one.
    """
    tokens, outputs, num_forced = list(unpack_tokens(generate.prompt)), [], most_forced
    if not generate.max_tokens:
        return [], "length"
    while True:
        forced = None
        if num_forced < most_forced and grammar is not None:
            forced = find_forced(grammar, tokens, generate.stop_token_ids)
        num_forced = 0 if forced is None else num_forced + 1
        token = draw([tokens[-(group.window or len(tokens)) :] for group in groups])
        if token is None and forced is None:
            return outputs, "error"
        allowed = leave(generate.sequences[0].sampling, len(outputs))
        if grammar is not None and generate.grammar is not None:
            allowed &= grammar(tokens)
        allowed -= {last for *front, last in generate.bad_words if outputs[-len(front) :] == front}
        if not allowed:
            return outputs, "error"
        near = (((token or 0) + more) % VOCABULARY for more in range(VOCABULARY))
        token = next(one for one in near if one in allowed)
        tokens.append(token)
        outputs.append(token)
        if token in generate.stop_token_ids:
            return outputs, "stop"
        if len(outputs) == generate.max_tokens or len(tokens) == max_length:
            return outputs, "length"


def find_forced(grammar: Grammar, tokens: list[int], stops: Iterable[int]) -> int | None:
    """The one token that may follow, if it stops no text."""
    allowed = grammar(tokens)
    return next(iter(allowed)) if len(allowed) == 1 and allowed.isdisjoint(stops) else None


def expected_ranks(
    generate: Generate, groups: tuple[KvGroup, ...] = (KvGroup(0),), draw: NextToken = next_token
) -> list[int]:
    """The ranks of a prompt's tokens after the first, for a sequence that wants them."""
    if generate.sequences[0].sampling.num_prompt_logprobs is None:
        return []
    prompt = list(unpack_tokens(generate.prompt))
    likely = [
        draw([prompt[max(0, at - (group.window or at)) : at] for group in groups]) or 0
        for at in range(1, len(prompt))
    ]
    return [1 + (token - best) % VOCABULARY for token, best in zip(prompt[1:], likely, strict=True)]


def leave(sampling: Sampling, num_outputs: int) -> set[int]:
    """What a sequence's sampling leaves of the vocabulary after so many tokens."""
    banned = [token for token, value in sampling.bias.items() if value == -math.inf]
    if num_outputs < sampling.min_tokens:
        banned += sampling.held_back
    mask = int.from_bytes(b"\xff" * 8 if sampling.allowed is None else sampling.allowed, "little")
    return {token for token in range(VOCABULARY) if mask >> token & 1} - set(banned)


OPTIMISTIC = "optimistic"
"""A request's grammar whose draws have no masks before one does not fit."""


def pack_mask(allowed: set[int], vocabulary_size: int = VOCABULARY) -> bytes:
    return sum(1 << token for token in allowed).to_bytes(count_mask_bytes(vocabulary_size), "little")


@dataclass
class SetMatcher:
    """Allows what a function of the tokens says, until there are so many."""

    tokens: list[int]
    grammar: Grammar
    max_length: int = 10**9
    vocabulary_size: int = VOCABULARY
    most_ahead: int = 10**9
    """Masks behind guesses that there is time for."""
    fault: str | None = None
    is_slow: bool = False
    is_busy: bool = False
    is_optimistic: bool = False
    is_forcing: bool = False
    most_forced: int = 10**9
    """At once. Behind these the next one is drawn."""
    stops: Sequence[int] = ()

    @property
    def is_stopped(self) -> bool:
        return len(self.tokens) >= self.max_length or self.fault is not None

    def accepts(self, token: int) -> bool:
        return token in self.grammar(self.tokens)

    def consume(self, token: int) -> None:
        self.tokens.append(token)

    def force(self, most: int) -> list[int]:
        forced: list[int] = []
        most = min(most, self.most_forced)
        while self.is_forcing and len(forced) < most and not self.is_stopped:
            token = find_forced(self.grammar, self.tokens, self.stops)
            if token is None:
                break
            self.consume(token)
            forced.append(token)
        return forced

    def prepare(self) -> None:
        pass

    def fill(self, mask: memoryview) -> None:
        mask[:] = pack_mask(self.grammar(self.tokens), self.vocabulary_size)

    def copy(self) -> Self:
        return replace(self, tokens=[*self.tokens])

    def look_ahead(self, guesses: Sequence[int], masks: Sequence[memoryview]) -> None:
        ahead = self.copy()
        for number, guess in enumerate(guesses[: self.most_ahead]):
            if not allows(masks[number], guess):
                return
            ahead.consume(guess)
            if ahead.is_stopped:
                return
            ahead.fill(masks[number + 1])


@dataclass
class AnyRoot:
    """A grammar that any text of so many tokens fits."""

    length: int = 10**9

    def fork(self, stop_token_ids: Sequence[int], *, is_forcing: bool) -> SetMatcher:  # noqa: ARG002
        return SetMatcher([], lambda _: set(range(VOCABULARY)), self.length)


def build_grammar(grammar: messages.Grammar) -> AnyRoot:
    """A number is the length of a text, and anything else is wrong."""
    if not grammar.text.isdigit():
        raise GrammarError("no number")
    return AnyRoot(int(grammar.text))


@dataclass
class Driver:
    """Runs steps as the engine process does, and gathers what each sequence said."""

    scheduler: Scheduler
    executor: SimulatedExecutor
    texts: dict[int, list[int]] = field(default_factory=dict)
    ranks: dict[int, list[int]] = field(default_factory=dict)
    """Of the prompts' tokens."""
    finished: dict[int, str] = field(default_factory=dict)
    errors: dict[int, str | None] = field(default_factory=dict)
    plans: list[StepPlan] = field(default_factory=list)
    timings: list[StepTiming] = field(default_factory=list)
    grammar: Grammar = lambda _: set(range(VOCABULARY))
    seconds: Callable[[StepWork], float] = lambda _: 0.001
    """How long a step takes."""
    works: list[StepWork] = field(default_factory=list)
    has_late_masks: bool = False
    """Masks come when their step is to be collected, not when it was submitted."""
    most_ahead: int = 10**9
    most_forced: int = 10**9

    def add(self, generate: Generate, matchers: list[Matcher] | None = None) -> None:
        if matchers is None and generate.grammar is not None:
            prompt = unpack_tokens(generate.prompt)
            matchers = [
                SetMatcher(
                    list(prompt),
                    self.grammar,
                    most_ahead=self.most_ahead,
                    is_optimistic=generate.grammar.is_optimistic,
                    is_forcing=may_force(generate, new.sampling),
                    most_forced=self.most_forced,
                    stops=generate.stop_token_ids,
                )
                for new in generate.sequences
            ]
        self.scheduler.add(generate, matchers or ())
        for new in generate.sequences:
            self.texts[new.sequence_id] = []
            self.ranks[new.sequence_id] = []

    def step(self) -> None:
        while self.plan_next():
            pass
        self.collect()

    def plan_next(self) -> bool:
        """Submit another plan, if there is one."""
        plan = self.scheduler.schedule()
        if plan is None:
            return False
        self.scheduler.check_integrity()
        self.executor.submit(plan)
        self.plans.append(plan)
        if not self.has_late_masks:
            self._provide_masks()
        return True

    def collect(self) -> None:
        if self.scheduler.num_in_flight:
            self._provide_masks()
            committed = self.scheduler.commit(self.executor.collect())
            if not self.has_late_masks:
                self._provide_masks()
            if committed.timing is not None:
                self.timings.append(committed.timing)
                self.works.append(committed.work)
            self.scheduler.observe(committed.work, self.seconds(committed.work))
            for output in committed.outputs:
                self._record(output)
        self.scheduler.check_integrity()

    def _provide_masks(self) -> None:
        if (due := self.scheduler.pop_masks()) is not None:
            self.executor.provide_masks(due.step, due.masks)

    def run(self) -> None:
        for _ in range(MAX_STEPS):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError("the sequences do not end")

    def _record(self, output: SequenceOutput) -> None:
        assert output.sequence_id not in self.finished, "a sequence spoke after its end"
        self.texts[output.sequence_id] += output.tokens
        if (scores := output.prompt_logprobs) is not None:
            assert scores.first == len(self.ranks[output.sequence_id]) + 1
            self.ranks[output.sequence_id] += unpack_tokens(scores.ranks)
        if output.finish_reason is not None:
            self.finished[output.sequence_id] = output.finish_reason
            self.errors[output.sequence_id] = output.error


def driver(bounds: Limits | None = None) -> Driver:
    bounds = bounds or limits()
    return Driver(Scheduler(bounds), SimulatedExecutor(bounds, next_token))
