"""A long prompt beside decodes: the scheduler's whole runs, where a step's time follows from its work."""

import itertools
import random
import statistics
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.engine.token_budget import StepTime, StepWork, count_pairs
from millrace_runtime.protocol.step import Row, RowResult, StepResult
from tests.runtime.engine.engine_driver import Driver, SimulatedExecutor, limits, next_token, request

COUNTS = st.integers(0, 5000)
WORKS = st.builds(StepWork, COUNTS, COUNTS, COUNTS, COUNTS)
SECONDS = st.floats(1e-5, 100)


def true_seconds(work: StepWork) -> float:
    """A small model on two cores."""
    return sum(a * b for a, b in zip(work.features, (4e-4, 8e-8, 0.02, 3e-4, 2e-7), strict=True))


def list_decodes(num: int) -> Iterator[StepWork]:
    rng = random.Random(1)
    for _ in range(num):
        num_rows = rng.randint(1, 8)
        yield StepWork(num_rows, num_rows * rng.randint(100, 4000))


def list_mixed(num: int) -> Iterator[StepWork]:
    rng = random.Random(2)
    for work in list_decodes(num):
        size, before = rng.randint(16, 300), rng.randint(0, 6000)
        yield StepWork(work.num_decoded, work.num_decode_reads, size, count_pairs(size, before))


def learn(works: Iterator[StepWork], seed: int = 3, noise: float = 0.05) -> StepTime:
    rng, model = random.Random(seed), StepTime()
    for work in works:
        model.observe(work, true_seconds(work) * rng.uniform(1 - noise, 1 + noise))
    return model


def assert_knows(model: StepTime, works: Iterator[StepWork], error: float) -> None:
    for work in works:
        assert model.predict(work) == pytest.approx(true_seconds(work), rel=error)


def test_pairs_are_those_of_attention() -> None:
    pairs = [(token, seen) for token in range(5, 9) for seen in range(token + 1)]
    assert count_pairs(4, 5) == len(pairs)
    work = StepWork()
    work.add_chunk(4, 9)
    assert work == StepWork(0, 0, 4, len(pairs))


def test_it_learns_the_time_of_decodes_and_chunks() -> None:
    model = learn(itertools.chain(list_mixed(300), list_decodes(20)))
    assert_knows(model, list_mixed(50), 0.1)
    assert_knows(model, list_decodes(50), 0.1)
    assert model.spread < 0.1


def test_times_that_vary_are_predicted_at_their_mean() -> None:
    """The least of them are a third of the largest."""
    model = learn(list_mixed(400), noise=0.5)
    ratios = [model.predict(work) / true_seconds(work) for work in list_mixed(100)]
    assert statistics.fmean(ratios) == pytest.approx(1.0, abs=0.1)


def test_an_hour_of_decodes_leaves_what_it_knows_of_chunks() -> None:
    model = learn(itertools.chain(list_mixed(200), [StepWork(4, 4000)] * 50_000))
    assert_knows(model, iter([StepWork(4, 4000, size, count_pairs(size, 1000)) for size in (32, 256)]), 0.15)


@pytest.mark.parametrize("at", [0, 150, 199])
def test_a_compilation_of_seconds_changes_little(at: int) -> None:
    model = learn(list_mixed(at))
    model.observe(StepWork(8, 8000, 64, count_pairs(64, 500)), 7.0)
    for work in list_mixed(200 - at):
        model.observe(work, true_seconds(work))
    assert_knows(model, list_mixed(20), 0.15)


@pytest.mark.parametrize("factor", [0.1, 0.5, 3.0])
def test_it_follows_a_machine_that_becomes_faster_or_slower(factor: float) -> None:
    model = learn(list_mixed(200))
    for work in list_mixed(250):
        model.observe(work, true_seconds(work) * factor)
    works = list(list_mixed(20))
    assert [model.predict(work) for work in works] == pytest.approx(
        [true_seconds(work) * factor for work in works], rel=0.1
    )


def test_a_chunk_is_the_largest_that_takes_the_seconds() -> None:
    model, decodes = learn(list_mixed(300), noise=0.0), StepWork(8, 8000)
    for seconds, before in itertools.product((0.01, 0.05, 0.2), (0, 1000, 7000)):
        size = model.fit_chunk(seconds, before)
        for more, is_within in ((0, True), (1, False)):
            work = StepWork(8, 8000, size + more, count_pairs(size + more, before))
            assert (model.predict(work) - model.predict(decodes) <= seconds) is is_within


def test_a_chunk_grows_step_by_step_where_none_was_tried() -> None:
    model = StepTime()
    assert model.fit_chunk(1.0, 0) == 0
    model.observe(StepWork(1, 10, 16, count_pairs(16, 0)), 0.02)
    assert model.fit_chunk(1e9, 0) == 32


