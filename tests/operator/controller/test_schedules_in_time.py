"""The same schedules with the queue and a clock: whatever happens, nobody looks again and again at once."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings

from millrace_operator.controller.worker import Outcome, Worker
from millrace_operator.kube.kinds import ServiceKey
from testing.world import World
from tests.operator.controller.schedule import SCHEDULES, Schedule
from tests.operator.controller.test_schedules import STARTING
from tests.operator.watched import Watched

OF_THE_OPERATOR = frozenset({"plan", "controllers", "stale", "die", "rival", "wait"})
"""Steps that act for the queue and the controllers, or pass time. Here time passes instead."""
STEP_SECONDS = 5.0
MINUTE_SECONDS = 61.0
MOST_IN_A_MINUTE = 40
"""Looks. 7000 schedules came to 30 at most, without those of a drain. The queue alone lets 60 through."""
DRAIN_LOOKS = 60
"""In a minute. While a replica finishes its requests, plans ask for one a second."""
MOST_MINUTES = 15
"""Until one is calm. Requests are waited for in ten of them, and no timer of a service comes each minute."""


def find_busiest_minute(looks: list[float]) -> int:
    """Return the most looks that began within a minute."""
    return max((sum(first <= at < first + 60.0 for at in looks) for first in looks), default=0)


async def run_in_time(
    start: str, steps: list[tuple[str, Any]], make: Callable[[World], Watched] = Watched
) -> None:
    """Take the steps, then let time pass. Raises AssertionError where there is more to do again and again."""
    schedule = Schedule(start)
    world = schedule.world
    watched = make(world)
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
        await watched.run(MINUTE_SECONDS)
        check_pace(watched)
        assert await comes_to_rest(watched), "no minute is calm"
    check_pace(watched)


def check_pace(watched: Watched) -> None:
    assert find_busiest_minute(watched.looks) <= MOST_IN_A_MINUTE + DRAIN_LOOKS
    assert find_busiest_minute(watched.calm_looks) <= MOST_IN_A_MINUTE, "a hot loop"


async def comes_to_rest(watched: Watched) -> bool:
    """Let minutes pass until there is one without a write, and with a single look at most."""
    for _ in range(MOST_MINUTES):
        num_looks, num_writes = len(watched.looks), len(watched.world.cluster.writes)
        await watched.run(MINUTE_SECONDS)
        if len(watched.world.cluster.writes) == num_writes and len(watched.looks) <= num_looks + 1:
            return True
    return False


class Fought(Watched):
    """Somebody scales each Deployment to zero as soon as anything has happened."""

    def watch(self) -> None:
        for found in self.world.objects("Deployment"):
            if found["spec"]["replicas"]:
                self.world.cluster.put({**found, "spec": {**found["spec"], "replicas": 0}})
        super().watch()


class Restless(Watched):
    """An operator that does nothing, and has the same more to do after each look."""

    def __init__(self, outcome: Outcome, world: World) -> None:
        super().__init__(world)
        self.worker = Worker(Unmoved(outcome), world.cluster, world.cache, self.queue)


class Unmoved:
    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome

    async def reconcile(self, _key: ServiceKey) -> Outcome:
        return self._outcome


LOOPS: dict[str, tuple[Callable[[World], Watched], str]] = {
    "undone by somebody": (Fought, "a hot loop"),
    "always moved": (partial(Restless, Outcome(has_moved=True)), "a hot loop"),
    "looks all the time": (partial(Restless, Outcome(look_again=20.0)), "no minute is calm"),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_what_never_ends_is_seen(loop: str) -> None:
    make, words = LOOPS[loop]
    with pytest.raises(AssertionError, match=words):
        asyncio.run(run_in_time("External", [("controllers", 1)], make))


@given(STARTING, SCHEDULES)
def test_no_schedule_is_a_hot_loop(start: str, steps: list[tuple[str, Any]]) -> None:
    asyncio.run(run_in_time(start, steps))


@pytest.mark.slow
@pytest.mark.long
@settings.get_profile("long-slow")
@given(STARTING, SCHEDULES)
def test_none_of_many_schedules_is_a_hot_loop(start: str, steps: list[tuple[str, Any]]) -> None:
    asyncio.run(run_in_time(start, steps))
