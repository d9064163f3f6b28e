"""Drafts, masks, windows and sleep, as whole sequences of plans."""

import pytest

from millrace_runtime.engine.drafts import share_drafts
from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.engine.sequence import MASKED_DRAWS
from millrace_runtime.engine.simulated_executor import SimulatedExecutor
from millrace_runtime.protocol.encoding import pack_tokens
from millrace_runtime.protocol.executor import Sleep, Wake
from millrace_runtime.protocol.messages import FINISH_ERROR
from millrace_runtime.protocol.step import (
    FAULT_NOTHING_ALLOWED,
    KvGroup,
    Limits,
    Row,
    RowResult,
    SlotStart,
    StepPlan,
    StepResult,
)
from tests.runtime.engine.engine_driver import (
    OPTIMISTIC,
    VOCABULARY,
    Driver,
    SetMatcher,
    driver,
    expected,
    limits,
    next_token,
    pack_mask,
    request,
)


def windowed(*groups: KvGroup, depth: int = 1, budget: int = 16, max_draft: int = 0) -> Limits:
    return Limits(groups, 2, 4, depth, 100, VOCABULARY, budget, max_draft, max_draws=budget)


def drafting(depth: int, right: int, budget: int = 16) -> Driver:
    """Four guesses after each draw, the first `right` of them right."""
    bounds = windowed(KvGroup(64), depth=depth, budget=budget, max_draft=4)

    def propose(tokens: list[int]) -> list[int]:
        known = list(tokens)
        for number in range(4):
            known.append(((next_token([known]) or 0) + (number >= right)) % VOCABULARY)
        return known[len(tokens) :]

    return Driver(Scheduler(bounds), SimulatedExecutor(bounds, next_token, propose))


def test_accepted_drafts_bring_several_tokens_a_step() -> None:
    engine = drafting(depth=1, right=2)
    generate = request(1, [1, 2, 3], max_tokens=8)
    engine.add(generate)
    engine.run()
    assert engine.texts[1] == expected(generate, 100)[0]
    assert [[(row.num_tokens, len(row.draft)) for row in plan.rows] for plan in engine.plans] == [
        [(3, 0)],  # draws 1
        [(1, 4)],  # 2 accepted and 1 drawn
        [(1, 3)],  # 3 more: room for 3 guesses, for the last token is never a guess
        [(1, 0)],
        [],  # releases its slot
    ]
    assert [timing.num_tokens for timing in engine.timings] == [3, 5, 4, 1]


def test_a_sequence_with_a_draft_has_one_row_in_flight_and_its_neighbour_two() -> None:
    engine = drafting(depth=2, right=4)
    engine.add(request(1, [1, 2, 3], max_tokens=30))
    engine.step()
    assert [plan.rows for plan in engine.plans] == [[Row(0, 3, True)], [Row(0, 1, True)]]
    engine.step()  # the first result offers a draft while the second row is in flight: nothing to plan
    assert len(engine.plans) == 2
    engine.step()
    assert [len(row.draft) for row in engine.plans[2].rows] == [4]
    assert engine.scheduler.num_in_flight == 0
    engine.run()
    assert engine.texts[1] == expected(request(1, [1, 2, 3], max_tokens=30), 100)[0]


@pytest.mark.parametrize(
    ("offers", "room", "shares"),
    [
        ([4, 4, 4], 12, [4, 4, 4]),
        ([4, 1, 4], 6, [3, 1, 2]),
        ([4, 4, 4], 2, [1, 1, 0]),
        ([0, 2], 9, [0, 2]),
        ([4], 0, [0]),
        ([4], -3, [0]),
        ([], 5, []),
    ],
)
def test_each_draft_gets_its_first_token_before_another_gets_its_second(
    offers: list[int], room: int, shares: list[int]
) -> None:
    assert share_drafts(offers, room) == shares


def test_drafts_and_their_tokens_are_counted() -> None:
    engine = drafting(depth=1, right=2)
    engine.add(request(1, [1, 2, 3], max_tokens=30))
    engine.run()
    drafted = [len(row.draft) for plan in engine.plans for row in plan.rows if row.draft]
    stats = engine.scheduler.stats()
    assert (stats.num_drafts, stats.num_drafted) == (len(drafted), sum(drafted))
    num_rows = sum(len(plan.rows) for plan in engine.plans)
    assert stats.num_accepted == 30 - num_rows


