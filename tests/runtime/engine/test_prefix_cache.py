"""Which tokens are computed once and which again: the starts and rows of the plans show it."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import pytest

from millrace_runtime.engine.block_pool import hash_prompt, hash_root
from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.engine.simulated_executor import SimulatedExecutor
from millrace_runtime.protocol.encoding import pack_tokens
from millrace_runtime.protocol.executor import Sleep, Wake
from millrace_runtime.protocol.messages import Begun, Generate
from millrace_runtime.protocol.step import KvGroup, StepPlan
from tests.runtime.engine.engine_driver import (
    VOCABULARY,
    Driver,
    driver,
    expected,
    limits,
    next_token,
    request,
)

PROMPT = range(10)


def starts(engine: Driver) -> list[int]:
    """The cached tokens of each sequence that was placed, in order."""
    return [start.num_computed for plan in engine.plans for start in plan.starts]


def say(engine: Driver, *generates: Generate) -> list[int]:
    """Run requests one after the other; return the cached tokens of each."""
    for generate in generates:
        engine.add(generate)
        engine.run()
    return [begun.num_cached for begun in engine.scheduler.pop_begun()]


def count_rows(plan: StepPlan) -> list[int]:
    return [row.num_tokens for row in plan.rows]


@pytest.mark.parametrize(("length", "num_cached"), [(3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (10, 8)])
def test_an_equal_prompt_finds_its_whole_blocks_and_computes_one_token_at_least(
    length: int, num_cached: int
) -> None:
    engine = driver(limits(block_size=4))
    first, second = (request(number, range(length)) for number in (1, 2))
    assert say(engine, first, second) == [0, num_cached]
    assert engine.texts[1] == engine.texts[2] == expected(second, 100)[0]
    stats = engine.scheduler.stats()
    assert (stats.num_prefix_queries, stats.num_prefix_hits) == (2 * length, num_cached)


def test_the_next_turn_of_a_chat_finds_the_answer_too() -> None:
    engine = driver(limits(block_size=4))
    say(engine, request(1, PROMPT, max_tokens=7))
    turn = [*PROMPT, *engine.texts[1], 30, 31]
    assert say(engine, request(2, turn)) == [16]  # 10 + 7, and the last token drawn was not computed
    assert engine.texts[2] == expected(request(2, turn), 100)[0]


@pytest.mark.parametrize("depth", [1, 2])
def test_choices_of_a_prompt_wait_for_the_first_one_and_share_it(depth: int) -> None:
    engine = driver(limits(block_size=4, depth=depth))
    engine.add(request(1, PROMPT, others=[2, 3]))
    engine.run()
    assert starts(engine) == [0, 8, 8]
    assert sum(map(len, engine.texts.values())) == 15
    assert engine.scheduler.pop_begun() == [Begun(1, 0), Begun(2, 8), Begun(3, 8)]


def test_who_waits_for_a_prefix_is_passed_by_others_and_goes_on_when_it_will_not_come() -> None:
    engine = driver(limits(block_size=4, budget=24))
    engine.add(request(1, range(20)))
    engine.add(request(2, range(20)))
    engine.add(request(3, [40, 41]))
    engine.plan_next()
    assert [start.tokens for start in engine.plans[0].starts] == [
        pack_tokens(range(20)),
        pack_tokens([40, 41]),
    ]
    engine.scheduler.abort(1)
    engine.run()
    assert starts(engine) == [0, 0, 0]
    assert engine.texts[2] == expected(request(2, range(20)), 100)[0]


@pytest.mark.parametrize("depth", [1, 2])
def test_who_waits_for_a_prefix_keeps_its_slot_and_its_blocks(depth: int) -> None:
    bounds = limits(num_blocks=30, block_size=4, num_slots=3, depth=depth, budget=64)
    engine = driver(bounds)
    engine.add(request(1, range(20), max_tokens=20, others=[2]))
    for number in (3, 4):
        engine.add(request(number, [number] * 8, max_tokens=20))
    for _ in range(4):
        engine.step()
    assert [begun.sequence_id for begun in engine.scheduler.pop_begun()] == [1, 3, 2]
    few = driver(
        msgspec.structs.replace(bounds, groups=(KvGroup(12),))
    )  # for both choices, and one block more
    few.add(request(1, range(20), others=[2]))
    few.add(request(3, [3] * 8))
    few.step()
    assert len(few.plans[0].starts) == 1


def test_what_was_used_least_recently_goes_first_and_from_its_end() -> None:
    engine = driver(limits(num_blocks=8, block_size=4))
    old, new = ([number] * 12 for number in (1, 2))
    say(engine, request(1, old, 1), request(2, new, 1))  # three full blocks each
    say(engine, request(3, [3] * 12, 1))  # takes the two free ones, and one of the oldest text
    assert say(engine, request(4, [*old, 9], 1), request(5, [*new, 9], 1)) == [8, 4]


def test_a_salt_finds_nothing_of_another_and_no_plan_depends_on_it() -> None:
    """So neither an answer nor its time tells a tenant of another's prompts."""
    alone, beside = driver(limits(block_size=4)), driver(limits(block_size=4))
    say(beside, request(1, range(20), salt=b"a"))
    begun = len(beside.plans)
    mine = [request(2, range(20), salt=b"b"), request(3, range(24))]
    assert say(alone, *mine) == [0, 0]
    assert say(beside, *mine) == [0, 0]
    assert [*map(count_rows, beside.plans[begun:])] == [*map(count_rows, alone.plans)]
    assert say(beside, request(4, range(20), salt=b"a")) == [16]


