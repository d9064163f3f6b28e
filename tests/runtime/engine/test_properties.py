"""Whatever the load and the limits: all ends, nothing is lost, no text depends on its neighbours."""

import dataclasses
import itertools
import math
from dataclasses import dataclass

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.engine.simulated_executor import SimulatedExecutor
from millrace_runtime.protocol.messages import Generate
from millrace_runtime.protocol.step import KvGroup, Limits
from millrace_runtime.replica.grammar_compiler import may_force
from tests.runtime.engine.engine_driver import (
    OPTIMISTIC,
    VOCABULARY,
    Driver,
    driver,
    expected,
    expected_ranks,
    next_token,
    pack_mask,
    request,
)

TOKENS = st.integers(0, VOCABULARY - 1)
SAMPLINGS = st.fixed_dictionaries(
    {},
    optional={
        "min_tokens": st.integers(1, 12),
        "bias": st.dictionaries(TOKENS, st.sampled_from([1.0, -math.inf]), max_size=5),
        "allowed": st.sets(TOKENS, min_size=20).map(pack_mask),
        "num_prompt_logprobs": st.just(1),
    },
)
OPTIONS = st.fixed_dictionaries(
    {
        "bad_words": st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=4), max_size=40),
        "salt": st.sampled_from([b"", b"a"]),
        "priority": st.sampled_from([0, 0, -1, 5]),
    }
)


@dataclass(frozen=True)
class Load:
    bounds: Limits
    arrivals: list[tuple[int, Generate]]
    """(step, request)"""
    aborts: dict[int, int]
    """step: sequence id"""
    error_period: int
    """Guesses are right but where the sum of a sequence's tokens is a multiple of this."""
    fault_sum: int
    """A draw fails where what it sees sums to this, modulo 97."""
    has_late_masks: bool
    most_ahead: int
    most_forced: int
    target_seconds: float | None

    def next_token(self, seen: list[list[int]]) -> int | None:
        return None if sum(map(sum, seen)) % 97 == self.fault_sum else next_token(seen)

    def propose(self, tokens: list[int]) -> list[int]:
        """Guess as many tokens as the sum says, some of them wrong, and half as the grammar has them."""
        known, is_bound = list(tokens), len(tokens) % 2
        for _ in range(sum(tokens) % (self.bounds.max_draft + 1)):
            token = self.next_token([known[-(g.window or len(known)) :] for g in self.bounds.groups]) or 0
            token += sum(known) % self.error_period == 0
            allowed = self.grammar(known) if is_bound else ()
            near = ((token + more) % VOCABULARY for more in range(VOCABULARY))
            known.append(next((t for t in near if t in allowed), token % VOCABULARY))
        return known[len(tokens) :]

    @staticmethod
    def grammar(tokens: list[int]) -> set[int]:
        """A set that changes with each token. It is empty after some, and has one token after others."""
        if sum(tokens) % 31 == 0:
            return set()
        if sum(tokens) % 5 > 1:
            return {(sum(tokens) + len(tokens)) % VOCABULARY}
        return {token for token in range(VOCABULARY) if (token + tokens[-1] + len(tokens)) % 3}

    def expected(self, generate: Generate, max_length: int) -> tuple[list[int], str]:
        may = generate.grammar is not None and may_force(generate, generate.sequences[0].sampling)
        return expected(
            generate,
            max_length,
            self.bounds.groups,
            self.grammar,
            self.next_token,
            most_forced=self.most_forced if may and self.bounds.depth == 1 else 0,
        )

    def expected_ranks(self, generate: Generate) -> list[int]:
        return expected_ranks(generate, self.bounds.groups, self.next_token)

    def build_driver(self) -> Driver:
        executor = SimulatedExecutor(self.bounds, self.next_token, self.propose)
        scheduler = Scheduler(self.bounds, self.target_seconds)
        driver = Driver(scheduler, executor, grammar=self.grammar, has_late_masks=self.has_late_masks)
        driver.most_ahead, driver.most_forced = self.most_ahead, self.most_forced
        driver.seconds = lambda work: 0.01 + 0.001 * (work.num_decoded + work.num_chunked)
        return driver


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    windows = st.none() | st.integers(1, 20)
    groups = draw(st.lists(st.builds(KvGroup, st.integers(6, 24), windows), min_size=1, max_size=3))
    return Limits(
        groups=tuple(groups),
        block_size=draw(st.integers(1, 5)),
        num_slots=draw(st.integers(1, 5)),
        depth=draw(st.integers(1, 3)),
        max_model_length=draw(st.integers(8, 40)),
        vocabulary_size=VOCABULARY,
        max_batched_tokens=draw(st.integers(1, 24)),
        max_draft=draw(st.integers(0, 4)),
        max_draws=draw(st.integers(1, 9)),
    )


@st.composite
def prompts(draw: st.DrawFn, shared: list[int]) -> list[int]:
    """A prompt that begins like others, or with nothing that another has."""
    num_shared = draw(st.integers(0, len(shared)))
    own = draw(st.lists(TOKENS, min_size=not num_shared, max_size=len(shared) - num_shared))
    return [*shared[:num_shared], *own]