def test_drafts_take_only_what_prefill_leaves() -> None:
    engine = drafting(depth=1, right=4, budget=6)
    engine.add(request(1, [1], max_tokens=40))
    engine.step()
    engine.add(request(2, range(8), max_tokens=1))
    for _ in range(2):
        engine.step()
    assert engine.plans[1].rows == [Row(0, 1, True), Row(1, 5, False)]
    assert [(row.num_tokens, len(row.draft)) for row in engine.plans[2].rows] == [(1, 2), (3, 0)]


def test_a_stop_token_inside_a_row_cuts_it_and_its_logprobs() -> None:
    scheduler = Scheduler(windowed(KvGroup(64), max_draft=4))
    scheduler.add(request(1, [1], max_tokens=9, stop=[7]))
    scheduler.schedule()
    scheduler.commit(StepResult(0, [RowResult(0, 0, [3], 1, next_draft=(4, 7, 5, 6))], 0.1))
    scheduler.schedule()
    [output] = scheduler.commit(StepResult(1, [RowResult(0, 0, [4, 7, 5], 4)], 0.1)).outputs
    assert (output.tokens, output.finish_reason) == ([4, 7], "stop")
    stats = scheduler.stats()
    assert (stats.num_drafts, stats.num_drafted, stats.num_accepted) == (1, 4, 2)
    assert scheduler.schedule() == StepPlan(2, [0], [], [], [])
    assert scheduler.commit(StepResult(2, [], 0.1))[:2] == ([], None)
    assert not scheduler.has_work


def test_an_executor_that_counts_otherwise_is_our_bug() -> None:
    scheduler = Scheduler(limits())
    scheduler.add(request(1, [1]))
    scheduler.schedule()
    with pytest.raises(AssertionError, match="the executor computed 2 tokens, not 1"):
        scheduler.commit(StepResult(0, [RowResult(0, 0, [3], 2)], 0.1))


def test_masks_bind_every_draw_and_keep_nobody_from_its_step() -> None:
    engine = driver(limits(depth=2))
    engine.grammar = lambda tokens: {len(tokens), len(tokens) + 1}
    engine.add(request(1, range(10), max_tokens=4, grammar="a"))
    engine.add(request(2, [1], max_tokens=4))
    engine.run()
    assert all(token - at in {10, 11} for at, token in enumerate(engine.texts[1]))
    assert [[row.is_masked for row in plan.rows] for plan in engine.plans if plan.rows] == [[True, False]] * 4
    assert engine.texts[2] == expected(request(2, [1], max_tokens=4), 100)[0]


