"""The same schedules with the queue and a clock: whatever happens, nobody looks again and again at once."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings

from tests.operator.reconcile.schedule import SCHEDULES, Schedule
from tests.operator.reconcile.test_schedules import STARTING, UNHURRIED
from tests.operator.watched import Watched

FEW, MANY = 40, 500
OF_THE_OPERATOR = frozenset({"plan", "controllers", "stale", "die", "rival", "wait"})
"""Steps that act for the queue and the controllers, or pass time. Here time passes instead."""
STEP_SECONDS = 5.0
MINUTE_SECONDS = 61.0
MOST_IN_A_MINUTE = 120
"""Looks. A drain asks for one a second, and events may bring one more. 500 schedules came to 34 at most."""


def find_busiest_minute(looks: list[float]) -> int:
    """Return the most looks that began within a minute."""
    return max((sum(first <= at < first + 60.0 for at in looks) for first in looks), default=0)


async def run_in_time(start: str, steps: list[tuple[str, Any]]) -> None:
    schedule = Schedule(start)
    world = schedule.world
    watched = Watched(world)
    with watched.queue.opened():
        await watched.run(MINUTE_SECONDS)
        for name, value in steps:
            if name == "wait":
                world.now += value
            if name in OF_THE_OPERATOR:
                await watched.run(MINUTE_SECONDS)
            else:
                await schedule.take((name, value))
                await watched.run(STEP_SECONDS)
        await watched.run(2 * MINUTE_SECONDS)
    assert find_busiest_minute(watched.looks) <= MOST_IN_A_MINUTE


@settings(max_examples=FEW, deadline=None, derandomize=True, suppress_health_check=UNHURRIED)
@given(STARTING, SCHEDULES)
def test_no_schedule_is_a_hot_loop(start: str, steps: list[tuple[str, Any]]) -> None:
    asyncio.run(run_in_time(start, steps))


@pytest.mark.slow
@pytest.mark.long
@settings(max_examples=MANY, deadline=None, suppress_health_check=UNHURRIED)
@given(STARTING, SCHEDULES)
def test_none_of_many_schedules_is_a_hot_loop(start: str, steps: list[tuple[str, Any]]) -> None:
    asyncio.run(run_in_time(start, steps))