def test_a_step_with_a_fault_leaves_nothing_to_find_but_an_impossible_request_does() -> None:
    bounds = limits(block_size=4)
    broken: list[bool] = [True]
    executor = SimulatedExecutor(bounds, lambda seen: None if broken else next_token(seen))
    engine = Driver(Scheduler(bounds), executor)
    say(engine, request(1, PROMPT))
    assert engine.finished == {1: "error"}
    broken.clear()
    nothing = dict.fromkeys(range(VOCABULARY), -math.inf)
    assert say(engine, request(2, PROMPT, bias=nothing), request(3, PROMPT)) == [0, 8]
    assert engine.finished == {1: "error", 2: "error", 3: "length"}


def test_scores_of_a_prompt_read_no_cached_block_and_count_as_no_query() -> None:
    engine = driver(limits(block_size=4))
    scored = request(2, PROMPT, num_prompt_logprobs=0)
    assert say(engine, request(1, PROMPT), scored, request(3, PROMPT)) == [0, 0, 8]
    assert len(engine.ranks[2]) == 9
    assert engine.scheduler.stats().num_prefix_queries == 20


def windowed(*groups: KvGroup, depth: int = 1) -> Driver:
    return driver(msgspec.structs.replace(limits(block_size=4, depth=depth, budget=64), groups=groups))


@pytest.mark.parametrize("depth", [1, 2])
def test_blocks_that_left_a_window_stay_cached(depth: int) -> None:
    """Of the shared 20 tokens the window has passed all when the first prompt ends."""
    groups = (KvGroup(64), KvGroup(40, 8))
    engine = windowed(*groups, depth=depth)
    prompts = [request(number, [*range(20), *[number] * 30], 4) for number in (41, 42)]
    assert say(engine, *prompts) == [0, 20]
    assert engine.texts[42] == expected(prompts[1], 100, groups)[0]


def test_a_fault_takes_the_blocks_that_have_left_a_window_too() -> None:
    bounds = msgspec.structs.replace(limits(block_size=4, budget=8), groups=(KvGroup(20, 8),))
    engine = Driver(Scheduler(bounds), SimulatedExecutor(bounds, lambda _: None))
    say(engine, request(1, range(40)))
    found = say(engine, *(request(number, range(number)) for number in range(13, 38, 8)))
    assert engine.finished[1] == "error"
    assert found == [0] * 4


@pytest.mark.parametrize("groups", [(KvGroup(64), KvGroup(8, 8)), (KvGroup(8, 8),)])
def test_with_a_window_the_blocks_that_are_still_seen_suffice(groups: tuple[KvGroup, ...]) -> None:
    """The window's own group has room for 32 tokens: of a text of 40 the front is gone, and not missed."""
    engine = windowed(*groups)
    say(engine, request(1, range(20), max_tokens=20))
    turn = [*range(20), *engine.texts[1], 30]
    assert say(engine, request(2, turn)) == [36]
    assert engine.texts[2] == expected(request(2, turn), 100, groups)[0]


def test_a_prefix_that_one_group_has_lost_counts_as_far_as_all_groups_have_it() -> None:
    engine = windowed(KvGroup(64), KvGroup(8, 8))
    say(engine, request(1, range(12), 1))
    say(
        engine, *(request(number, [number] * 20, 1) for number in (20, 21))
    )  # the window's blocks change hands
    assert say(engine, request(3, range(13))) == [0]
    assert engine.texts[3] == expected(request(3, range(13)), 100, (KvGroup(64), KvGroup(8, 8)))[0]


