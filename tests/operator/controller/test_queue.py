import asyncio
import random
from collections.abc import Iterator

import pytest

from millrace_operator.controller.queue import (
    BACKOFF_FIRST_SECONDS,
    BACKOFF_LAST_SECONDS,
    PAUSE_SECONDS,
    Cause,
    WorkQueue,
)
from millrace_operator.kube.kinds import ServiceKey

A, B = ServiceKey("ns", "a"), ServiceKey("ns", "b")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> Iterator[WorkQueue]:
    """A queue that never pauses."""
    queue = WorkQueue(clock, pause_seconds=0)
    with queue.opened():
        yield queue


async def test_many_adds_are_one_look(queue: WorkQueue) -> None:
    for _ in range(500):
        queue.add(A)
    assert await queue.get() == A
    assert len(queue) == 0


async def test_events_that_follow_one_another_are_worked_on_together(clock: Clock) -> None:
    queue = WorkQueue(clock)
    times = []
    with queue.opened():
        for _ in range(500):  # events in a second and a quarter, each with a look between, where there is one
            queue.add(A)
            if queue.seconds_to_next() == 0:
                queue.done(await queue.get())
                times.append(clock.now)
            clock.now += 0.0025
        clock.now += 10
        queue.done(await queue.get())
        assert queue.seconds_to_next() is None
    assert times == pytest.approx([0.0, PAUSE_SECONDS], abs=0.01)


async def test_an_event_after_a_rest_is_worked_on_at_once(clock: Clock) -> None:
    queue = WorkQueue(clock)
    with queue.opened():
        queue.add(A)
        queue.add(B)
        for _ in range(2):
            queue.done(await queue.get())
        clock.now = PAUSE_SECONDS
        queue.add(A)
        assert queue.seconds_to_next() == 0


async def test_who_asks_for_a_time_does_not_pause(clock: Clock) -> None:
    queue = WorkQueue(clock)
    with queue.opened():
        queue.add(A)
        key = await queue.get()
        queue.add(A)
        wait = queue.retry(key)
        queue.done(key)
        assert queue.seconds_to_next() == wait < PAUSE_SECONDS
        clock.now = wait
        queue.done(await queue.get())
        assert queue.seconds_to_next() is None


async def test_the_pauses_of_keys_that_are_gone_are_forgotten(clock: Clock) -> None:
    queue = WorkQueue(clock)
    with queue.opened():
        for number in range(1000):
            queue.add(ServiceKey("ns", str(number)))
            queue.done(await queue.get())
            clock.now += 0.1
        assert len(queue._rests_until) <= 11


async def test_what_is_added_during_work_is_looked_at_once_more(queue: WorkQueue) -> None:
    queue.add(A)
    key = await queue.get()
    for _ in range(10):
        queue.add(A)
    assert len(queue) == 0
    queue.done(key)
    assert len(queue) == 1


async def test_a_worker_that_fails_gives_its_key_back(queue: WorkQueue) -> None:
    queue.add(A)

    async def fail() -> None:
        async with queue.work() as key:
            queue.add(key)
            assert len(queue) == 0
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    assert await queue.get() == A


async def test_events_go_before_resyncs(queue: WorkQueue) -> None:
    queue.add(A, Cause.LISTING)
    queue.add(B)
    assert [await queue.get(), await queue.get()] == [B, A]


async def test_a_resync_becomes_urgent_with_an_event(queue: WorkQueue) -> None:
    queue.add(B, Cause.LISTING)
    queue.add(A, Cause.LISTING)
    queue.add(A)
    queue.add(A, Cause.LISTING)
    assert await queue.get() == A
    assert len(queue) == 1


async def test_a_delayed_key_waits_and_the_earliest_delay_counts(queue: WorkQueue, clock: Clock) -> None:
    for seconds in (30, 10, 20):
        queue.add_after(A, seconds)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.get(), 0.01)
    clock.now = 10
    assert await queue.get() == A
    queue.done(A)
    clock.now = 100
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.get(), 0.01)


async def test_a_waiting_worker_wakes_for_an_add(queue: WorkQueue) -> None:
    worker = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add(A)
    assert await worker == A


@pytest.mark.parametrize("num_turns", range(5))
@pytest.mark.parametrize("has_delayed", [True, False])
async def test_a_worker_that_is_cancelled_as_a_key_comes_ends_and_the_key_stays(
    queue: WorkQueue, num_turns: int, *, has_delayed: bool
) -> None:
    if has_delayed:
        queue.add_after(B, 60)
    worker = asyncio.create_task(queue.get())
    for _ in range(3):
        await asyncio.sleep(0)
    queue.add(A)
    for _ in range(num_turns):
        await asyncio.sleep(0)
    was_waiting = worker.cancel()
    await asyncio.wait([worker])
    assert worker.cancelled() is was_waiting
    assert len(queue) == was_waiting


async def test_failures_wait_longer_each_time_up_to_a_bound(queue: WorkQueue) -> None:
    waits = [queue.retry(A) for _ in range(20)]
    assert waits == sorted(waits)
    assert waits[-1] == BACKOFF_LAST_SECONDS
    queue.forget_failures(A)
    assert queue.retry(A) == waits[0]
    assert queue.retry(A, at_least_seconds=400) == 400