@given(st.lists(st.tuples(WORKS, SECONDS), max_size=60), WORKS, SECONDS)
def test_whatever_it_sees_more_work_never_takes_less_time(
    seen: list[tuple[StepWork, float]], work: StepWork, seconds: float
) -> None:
    model = StepTime()
    for observed, took in seen:
        model.observe(observed, took)
    assert min(model._fit.coefficients) >= 0
    assert 0 <= model.predict(work) < float("inf")
    assert model.fit_chunk(seconds, 100) <= model.fit_chunk(2 * seconds, 100)
    assert model.fit_chunk(seconds, 200) <= model.fit_chunk(seconds, 100)


LENGTH = 1000
"""Tokens of the long prompt: seven times as costly in their attention as those of a real one of 7000."""


def two_cores(work: StepWork) -> float:
    """About the seconds of a model with 135 million parameters."""
    factors = (1.5e-3, 5.6e-6, 0.02, 8e-4, 2e-7)
    return sum(factor * feature for factor, feature in zip(factors, work.features, strict=True))


def start(target: float | None, *ends: int) -> Driver:
    """Run sequences until all of them decode, each up to so many tokens."""
    bounds = limits(num_blocks=1000, block_size=16, num_slots=16, length=2000, budget=512)
    executor = SimulatedExecutor(bounds, lambda seen: next_token([seen[0][-9:]]))
    engine = Driver(Scheduler(bounds, target), executor, seconds=two_cores)
    for number, max_tokens in enumerate(ends):
        engine.add(request(number, [number] * 32, max_tokens))
    while ends and (not engine.works or engine.works[-1].num_chunked):
        engine.step()
    return engine


def prefill(engine: Driver) -> list[StepWork]:
    """Return the steps that compute a long prompt."""
    engine.add(request(99, (n % 50 for n in range(LENGTH)), max_tokens=1))
    first = len(engine.works)
    while 99 not in engine.finished:
        engine.step()
    return engine.works[first:]


def chunks(works: Iterable[StepWork]) -> list[int]:
    return [work.num_chunked for work in works]


EIGHT = [1900] * 8
ALONE = sum(map(two_cores, prefill(start(None))))
DECODE = two_cores(StepWork(8, 8 * 50))


def test_without_a_target_a_step_is_as_large_as_it_may_be() -> None:
    assert chunks(prefill(start(None, *EIGHT))) == [504, 496]


def test_without_a_decode_the_target_limits_nothing() -> None:
    assert chunks(prefill(start(0.03))) == [512, 488]


def test_twice_the_time_of_a_decode_keeps_both_latencies() -> None:
    works = prefill(start(2 * DECODE, *EIGHT))
    assert max(map(two_cores, works)) <= 2.05 * DECODE
    assert sum(map(two_cores, works)) <= 2.5 * ALONE
    sizes = chunks(works)
    assert sizes[:10] == [13, 13, 13, 13, 12, 11, 11, 10, 10, 10]
    assert sizes[::20] == [13, 8, 6, 5, 5, 4, 4, 4, 3, 3, 2]  # what a token costs grows with those before it


def test_a_target_that_no_decode_meets_leaves_a_quarter_to_the_prompt() -> None:
    works = prefill(start(DECODE / 2, *EIGHT))
    assert chunks(works)[::100] == [4, 2, 1, 1, 1, 1, 1, 1, 1]
    assert max(map(two_cores, works)) <= 1.35 * DECODE
    assert sum(map(two_cores, works)) <= 6.1 * ALONE


def test_the_prompt_gets_whole_steps_once_the_last_decode_has_ended() -> None:
    sizes = chunks(prefill(start(2 * DECODE, 30, 40)))
    assert sizes[-20:-2] == [9] * 4 + [8] * 12 + [7] * 2
    assert sizes[-2:] == [512, 103]


def test_drafts_without_a_prompt_beside_them_are_not_shortened() -> None:
    scheduler = Scheduler(replace(limits(), max_draft=4, max_draws=8), 1e-6)
    scheduler.add(request(1, [1], max_tokens=9))
    scheduler.schedule()
    scheduler.commit(StepResult(0, [RowResult(0, 0, [3], 1, next_draft=(4, 5, 6, 7))], 0.1))
    plan = scheduler.schedule()
    assert plan is not None
    assert plan.rows == [Row(0, 1, True, (4, 5, 6, 7))]


def test_steps_that_only_release_slots_teach_nothing() -> None:
    """Each lone request ends with one, as quick as it is empty."""
    engine = start(2 * DECODE)
    engine.seconds = lambda work: two_cores(work) if work.num_decoded or work.num_chunked else 3e-4
    for number in range(30):
        engine.add(request(number, [number] * 32, 5))
        engine.run()
    together = StepWork(32, 32 * 50)
    assert len(engine.plans) > len(engine.works)
    assert engine.scheduler._budget is not None
    assert engine.scheduler._budget._step_time.predict(together) < 2 * two_cores(together)