def test_a_preempted_sequence_goes_on_from_its_own_blocks() -> None:
    engine = driver(limits(num_blocks=9, block_size=4, num_slots=3, budget=32))
    texts = [request(number, [number] * 9, 12) for number in (1, 2, 3)]
    for generate in texts:
        engine.add(generate)
    engine.run()
    assert engine.scheduler.stats().num_preemptions
    assert max(starts(engine)) > 0
    assert [engine.texts[number] for number in (1, 2, 3)] == [expected(one, 36)[0] for one in texts]
    assert [begun.num_cached for begun in engine.scheduler.pop_begun()] == [0, 0, 0]


def test_nothing_is_found_after_all_was_forgotten() -> None:
    engine = driver(limits(block_size=4))
    say(engine, request(1, PROMPT))
    engine.scheduler.forget_prefixes()
    engine.scheduler.check_integrity()
    assert say(engine, request(2, PROMPT)) == [0]
    assert engine.scheduler.stats().num_prefix_queries == len(PROMPT)


def test_a_sleep_forgets_what_the_cache_held() -> None:
    """Who sends it empties the cache first: else the simulated executor sees a read of a lost token."""
    engine = driver(limits(block_size=4))
    assert say(engine, request(1, PROMPT), request(2, PROMPT)) == [0, 8]
    engine.step()  # it releases the last slot
    engine.scheduler.forget_prefixes()
    engine.executor.control(Sleep())
    engine.executor.control(Wake())
    assert say(engine, request(3, PROMPT), request(4, PROMPT)) == [0, 8]
    assert len({tuple(engine.texts[number]) for number in range(1, 5)}) == 1


def guess(tokens: list[int]) -> list[int]:
    """Guess the next two tokens of a group that sees all: the second one is wrong for every third text."""
    first = next_token([tokens, tokens[-12:]]) or 0
    second = next_token([[*tokens, first], [*tokens, first][-12:]]) or 0
    return [first, (second + (sum(tokens) % 3 == 0)) % VOCABULARY]


@pytest.mark.parametrize("num_requests", [400, pytest.param(100_000, marks=pytest.mark.long, id="long")])
def test_a_hundred_thousand_requests_with_shared_prefixes_leak_nothing(num_requests: int) -> None:
    """`Driver` checks the integrity after each step, and the simulated executor each token that is read.

    Every eleventh client leaves after a few steps.
    """
    bounds = msgspec.structs.replace(
        limits(block_size=4, num_slots=16, depth=2, budget=64),
        groups=(KvGroup(640), KvGroup(480, 12)),
        max_draft=2,
        max_draws=24,
    )
    engine = Driver(Scheduler(bounds), SimulatedExecutor(bounds, next_token, guess))
    for number in range(num_requests):
        engine.add(request(number, draw_prompt(number), 1 + number % 9, salt=b"%d" % (number % 3)))
        if number % 20 == 19:
            for _ in range(4):
                engine.step()
            for aborted in range(number - 19, number + 1):
                if aborted % 11 == 0:
                    engine.scheduler.abort(aborted)
            engine.run()
    stats = engine.scheduler.stats()
    assert stats.num_free_blocks == stats.num_blocks
    counts = Counts(
        num_steps=len(engine.plans),
        num_finished=len(engine.finished),
        num_accepted=stats.num_accepted,
        share_of_hits=round(stats.num_prefix_hits / stats.num_prefix_queries, 4),
    )
    assert counts == COUNTS[num_requests]


class Counts(NamedTuple):
    """What a run comes to, the same each time."""

    num_steps: int
    num_finished: int
    num_accepted: int
    share_of_hits: float


COUNTS = {400: Counts(234, 373, 612, 0.5212), 100_000: Counts(58_696, 93_309, 152_467, 0.5615)}


def draw_prompt(number: int) -> Iterable[int]:
    """One of a few beginnings, and an end of its own."""
    kind, length = number * 7919 % 13, 8 + number * 104_729 % 31
    return [*([kind] * length), *(number // base % VOCABULARY for base in (1, 50, 2500))]


def test_a_cache_of_another_format_has_other_keys() -> None:
    roots = {hash_root(salt, form) for salt in (b"", b"a") for form in ("Model", "Int8", "Fp8")}
    assert len(roots) == 6
    assert len({hash_prompt(root, pack_tokens(PROMPT), len(PROMPT))[0] for root in roots}) == 6
