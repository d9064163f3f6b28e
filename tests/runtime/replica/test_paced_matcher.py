"""A mask that takes long holds up its own sequence, and no other one."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import Self

import pytest

from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.engine.simulated_executor import SimulatedExecutor
from millrace_runtime.protocol.sampling import count_mask_bytes
from millrace_runtime.protocol.step import KvGroup, Limits
from millrace_runtime.replica.paced_matcher import SLOW_MASKS, SLOW_SECONDS, PacedMatcher
from testing.polling import wait_until
from tests.runtime.engine.engine_driver import (
    VOCABULARY,
    Driver,
    SetMatcher,
    driver,
    expected,
    limits,
    next_token,
    request,
)


class SlowMatcher(SetMatcher):
    """Each mask takes so many seconds of a clock, which copies share, once its gate is open."""

    def __init__(self, seconds: float) -> None:
        super().__init__([], lambda _: set(range(VOCABULARY)))
        self.seconds, self.seconds_of_masks = seconds, [0.0]
        self.gate = threading.Event()
        self.gate.set()

    def fill(self, mask: memoryview) -> None:
        self.gate.wait(10)
        self.seconds_of_masks.append(self.seconds)
        super().fill(mask)

    def copy(self) -> Self:
        ahead = copy(self)
        ahead.tokens = [*self.tokens]
        return ahead

    @property
    def now(self) -> float:
        return sum(self.seconds_of_masks)


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as thread:
        yield thread


def pace(slow: SlowMatcher, thread: ThreadPoolExecutor) -> PacedMatcher:
    return PacedMatcher(slow, thread, lambda: None, lambda: slow.now)


def run_steps(driver: Driver, count: int) -> None:
    for _ in range(count):
        driver.step()


@pytest.mark.parametrize("depth", [1, 2])
def test_a_slow_mask_delays_no_other_sequence(thread: ThreadPoolExecutor, depth: int) -> None:
    slow = SlowMatcher(2 * SLOW_SECONDS)
    served = driver(limits(depth=depth))
    served.add(request(1, [1], max_tokens=6, grammar="slow"), [pace(slow, thread)])
    served.add(request(2, [2], max_tokens=9))
    slow.gate.set()
    run_steps(served, 2)  # which show that its masks are slow
    slow.gate.clear()
    run_steps(served, 9)
    assert served.finished == {2: "length"}
    assert len(served.texts[1]) < 6
    slow.gate.set()
    wait_until("the slow one ends", lambda: served.step() or served.finished.get(1) == "length")
    alone = driver()
    alone.add(request(1, [1], max_tokens=6))
    alone.run()
    assert served.texts[1] == alone.texts[1]


def test_a_matcher_is_slow_until_some_masks_were_fast(thread: ThreadPoolExecutor) -> None:
    slow = SlowMatcher(2 * SLOW_SECONDS)
    paced, mask = pace(slow, thread), memoryview(bytearray(8))
    paced.consume(1)
    assert not paced.is_busy
    paced.fill(mask)
    assert paced.is_slow
    slow.seconds = 0
    for number in range(SLOW_MASKS):
        assert paced.is_slow
        paced.consume(number)
        paced.prepare()
        wait_until("the mask is made", lambda: not paced.is_busy)
        paced.fill(mask)
    assert not paced.is_slow
    assert slow.tokens == [1, *range(SLOW_MASKS)]


@pytest.mark.parametrize(
    ("share", "num_tokens", "num_masks"), [(0.1, 5, 5), (0.45, 3, 3), (0.9, 2, 2), (1.1, 1, None)]
)
def test_masks_behind_guesses_take_no_longer_than_a_slow_one(
    thread: ThreadPoolExecutor, share: float, num_tokens: int, num_masks: int | None
) -> None:
    """Each takes a share of a slow one's time, and four right guesses are offered after each draw."""
    text = [1, *expected(request(1, [1], max_tokens=31), 100)[0]]
    bounds = Limits((KvGroup(64),), 4, 4, 1, 100, VOCABULARY, 16, max_draft=4, max_draws=16)
    executor = SimulatedExecutor(bounds, next_token, lambda tokens: text[len(tokens) :][:4])
    served, slow = Driver(Scheduler(bounds), executor), SlowMatcher(share * SLOW_SECONDS)
    served.add(request(1, [1], max_tokens=31, grammar="a"), [pace(slow, thread)])
    served.step()
    num_before = len(slow.seconds_of_masks)
    wait_until("a step has run", lambda: served.step() or len(served.texts[1]) > 1)
    assert len(served.texts[1]) == 1 + num_tokens
    assert num_masks in {None, len(slow.seconds_of_masks) - num_before}  # None: a thread makes them
    wait_until("it ends", lambda: served.step() or served.finished)
    assert served.texts[1] == text[1:]
    assert (served.scheduler.stats().num_drafted > 0) == (num_masks is not None)


def test_no_mask_is_made_before_a_rows_last_token(thread: ThreadPoolExecutor) -> None:
    """The mask behind the guess was slow, so a thread makes the next one: of both tokens, and once."""
    slow = SlowMatcher(0)
    paced, masks = pace(slow, thread), [memoryview(bytearray(count_mask_bytes(VOCABULARY))) for _ in range(2)]
    paced.fill(masks[0])
    slow.seconds = 2 * SLOW_SECONDS
    paced.look_ahead([1], masks)
    slow.gate.clear()
    for token in (1, 2):
        paced.consume(token)
        assert not paced.is_busy
    paced.prepare()
    assert paced.is_busy
    slow.gate.set()
    wait_until("the mask is made", lambda: not paced.is_busy)
    assert slow.tokens == [1, 2]
    assert slow.seconds_of_masks == [0.0, 0, *[2 * SLOW_SECONDS] * 2]


def test_guesses_of_many_rows_take_little_longer_than_those_of_one(thread: ThreadPoolExecutor) -> None:
    """A mask takes a tenth of a slow one's time. Eight rows have four guesses each, all right."""
    text = [1, *expected(request(1, [1], max_tokens=31), 100)[0]]
    bounds = Limits((KvGroup(64),), 8, 8, 1, 100, VOCABULARY, 40, max_draft=4, max_draws=40)
    executor = SimulatedExecutor(bounds, next_token, lambda tokens: text[len(tokens) :][:4])
    served, slow = Driver(Scheduler(bounds), executor), SlowMatcher(0.1 * SLOW_SECONDS)
    for number in range(1, 9):
        served.add(request(number, [1], max_tokens=31, grammar="a"), [pace(slow.copy(), thread)])
    longest = 0.0
    while len(served.finished) < 8:
        before = slow.now
        served.step()
        longest = max(longest, slow.now - before)
    assert 8 * 0.1 * SLOW_SECONDS < longest < 2.0 * SLOW_SECONDS


def test_no_thread_makes_masks_of_an_optimistic_grammar(thread: ThreadPoolExecutor) -> None:
    slow = SlowMatcher(2 * SLOW_SECONDS)
    paced = PacedMatcher(slow, thread, lambda: None, lambda: slow.now, is_optimistic=True)
    paced.fill(memoryview(bytearray(8)))
    slow.gate.clear()
    paced.consume(1)
    paced.prepare()
    assert paced.accepts(2)
    assert not paced.is_slow
    assert not paced.is_busy
