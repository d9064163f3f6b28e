import pytest
from msgspec.structs import replace

from millrace_runtime.engine.errors import InvalidSequence, NeverFits
from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.engine.sequence import Age, Sequence, State
from millrace_runtime.engine.simulated_executor import SimulatedExecutor
from millrace_runtime.protocol.encoding import pack_tokens
from millrace_runtime.protocol.messages import Begun, NewSequence
from millrace_runtime.protocol.sampling import Sampling
from millrace_runtime.protocol.step import KvGroup, Row, RowResult, StepResult
from tests.runtime.engine.engine_driver import (
    Driver,
    driver,
    expected,
    expected_ranks,
    limits,
    next_token,
    request,
)


def test_nothing_to_do_is_no_plan() -> None:
    assert Scheduler(limits(budget=8)).schedule() is None
    assert not Scheduler(limits(budget=8)).has_work


def test_a_prompt_is_computed_in_chunks_and_only_the_last_draws() -> None:
    engine = driver(limits(budget=4))
    engine.add(request(1, range(10), max_tokens=2))
    engine.run()
    rows = [plan.rows for plan in engine.plans]
    assert rows == [[Row(0, 4, False)], [Row(0, 4, False)], [Row(0, 2, True)], [Row(0, 1, True)], []]
    assert engine.plans[-1].released == [0]
    assert engine.plans[0].starts[0].tokens == pack_tokens(range(10))
    assert [len(blocks) for blocks in engine.plans[0].starts[0].blocks] == [3]
    assert engine.plans[3].released == []


def test_without_tokens_the_prompt_is_computed_and_nothing_is_drawn() -> None:
    engine = driver(limits(budget=4, length=10))
    generates = [request(1, range(10), 0, num_prompt_logprobs=1), request(2, [7], 0), request(3, [8, 9], 2)]
    for generate in generates:
        engine.add(generate)
    engine.run()
    assert engine.finished == {1: "length", 2: "length", 3: "length"}
    assert [len(text) for text in engine.texts.values()] == [0, 0, 2]
    assert engine.ranks == {1: expected_ranks(generates[0]), 2: [], 3: []}
    rows = [plan.rows for plan in engine.plans]
    assert rows[2] == [Row(0, 2, False), Row(1, 1, False), Row(2, 1, False)]


def test_a_scored_prompt_shares_steps_with_decodes_and_delays_none() -> None:
    engine = driver(limits(budget=6))
    engine.add(request(1, [1], max_tokens=12))
    engine.step()
    engine.add(request(2, range(20), 0, num_prompt_logprobs=1))
    engine.add(request(3, [3], max_tokens=2))
    engine.run()
    rows = [plan.rows for plan in engine.plans if plan.rows]
    assert all(row[0] == Row(0, 1, True) for row in rows)
    assert rows[1:5] == [[Row(0, 1, True), Row(1, 5, False)] for _ in range(4)]
    assert rows[5] == [Row(0, 1, True), Row(1, 1, True)]
    assert list(engine.finished) == [2, 3, 1]


def test_a_preempted_prompt_is_scored_once() -> None:
    """The second sequence is preempted with half of its prompt scored, and a step of it in flight."""
    engine = driver(limits(num_blocks=10, block_size=4, num_slots=2, budget=2, depth=2))
    generates = [request(1, range(9), 20), request(2, range(5, 25), 2, num_prompt_logprobs=1)]
    for generate in generates:
        engine.add(generate)
    engine.run()
    assert engine.scheduler.stats().num_preemptions
    assert {0} < {start.num_scored for plan in engine.plans for start in plan.starts}
    assert engine.ranks[2] == expected_ranks(generates[1])


def test_decodes_go_first_and_prefill_takes_the_rest_of_the_budget() -> None:
    engine = driver(limits(budget=6))
    engine.add(request(1, range(5), max_tokens=10))
    engine.step()
    engine.add(request(2, range(20), max_tokens=2))
    engine.step()
    assert engine.plans[-1].rows == [Row(0, 1, True), Row(1, 5, False)]


def test_an_old_prefill_is_not_starved_by_decodes() -> None:
    engine = driver(limits(num_slots=3, budget=2))
    engine.add(request(1, range(20), max_tokens=1))
    engine.add(request(2, [1], max_tokens=30))
    engine.add(request(3, [2], max_tokens=30))
    for _ in range(25):
        engine.step()
    assert engine.finished == {1: "length"}