def allow_thirds(tokens: list[int]) -> set[int]:
    return {token for token in range(VOCABULARY) if (token + sum(tokens)) % 3}


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("is_refused", [False, True])
@pytest.mark.parametrize("right", range(5))
def test_masked_rows_verify_drafts(depth: int, right: int, is_refused: bool) -> None:  # noqa: FBT001
    """Of four guesses the first `right` are right. The grammar refuses the next one, or would allow it."""
    asked = request(1, [1, 2, 3], max_tokens=30, grammar="a")
    text = [1, 2, 3, *expected(asked, 100, grammar=allow_thirds)[0]]

    def propose(tokens: list[int]) -> list[int]:
        guesses = text[len(tokens) : len(tokens) + 4]
        if right < len(guesses):
            known = text[: len(tokens) + right]
            allowed = allow_thirds(known)
            others = set(range(VOCABULARY)) - allowed if is_refused else allowed - {guesses[right]}
            guesses[right] = min(others)
        return guesses

    bounds = windowed(KvGroup(64), depth=depth, max_draft=4)
    engine = Driver(Scheduler(bounds), SimulatedExecutor(bounds, next_token, propose), grammar=allow_thirds)
    engine.add(asked)
    engine.run()
    assert engine.texts[1] == text[3:]
    rows = [row for plan in engine.plans for row in plan.rows]
    assert all(row.is_masked for row in rows)
    stats = engine.scheduler.stats()
    assert stats.num_accepted == 30 - len(rows)
    assert stats.num_drafted == sum(len(row.draft) for row in rows)
    if depth == 1:
        assert len(rows) == 1 + -(-29 // (right + 1))


def test_a_fault_behind_guesses_is_the_next_rows() -> None:
    """A mask that was not made, and one that allows nothing, are the same to the executor."""
    bounds = windowed(KvGroup(64), max_draft=4)
    engine = Driver(Scheduler(bounds), SimulatedExecutor(bounds, next_token, lambda _: [5, 5, 5]))
    matcher = SetMatcher([1, 2], lambda tokens: {5} if len(tokens) < 9 else set())
    engine.add(request(1, [1, 2], max_tokens=20, grammar="a"), [matcher])
    engine.run()
    assert (engine.texts[1], engine.errors[1]) == ([5] * 7, FAULT_NOTHING_ALLOWED)
    assert [len(row.draft) for plan in engine.plans for row in plan.rows] == [0, 3, 3, 3]


@pytest.mark.parametrize(
    ("budget", "rows"),
    [(16, [(2, 0), (5, 4), (1, 0), (1, 0)]), (3, [(2, 0), (3, 4), (2, 0), (1, 0), (1, 0)])],
)
def test_forced_tokens_come_with_the_next_row_and_count_as_drafts(
    budget: int, rows: list[tuple[int, int]]
) -> None:
    engine = driver(limits(budget=budget))
    engine.grammar = lambda tokens: {7} if 3 <= len(tokens) < 7 else set(range(VOCABULARY))
    engine.add(request(1, [1, 2], max_tokens=8, grammar="a"))
    engine.run()
    assert engine.texts[1] == expected(request(1, [1, 2], 8, grammar="a"), 100, grammar=engine.grammar)[0]
    assert [(row.num_tokens, len(row.forced)) for plan in engine.plans for row in plan.rows] == rows
    stats = engine.scheduler.stats()
    assert (stats.num_drafts, stats.num_drafted, stats.num_accepted) == (1, 4, 4)
    assert sum(work.num_decoded for work in engine.works) == (7 if budget > 5 else 4)
    assert [timing.is_decode_only for timing in engine.timings] == [False] + [
        budget > 5 or count < 3 for count, _ in rows[1:]
    ]


def test_forced_tokens_wait_for_blocks_that_a_window_frees() -> None:
    bounds = Limits((KvGroup(6, window=6),), 1, 4, 1, 40, VOCABULARY, 16)
    engine = Driver(Scheduler(bounds), SimulatedExecutor(bounds, next_token))
    engine.grammar = lambda tokens: {7} if len(tokens) % 11 else set(range(VOCABULARY))
    engine.add(request(1, [1, 2], max_tokens=30, grammar="a"))
    engine.run()
    assert engine.finished == {1: "length"}
    assert engine.scheduler.stats().num_preemptions == 0


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_an_optimistic_grammar_has_masks_behind_a_draw_that_does_not_fit(depth: int) -> None:
    engine = driver(limits(depth=depth, num_blocks=40))
    asked = request(1, [1], max_tokens=40, grammar=OPTIMISTIC)
    free = expected(request(1, [1], max_tokens=40), 100)[0]
    engine.grammar = lambda tokens: set(range(VOCABULARY)) - ({free[5]} if len(tokens) == 6 else set())
    engine.add(asked)
    engine.run()
    bound = expected(asked, 100, grammar=engine.grammar)[0]
    assert (engine.texts[1], bound[:5], bound[5] != free[5]) == (bound, free[:5], True)
    assert sum(row.is_masked for plan in engine.plans for row in plan.rows) == MASKED_DRAWS
    assert engine.scheduler.stats().num_preemptions == 0


def test_a_masked_row_is_submitted_before_its_mask_is_known() -> None:
    engine = driver(limits(depth=2))
    engine.add(request(1, [1, 2], max_tokens=3, grammar="a"))
    assert engine.plan_next()
    assert engine.plan_next()  # beside the first, whose draw its mask needs
    assert engine.scheduler._in_flight[-1].awaits_masks
    assert not engine.plan_next()
    engine.collect()
    assert not engine.scheduler._in_flight[-1].awaits_masks
    engine.run()
    assert len(engine.texts[1]) == 3


def test_a_mask_that_allows_nothing_ends_its_sequence() -> None:
    engine = driver()
    engine.grammar = lambda tokens: {1} if len(tokens) < 5 else set()
    engine.add(request(1, [1, 2], max_tokens=9, grammar="a"))
    engine.run()
    assert (engine.texts[1], engine.finished[1]) == ([1, 1, 1], FINISH_ERROR)
    assert engine.errors[1] == FAULT_NOTHING_ALLOWED


def test_a_whole_text_ends_its_sequence_and_a_fault_of_its_matcher_too() -> None:
    engine = driver(limits(depth=2))
    matchers = [SetMatcher([], lambda _: {3}, max_length=2), SetMatcher([], lambda _: {4})]
    engine.add(request(1, [1], max_tokens=9, grammar="a", others=[2]), matchers)
    engine.step()
    matchers[1].fault = "too complex"
    engine.run()
    assert (engine.texts, engine.finished) == ({1: [3, 3], 2: [4, 4]}, {1: "stop", 2: "error"})
    assert engine.errors[2] == "too complex"


def test_a_preempted_sequence_keeps_its_matcher() -> None:
    engine = driver(limits(depth=2, num_blocks=8, num_slots=2))
    matcher = SetMatcher([], lambda tokens: {len(tokens)})
    engine.add(request(1, [1] * 8, max_tokens=20))
    engine.add(request(2, [2] * 4, max_tokens=20, grammar="a"), [matcher])
    engine.run()
    assert engine.scheduler.stats().num_preemptions > 0
    assert engine.texts[2] == matcher.tokens == list(range(20))


@pytest.mark.parametrize("grammar", [None, "a"])
def test_bad_words_do_not_come_and_their_tokens_do(grammar: str | None) -> None:
    ask = {"max_tokens": 30, "grammar": grammar, "allowed": pack_mask({1, 2, 3})}
    free = expected(request(1, [1, 3], **ask), 100)[0]
    words = [free[:2], free[5:9]]
    engine = driver(limits(depth=2))
    engine.add(request(1, [1, 3], bad_words=words, **ask))
    engine.run()
    said = engine.texts[1]
    assert said[0] == free[0]
    assert not any(said[at : at + len(word)] == word for word in words for at in range(30))


def test_a_window_lets_a_long_prompt_through_a_small_group() -> None:
    bounds = windowed(KvGroup(50), KvGroup(4, window=3), budget=4)
    engine = Driver(Scheduler(bounds), SimulatedExecutor(bounds, next_token))
    assert engine.scheduler.max_model_length == 100
    generate = request(1, [n % VOCABULARY for n in range(60)], max_tokens=20)
    engine.add(generate)
    engine.run()
    assert engine.texts[1] == expected(generate, 100, bounds.groups)[0]
    assert max(plan.rows[0].num_tokens for plan in engine.plans[:-1]) == 4  # the window frees as it goes


def test_a_group_too_small_for_its_window_bounds_the_length() -> None:
    assert Scheduler(windowed(KvGroup(64), KvGroup(3, window=6))).max_model_length == 6
    assert Scheduler(windowed(KvGroup(64), KvGroup(4, window=6))).max_model_length == 100


def test_the_oldest_prefill_takes_a_block_of_a_windowed_group_from_the_young() -> None:
    bounds = windowed(KvGroup(50), KvGroup(8, window=4), budget=4)
    engine = Driver(Scheduler(bounds), SimulatedExecutor(bounds, next_token))
    scheduler, requests = engine.scheduler, [request(1, range(30), 3), request(2, [5], 12)]
    for generate in requests:
        engine.add(generate)
    engine.step()
    old, young = scheduler._sequences[1], scheduler._sequences[2]
    scheduler._planner._place(young)
    for _ in range(3):
        if young.tenancy:  # it takes every block that the old one's window has passed
            scheduler._residency.drop_unseen()
            scheduler._residency.extend(young, 90)
        computed = old.num_computed
        engine.step()
        assert old.num_computed > computed
    assert scheduler.stats().num_preemptions == 1
    engine.run()
    for generate, sequence_id in zip(requests, (1, 2), strict=True):
        assert engine.texts[sequence_id] == expected(generate, 100, bounds.groups)[0]


def test_the_oldest_prefill_has_its_token_of_a_budget_full_of_decodes() -> None:
    engine = driver(limits(num_slots=4, budget=32))
    for sequence_id, prompt in ((1, [1]), (2, [2] * 6), (3, [3] * 9), (4, [4] * 9)):
        engine.add(request(sequence_id, prompt, max_tokens=40))
    for _ in range(3):
        engine.step()
    engine.scheduler._planner._preempt_cheapest()
    engine.scheduler.forget_prefixes()
    engine.scheduler.abort(1)
    engine.scheduler._max_batched_tokens = 2
    second = engine.scheduler._sequences[2]
    for _ in range(5):
        engine.step()
        assert sorted(row.num_tokens for row in engine.plans[-1].rows) == [1, 1]
    assert second.num_computed == 5


def test_choices_of_a_prompt_begin_together_and_share_its_fate() -> None:
    engine = driver()
    engine.add(request(1, [1, 2], others=[2, 3]))
    assert engine.scheduler.stats().num_waiting == 3
    engine.run()
    assert engine.texts[1] == engine.texts[2] == engine.texts[3]
    with pytest.raises(Exception, match="have the same id"):
        engine.add(request(7, [1], others=[7]))
    assert not engine.scheduler.has_work


def simulated(masks: bytes | None = None, **row: object) -> StepResult:
    """Run one row of a started sequence."""
    bounds = windowed(KvGroup(8), max_draft=2)
    executor = SimulatedExecutor(bounds, next_token, lambda _: [1])
    start = SlotStart(0, 0, pack_tokens([1, 2]), 0, [[3]], request(1, [1]).sequences[0].sampling, 2)
    values = {"slot": 0, "num_tokens": 2, "emit": True} | row
    executor.submit(StepPlan(0, [], [start], [], [Row(**values)]))
    if masks is not None:
        executor.provide_masks(0, memoryview(masks))
    return executor.collect()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"is_masked": True}, "no mask"),
        ({"draft": (1,)}, "no room for its tokens and its draft"),
        ({"num_tokens": 1}, "emits only at the last known token"),
        ({"num_tokens": 17}, "too many tokens"),
        ({"is_masked": True, "draft": (1,), "masks": pack_mask({1})}, "each draw of a masked row has a mask"),
        ({"draft": (1,) * 3}, "more draft than"),
    ],
)
def test_the_simulated_executor_disbelieves(row: dict[str, object], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        simulated(**row)


def test_a_masked_row_draws_from_its_mask_and_the_next_guesses_are_offered() -> None:
    assert simulated(pack_mask({9}), is_masked=True).rows == [RowResult(0, 0, [9], 2, next_draft=(1,))]


def test_the_simulated_executor_sleeps_only_when_empty_and_wakes_without_memory() -> None:
    engine = driver(limits(num_slots=1))
    engine.add(request(1, [1], max_tokens=2))
    engine.executor.submit(engine.scheduler.schedule())
    with pytest.raises(AssertionError, match="in flight"):
        engine.executor.control(Sleep())
    engine.scheduler.commit(engine.executor.collect())
    with pytest.raises(AssertionError, match="sequences on the device"):
        engine.executor.control(Sleep())
    engine.run()
    assert engine.plans[-1] == StepPlan(2, [0], [], [], [])
    engine.executor.control(Sleep())
    with pytest.raises(AssertionError, match="in its sleep"):
        engine.executor.submit(StepPlan(engine.executor._next_step, [], [], [], []))
    engine.executor.control(Wake())
    assert engine.executor._cache._cells[0][0] == [-1] * 4
    engine.add(request(2, [1], max_tokens=2))
    engine.run()
    assert engine.texts[2] == expected(request(2, [1], max_tokens=2), 100)[0]


def test_nothing_is_planned_behind_a_step_without_its_masks() -> None:
    engine = driver(limits(depth=2))
    engine.has_late_masks = True
    engine.add(request(1, [1, 2], max_tokens=3, grammar="a"))
    engine.add(request(2, [3], max_tokens=3))
    assert engine.plan_next()
    assert not engine.plan_next()
    engine.run()
    assert [len(plan.rows) for plan in engine.plans if plan.rows] == [2, 2, 2]


def test_the_simulated_executor_takes_no_plan_behind_one_without_masks() -> None:
    executor = driver(limits(depth=2)).executor
    executor.submit(StepPlan(0, [], [], [], [Row(0, 1, True, is_masked=True)]))
    with pytest.raises(AssertionError, match="a plan before has no masks yet"):
        executor.submit(StepPlan(1, [], [], [], []))
    with pytest.raises(AssertionError, match="a masked row has no mask"):
        executor.wait(0)