async def test_a_key_that_was_worked_on_before_its_next_try_is_due_then_all_the_same(clock: Clock) -> None:
    queue = WorkQueue(clock)
    with queue.opened():
        wait = queue.retry(A, at_least_seconds=10)
        queue.add_after(A, 4)
        clock.now = 4
        assert await queue.get() == A
        queue.resume(A)
        queue.done(A)
        assert queue.seconds_to_next() == wait - 4
        clock.now = wait + 1
        assert await queue.get() == A
        queue.resume(A)
        queue.done(A)
        assert queue.seconds_to_next() == 0, "it was not tried"
        queue.resume(B)
        queue.forget_failures(A)
        queue.resume(A)
        assert len(queue) == 1


async def test_keys_that_failed_together_come_back_within_a_fifth_of_the_wait(clock: Clock) -> None:
    queue = WorkQueue(clock, draw=random.Random(1).random)
    keys = [ServiceKey("a", str(number)) for number in range(100)]
    with queue.opened():
        for number in range(20):
            waits = [queue.retry(key) for key in keys]
            least = min(BACKOFF_LAST_SECONDS, BACKOFF_FIRST_SECONDS * 2.0**number)
            assert len(set(waits)) == len(keys)
            assert least <= min(waits) < 1.02 * least
            assert 1.18 * least < max(waits) <= 1.2 * least
        assert 400 <= queue.retry(keys[0], at_least_seconds=400) <= 480


async def test_keys_that_nobody_takes_are_a_stall(queue: WorkQueue, clock: Clock) -> None:
    clock.now = 100
    assert queue.stalled_seconds() == 0
    queue.add(A)
    clock.now = 105
    queue.add(B)
    assert queue.stalled_seconds() == 5


async def test_a_long_queue_that_is_worked_on_is_none(queue: WorkQueue, clock: Clock) -> None:
    for number in range(600):
        queue.add(ServiceKey("a", str(number)), Cause.LISTING)
    for _ in range(500):
        clock.now += 1
        queue.done(await queue.get())
        assert queue.stalled_seconds() == 0
    clock.now += 9
    assert queue.stalled_seconds() == 9


async def test_a_long_queue_leaves_the_loop_a_turn_before_each_key(queue: WorkQueue) -> None:
    """A reconcile of a settled service awaits nothing; the Lease's renewal and the watches need turns."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counter = asyncio.create_task(count())
    for number in range(50):
        queue.add(ServiceKey("a", str(number)), Cause.LISTING)
    for _ in range(50):
        async with queue.work():
            pass
    counter.cancel()
    assert turns >= 50


async def test_a_busy_cluster_comes_to_listed_keys_too(queue: WorkQueue) -> None:
    queue.add(A, Cause.LISTING)
    taken = []
    for _ in range(8):
        queue.add(B)
        queue.add(ServiceKey("a", "c"))
        taken.append(await queue.get())
        queue.done(taken[-1])
    assert A in taken


async def test_a_closed_queue_keeps_nothing(clock: Clock) -> None:
    queue = WorkQueue(clock, pause_seconds=0)
    queue.add(A)
    queue.add_after(B, 1)
    with queue.opened():
        assert len(queue) == 0
        first_wait = queue.retry(A)
        queue.add(A)
        queue.add(B, Cause.LISTING)
        queue.add_after(B, 1)
    clock.now = 5
    assert (len(queue), queue.stalled_seconds()) == (0, 0)
    with queue.opened():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.get(), 0.01)
        assert queue.retry(A) == first_wait


async def test_a_key_that_is_due_between_two_readings_of_the_clock_is_taken() -> None:
    readings = iter([0.0, 0.0, 0.999999999])
    queue = WorkQueue(lambda: next(readings, 1.0))
    with queue.opened():
        queue.add_after(A, 1.0)
        assert await asyncio.wait_for(queue.get(), 5) == A


async def test_what_was_due_later_leaves_no_trace(queue: WorkQueue, clock: Clock) -> None:
    """A service with a pin of 30 days, say, and an event each second."""
    for _ in range(600):
        queue.add_after(A, 30 * 86400 - clock.now)
        queue.add_after(A, 1.0)
        queue.add_after(B, 1e9 - clock.now)
        clock.now += 1.0
        queue.done(await queue.get())
    assert len(queue._waits._heap) < 50
    clock.now = 31.0 * 86400
    assert queue.seconds_to_next() == 1e9 - clock.now


async def test_many_edits_in_a_row_are_a_look_a_second(clock: Clock) -> None:
    queue, looks = WorkQueue(clock), 0
    with queue.opened():
        for _ in range(500):
            queue.add(A)
            if queue.seconds_to_next() == 0:
                queue.done(await queue.get())
                looks += 1
            clock.now += 0.01
        assert queue.seconds_to_next() is not None, "the last one is not forgotten"
    assert 5 <= looks <= 6