def test_first_come_first_served() -> None:
    engine = driver(limits(num_slots=1))
    for sequence_id in (5, 3, 4):
        engine.add(request(sequence_id, [1, 2], max_tokens=2))
    engine.run()
    assert list(engine.finished) == [5, 3, 4]


def test_the_more_urgent_are_served_first_and_of_these_who_came_first() -> None:
    engine = driver(limits(num_slots=1))
    for sequence_id, priority in enumerate((5, 0, -2, 0, -2)):
        engine.add(request(sequence_id, [1, 2], max_tokens=2, priority=priority))
    engine.run()
    assert list(engine.finished) == [2, 4, 1, 3, 0]


def test_an_urgent_newcomer_takes_the_place_of_the_least_urgent() -> None:
    engine = driver(limits(num_slots=2))
    for sequence_id, priority in enumerate((1, 5)):
        engine.add(request(sequence_id, [1, 2], max_tokens=8, priority=priority))
    engine.step()
    engine.add(request(2, [3], max_tokens=3, priority=0))
    engine.step()
    assert [sequence.new.sequence_id for sequence in engine.scheduler._planner.running] == [2, 0]
    engine.run()
    assert list(engine.finished) == [2, 0, 1]
    assert engine.texts[1] == expected(request(1, [1, 2], 8), 100)[0]


def test_the_rest_of_a_long_prompt_waits_for_more_urgent_ones() -> None:
    engine = driver(limits(budget=6))
    engine.add(request(0, range(20), priority=1))
    engine.step()
    for sequence_id, priority in enumerate((0, 0, 1), 1):
        engine.add(request(sequence_id, [sequence_id] * 2, priority=priority))
    engine.step()
    assert [(row.slot, row.num_tokens) for row in engine.plans[-1].rows] == [(1, 2), (2, 2), (0, 2)]


def test_a_stop_token_ends_the_sequence_and_is_its_last() -> None:
    free, _ = expected(request(1, [1, 2, 3], max_tokens=9), 100)
    stop = free[4]
    engine = driver()
    engine.add(request(1, [1, 2, 3], max_tokens=9, stop=[stop]))
    engine.run()
    assert engine.texts[1] == free[: free.index(stop) + 1]
    assert engine.finished[1] == "stop"


def test_the_models_length_ends_a_sequence() -> None:
    engine = driver(limits(length=8))
    engine.add(request(1, [1] * 5, max_tokens=50))
    engine.run()
    assert len(engine.texts[1]) == 3
    assert engine.finished[1] == "length"


def test_a_small_pool_bounds_the_length_too() -> None:
    engine = driver(limits(num_blocks=2, block_size=4, length=100))
    assert engine.scheduler.max_model_length == 8
    engine.add(request(1, [1] * 5, max_tokens=50))
    engine.run()
    assert len(engine.texts[1]) == 3


def test_what_never_fits_is_refused_and_says_how_long_it_may_be() -> None:
    scheduler = Scheduler(limits(num_blocks=2, block_size=4, budget=8))
    with pytest.raises(NeverFits, match="8 tokens and this model takes 8 with the output; shorten"):
        scheduler.add(request(1, [1] * 8))
    assert not scheduler.has_work
    scheduler.add(request(1, [1] * 7))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (request(1, []), "prompt is empty"),
        (request(1, [0], max_tokens=-1), "make it at least 0"),
        (request(1, [50]), "outside 0 … 49"),
        (request(1, [-1]), "outside 0 … 49"),
        (request(1, [0], bias={50: 1.0}), "biased or held back is outside 0 … 49"),
        (request(1, [0], held_back=(7, 2_000_000_000), min_tokens=1), "biased or held back"),
    ],
)
def test_senseless_sequences_are_refused(bad, message) -> None:  # noqa: ANN001
    with pytest.raises(InvalidSequence, match=message):
        Scheduler(limits(budget=8)).add(bad)


def test_an_id_in_use_is_refused_and_free_again_after_the_end() -> None:
    engine = driver()
    engine.add(request(1, [1]))
    with pytest.raises(InvalidSequence, match="id 1 is in use"):
        engine.scheduler.add(request(1, [2]))
    engine.run()
    engine.scheduler.add(request(1, [2]))


