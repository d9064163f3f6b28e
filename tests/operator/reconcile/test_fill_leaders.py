"""What a leader knows of a Job that fills a claim, and what it says before it does."""

import pytest

from millrace_operator.cluster.kinds import POD, Obj
from millrace_operator.course import STALL_SECONDS, Course
from millrace_operator.reconcile.snapshot import Fetched
from millrace_operator.resources.conditions import render_time
from testing.world import KEY, World
from tests.operator.reconcile.test_filling import GIB, get_pod, make_filling, told

HEALTHY = ("False", "Healthy")
LATE = ("True", "DeadlineExceeded")
DEADLINE_SECONDS = 1800.0
STEP_SECONDS = 30.0


class Filling:
    """A Job that fills a claim, and what its pod answers to the leader of the moment."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.began = world.now
        self.done = 0
        self._course: Course | None = None

    async def answer(self, more: int = 0) -> None:
        """Let the pod tell that it has so many bytes more."""
        self.done += more
        answer = Fetched(1600 * GIB, self.done, 100, self.world.now)
        course = self._course
        course = Course.begin(answer, self.began) if course is None else course.go_on(answer, self.began)
        self._course = course
        self.world.fetched = {get_pod(self.world)["metadata"]["name"]: course.told}
        await self.world.settle()

    async def get_on(self, seconds: float) -> None:
        """Let the pod tell in each step that it has more."""
        for _ in range(int(seconds / STEP_SECONDS)):
            await self.wait(STEP_SECONDS)
            await self.answer(GIB)

    async def stand_still(self, seconds: float) -> None:
        """Let the pod tell in each step that it has no more."""
        for _ in range(int(seconds / STEP_SECONDS)):
            await self.wait(STEP_SECONDS)
            await self.answer()

    async def wait(self, seconds: float) -> None:
        """Let time pass in which the pod tells nothing."""
        self.world.now += seconds
        await self.world.settle()

    async def hand_over(self) -> None:
        """Let another operator lead, who has not asked the pod yet."""
        self.world.restart_operator()
        self._course, self.world.fetched = None, {}
        await self.world.settle()

    async def replace_pod(self) -> None:
        """Evict the pod. The Job makes another one, which waits for its node."""
        pod: Obj = get_pod(self.world)
        self.world.cluster.remove(POD, KEY.namespace, pod["metadata"]["name"])
        made = {"name": "chat-newer", "uid": "newer", "creationTimestamp": render_time(self.world.now)}
        failed = {"name": "chat-evicted", "uid": "evicted"}
        for names, phase in ((made, "Pending"), (failed, "Failed")):
            metadata = {**pod["metadata"], **names}
            self.world.cluster.put({**pod, "metadata": metadata, "status": {"phase": phase}})
        self._course, self.world.fetched, self.began = None, {}, self.world.now
        await self.world.settle()


async def make() -> Filling:
    filling = Filling(await make_filling())
    await filling.answer()
    return filling


async def test_a_new_leader_does_not_call_a_job_late_before_it_knows_whether_that_gets_on() -> None:
    filling = await make()
    await filling.get_on(2 * DEADLINE_SECONDS)
    for outage in (0.0, 2 * DEADLINE_SECONDS):
        filling.world.now += outage
        num_events = len(filling.world.cluster.events)
        await filling.hand_over()
        assert told(filling.world, "Degraded") == HEALTHY, "no answer yet"
        await filling.answer()
        assert told(filling.world, "Degraded") == HEALTHY, "one answer"
        await filling.get_on(60)
        assert told(filling.world, "Degraded") == HEALTHY
        assert len(filling.world.cluster.events) == num_events


async def test_what_a_pod_has_brought_counts_until_its_successor_answers() -> None:
    filling = await make()
    await filling.get_on(2 * DEADLINE_SECONDS)
    await filling.wait(600)
    await filling.replace_pod()
    assert told(filling.world, "Degraded") == HEALTHY
    await filling.wait(600)
    await filling.answer()
    await filling.wait(599)
    assert told(filling.world, "Degraded") == HEALTHY
    await filling.wait(1)
    assert told(filling.world, "Degraded") == LATE, "a mere answer is no progress"
    await filling.answer(GIB)
    assert told(filling.world, "Degraded") == HEALTHY


@pytest.mark.parametrize("num_answers", [0, 1])
async def test_a_job_whose_pod_falls_silent_is_late_in_the_end(num_answers: int) -> None:
    filling = await make()
    await filling.get_on(600)
    filling.world.now += 3600
    await filling.hand_over()
    for _ in range(num_answers):
        await filling.wait(10)
        await filling.answer()
    await filling.wait(DEADLINE_SECONDS - 1)
    assert told(filling.world, "Degraded") == HEALTHY
    await filling.wait(1)
    assert told(filling.world, "Degraded") == LATE


async def test_a_job_that_stands_still_stays_late_whoever_leads() -> None:
    filling = await make()
    await filling.get_on(600)
    await filling.stand_still(DEADLINE_SECONDS)
    assert told(filling.world, "Degraded") == LATE
    num_events = len(filling.world.cluster.events)
    for _ in range(3):
        filling.began = filling.world.now  # its container begins anew, too
        await filling.hand_over()
        assert told(filling.world, "Degraded") == LATE, "no answer yet"
        await filling.wait(1)
        await filling.answer()
        assert told(filling.world, "Degraded") == LATE, "one answer"
        await filling.stand_still(STALL_SECONDS + STEP_SECONDS)
        assert told(filling.world, "Degraded") == LATE
    await filling.wait(STEP_SECONDS)
    await filling.answer(GIB)
    assert told(filling.world, "Degraded") == HEALTHY
    warnings = [one for one in filling.world.cluster.events[num_events:] if one["type"] == "Warning"]
    assert not warnings, "what is told already is no news"


async def test_the_leader_that_judges_looks_again_when_the_job_is_late() -> None:
    filling = await make()
    filling.world.now += DEADLINE_SECONDS + 3600 - 60
    await filling.hand_over()
    filling.world.now += DEADLINE_SECONDS - 60
    look = (await filling.world.reconcile()).look_again
    assert look is not None
    assert look <= 61
