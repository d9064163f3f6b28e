"""A long prompt beside decodes: the scheduler's whole runs, where a step's time follows from its work."""

from collections.abc import Iterable

from msgspec.structs import replace

from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.engine.step_time import StepWork
from millrace_runtime.protocol.step import Row, RowResult, StepResult
from tests.runtime.engine.engine_driver import Driver, SimulatedExecutor, limits, next_token, request

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