def test_preemption_takes_the_cheapest_never_the_oldest_and_loses_no_token() -> None:
    engine = driver(limits(num_blocks=8, block_size=4, num_slots=3, budget=32))
    requests = [request(1, [1] * 4, 20), request(2, [2] * 9, 12), request(3, [3] * 5, 12)]
    for generate in requests:
        engine.add(generate)
    while not engine.scheduler.stats().num_preemptions:
        engine.step()
    assert [s.new.sequence_id for s in engine.scheduler._planner.waiting] == [3]
    said = len(engine.texts[3])
    assert said > 0
    engine.run()
    restart = [
        start for plan in engine.plans for start in plan.starts if start.tokens[:20] == pack_tokens([3] * 5)
    ][-1]
    assert restart.tokens == pack_tokens([3] * 5 + engine.texts[3][:said])
    assert restart.num_prompt == 5
    for number, generate in enumerate(requests, 1):
        assert engine.texts[number] == expected(generate, 32)[0]


def test_a_sequence_begins_with_its_first_row_and_not_again_after_a_preemption() -> None:
    engine = driver(limits(num_blocks=8, block_size=4, num_slots=3, budget=32))
    for number, length in enumerate((4, 9, 5, 4), 1):
        engine.add(request(number, [number] * length, 12))
    engine.scheduler.abort(4)  # it never ran
    engine.plan_next()
    assert engine.scheduler.pop_begun() == [Begun(1, 0), Begun(2, 0), Begun(3, 0)]
    engine.run()
    assert engine.scheduler.stats().num_preemptions
    assert engine.scheduler.pop_begun() == []


def test_a_preempted_sequence_is_not_readmitted_to_be_preempted_again() -> None:
    engine = driver(limits(num_blocks=10, block_size=2, num_slots=4, budget=32))
    for sequence_id in range(4):
        engine.add(request(sequence_id, [sequence_id] * 4, max_tokens=12))
    engine.run()
    assert len(engine.finished) == 4
    assert engine.scheduler.stats().num_preemptions <= 4


def test_the_oldest_gets_its_place_back_at_the_cost_of_younger_ones() -> None:
    engine = driver(limits(num_blocks=6, block_size=2, num_slots=3, budget=32))
    engine.add(request(1, [1] * 4, max_tokens=2))
    engine.add(request(2, [2] * 2, max_tokens=10))
    engine.add(request(3, [3] * 3, max_tokens=9))
    for _ in range(60):
        engine.step()
        waiting, running = engine.scheduler._planner.waiting.oldest, engine.scheduler._planner.running.oldest
        if engine.plans and waiting and running and waiting.age < running.age:
            engine.step()
            assert engine.scheduler._planner.running.oldest is waiting
    assert engine.finished == {1: "length", 2: "length", 3: "length"}


def test_two_steps_in_flight_draw_the_same_text_and_a_late_result_is_dropped() -> None:
    generate = request(1, [1, 2, 3], max_tokens=9)
    text, _ = expected(generate, 100)
    stop = next(token for token in text if text.index(token) >= 2)
    engine = driver(limits(depth=2))
    engine.add(request(1, [1, 2, 3], max_tokens=9, stop=[stop]))
    engine.step()
    assert engine.scheduler.num_in_flight == 1
    assert [plan.rows[0].num_tokens for plan in engine.plans] == [3, 1]
    while 1 not in engine.finished:
        engine.step()
    assert engine.scheduler.num_in_flight == 1  # the row past the stop token is still in flight
    engine.add(request(2, [4, 5], max_tokens=3))
    engine.run()
    assert engine.texts[1] == text[: text.index(stop) + 1]
    assert engine.texts[2] == expected(request(2, [4, 5], max_tokens=3), 100)[0]


def test_no_more_steps_are_planned_than_the_executor_takes() -> None:
    scheduler = Scheduler(limits(depth=2, budget=4))
    scheduler.add(request(1, range(30)))
    assert scheduler.schedule() is not None
    assert scheduler.schedule() is not None
    assert scheduler.schedule() is None


def test_a_sequence_is_not_planned_beyond_its_last_token() -> None:
    engine = driver(limits(depth=3))
    engine.add(request(1, [1], max_tokens=2))
    engine.step()
    assert len(engine.plans) == 2