@st.composite
def loads(draw: st.DrawFn, *, with_aborts: bool = False) -> Load:
    bounds = draw(limits())
    longest = Scheduler(bounds).max_model_length - 1
    shared = draw(st.lists(TOKENS, min_size=longest, max_size=longest))
    requests = draw(
        st.lists(
            st.tuples(
                st.integers(0, 20),
                prompts(shared),
                st.integers(0, 30),
                st.lists(TOKENS, max_size=2),
                st.sampled_from([None, "a", OPTIMISTIC]),
                st.integers(0, 2),
                SAMPLINGS,
                OPTIONS,
            ),
            min_size=1,
            max_size=8,
        )
    )
    arrivals = []
    for number, (at, prompt, count, stop, grammar, num_others, sampling, options) in enumerate(requests):
        first = number * 10
        asked = {"grammar": grammar, "others": range(first + 1, first + 1 + num_others)} | sampling | options
        arrivals.append((at, request(first, prompt, count, stop, held_back=tuple(stop), **asked)))
    victims = st.sampled_from([new.sequence_id for _, generate in arrivals for new in generate.sequences])
    return Load(
        bounds,
        sorted(arrivals, key=lambda pair: pair[0]),
        draw(st.dictionaries(st.integers(0, 30), victims, max_size=4)) if with_aborts else {},
        draw(st.integers(1, 9)),
        draw(st.integers(0, 200)),  # above 96: never
        draw(st.booleans()),
        draw(st.integers(0, 4)),
        draw(st.integers(1, 9)),
        draw(st.sampled_from([None, 1e-3, 0.02])),
    )


def play(load: Load) -> Driver:
    engine = load.build_driver()
    arrivals = list(load.arrivals)
    for step in range(40):
        while arrivals and arrivals[0][0] <= step:
            engine.add(arrivals.pop(0)[1])
        if step in load.aborts:
            engine.scheduler.abort(load.aborts[step])
        engine.step()
    engine.run()
    return engine


def assert_nothing_is_held(engine: Driver) -> None:
    stats = engine.scheduler.stats()
    assert stats.num_free_blocks == stats.num_blocks
    assert (stats.num_waiting, stats.num_running) == (0, 0)


@settings(max_examples=200, deadline=None)
@given(loads())
def test_every_request_ends_with_the_text_it_would_have_alone(load: Load) -> None:
    engine = play(load)
    for _, generate in load.arrivals:
        text, reason = load.expected(generate, engine.scheduler.max_model_length)
        for new in generate.sequences:
            assert engine.texts[new.sequence_id] == text
            assert engine.finished[new.sequence_id] == reason
            ranks = engine.ranks[new.sequence_id]
            assert ranks == load.expected_ranks(generate)[: len(ranks) if reason == "error" else None]
    assert_nothing_is_held(engine)


@settings(max_examples=100, deadline=None)
@given(loads())
def test_plans_keep_to_the_budget_and_the_slots(load: Load) -> None:
    engine = play(load)
    plans = [plan for plan in engine.plans if plan.rows]
    assert all(plan.released and not plan.starts for plan in engine.plans if not plan.rows)
    for plan, timing in zip(plans, engine.timings, strict=True):
        num_tokens = sum(row.num_tokens + len(row.draft) for row in plan.rows)
        assert 0 < num_tokens <= load.bounds.max_batched_tokens
        assert timing.num_tokens == num_tokens
        assert len(plan.rows) <= load.bounds.num_slots
    assert [plan.step for plan in engine.plans] == list(range(len(engine.plans)))


@settings(max_examples=100, deadline=None)
@given(loads(with_aborts=True))
def test_aborts_free_what_was_held_and_change_no_other_text(load: Load) -> None:
    engine = play(load)
    for _, generate in load.arrivals:
        text, reason = load.expected(generate, engine.scheduler.max_model_length)
        for sequence_id in (new.sequence_id for new in generate.sequences):
            said = engine.texts[sequence_id]
            if engine.finished.get(sequence_id) is None:
                assert sequence_id in load.aborts.values()
                assert said == text[: len(said)]
            else:
                assert (said, engine.finished[sequence_id]) == (text, reason)
    assert_nothing_is_held(engine)


@settings(max_examples=150, deadline=None)
@given(loads(), st.lists(st.sampled_from([1, 2, 3, 24]), min_size=2, max_size=8))
def test_the_oldest_has_a_row_in_every_plan_that_it_wants_one_in(load: Load, budgets: list[int]) -> None:
    """The budget changes from plan to plan: more sequences decode than some of them hold."""
    bounds = msgspec.structs.replace(load.bounds, max_batched_tokens=max(budgets))
    engine = dataclasses.replace(load, bounds=bounds).build_driver()
    changing = itertools.cycle(budgets)
    for _, generate in load.arrivals:
        engine.add(generate)
    while engine.scheduler.has_work:
        for _ in range(load.bounds.depth):
            engine.scheduler._max_batched_tokens = next(changing)
            oldest = engine.scheduler._planner._oldest()
            wants_row = oldest is not None and oldest.wants_row
            if engine.plan_next() and oldest is not None and wants_row:
                assert oldest.tenancy is not None
                assert oldest.tenancy.slot in [row.slot for row in engine.plans[-1].rows]
        engine.collect()


@given(st.lists(st.sampled_from([-1, 0, 5]), min_size=4, max_size=9), st.integers(10, 16))
def test_no_sequence_is_preempted_while_a_less_urgent_one_runs_on(
    priorities: list[int], num_blocks: int
) -> None:
    """Four sequences need up to 28 blocks together."""
    bounds = Limits((KvGroup(num_blocks),), 2, 4, 1, 100, VOCABULARY, 32)
    engine = driver(bounds)
    numbered, running = list(enumerate(priorities)), engine.scheduler._planner.running
    while numbered or engine.scheduler.has_work:
        for number, priority in numbered[:1]:
            engine.add(request(number, [number] * 3, max_tokens=10, priority=priority))
        del numbered[:1]
        before = [(sequence, sequence.tenancy) for sequence in running]
        engine.plan_next()
        kept = {s.age.priority for s, tenancy in before if s.tenancy == tenancy}
        lost = {s.age.priority for s, tenancy in before if s.tenancy != tenancy}
        assert not kept or not lost or max(kept) <= min(lost)
        engine.collect()