def test_a_fault_ends_one_sequence_and_spares_its_neighbours() -> None:
    bounds = limits()
    executor = SimulatedExecutor(
        bounds, lambda seen: None if seen[0][0] == 9 and len(seen[0]) > 4 else next_token(seen)
    )
    engine = Driver(Scheduler(bounds), executor)
    engine.add(request(1, [9, 1, 2], max_tokens=9))
    engine.add(request(2, [8, 1, 2], max_tokens=9))
    engine.run()
    assert engine.finished == {1: "error", 2: "length"}
    assert engine.errors[1] == "the logits are not finite"
    assert len(engine.texts[1]) == 2
    assert engine.texts[2] == expected(request(2, [8, 1, 2], max_tokens=9), 100)[0]


def test_abort_frees_at_once_whether_waiting_running_in_flight_or_unknown() -> None:
    engine = driver(limits(num_slots=1, depth=2))
    engine.add(request(1, range(4), max_tokens=40))
    engine.add(request(2, range(4), max_tokens=40))
    engine.step()
    for sequence_id in (1, 2, 77):
        engine.scheduler.abort(sequence_id)
    stats = engine.scheduler.stats()
    assert (stats.num_waiting, stats.num_running, stats.num_free_blocks) == (0, 0, 64)
    engine.run()
    assert engine.finished == {}


def test_timing_tells_what_the_step_read_and_computed() -> None:
    engine = driver(limits(budget=6))
    engine.add(request(1, range(6), max_tokens=5))
    engine.step()
    engine.add(request(2, range(3), max_tokens=5))
    engine.step()
    timing = engine.timings[-1]
    assert (timing.num_sequences, timing.num_tokens, timing.num_context_tokens) == (2, 4, 7 + 3)
    assert timing.seconds == 0.001
    assert not timing.is_decode_only


def test_a_model_of_windows_alone_reads_and_holds_what_they_see() -> None:
    bounds = replace(limits(budget=6), groups=(KvGroup(32, 8), KvGroup(16, 5)))
    assert (bounds.kv_tokens, bounds.longest_window) == (16 * 4, 8)
    assert replace(bounds, groups=(KvGroup(32), KvGroup(16, 5))).kv_tokens == 32 * 4
    engine = driver(bounds)
    engine.add(request(1, range(10), max_tokens=3))
    for _ in range(3):
        engine.step()
    # Six tokens; four, of which the last sees eight; one.
    assert [timing.num_context_tokens for timing in engine.timings] == [6, 10, 8]


def test_who_holds_all_that_it_can_need_keeps_nobody_waiting() -> None:
    """A pool of all sequences' blocks, and prompts that end in their last block: every slot runs."""
    engine = driver(limits(num_blocks=32 * 4, block_size=16, num_slots=32, length=64, budget=2048))
    for number in range(40):
        engine.add(request(number, [number] * 50, max_tokens=14))
    engine.step()
    stats = engine.scheduler.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_free_blocks) == (32, 8, 0)
    engine.run()
    assert engine.scheduler.stats().num_preemptions == 0


@pytest.mark.parametrize(("num_prompt", "is_admitted"), [(12, True), (13, False)])
def test_who_may_still_grow_keeps_a_block_from_newcomers(num_prompt: int, is_admitted: bool) -> None:  # noqa: FBT001
    engine = driver(limits(num_blocks=6, block_size=4, budget=64))
    engine.add(request(1, range(8), max_tokens=8))
    engine.add(request(2, [9] * num_prompt, max_tokens=1))
    engine.step()
    assert len(engine.plans[0].rows) == 1 + is_admitted


def test_results_in_another_order_are_our_bug() -> None:
    scheduler = Scheduler(limits(depth=2, budget=4))
    scheduler.add(request(1, range(30)))
    scheduler.schedule()
    with pytest.raises(AssertionError, match="step 0 awaited, not 1"):
        scheduler.commit(StepResult(1, [RowResult(0, 0, [], 4)], 0.1))


def test_a_state_changes_only_along_its_transitions() -> None:
    sequence = Sequence(request(1, [1]), NewSequence(1, Sampling()), age=Age(0, 0), max_length=5)
    sequence.move_to(State.ENDED)
    with pytest.raises(AssertionError, match="ENDED"):
        sequence.move_to(State.RUNNING)
