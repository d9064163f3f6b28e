"""What the API server refuses, and what others take away, is tried again ever more slowly."""

import itertools
from typing import Any

import pytest

from millrace_operator.api.conditions import render_time
from millrace_operator.controller.queue import WorkQueue
from millrace_operator.kube.kinds import DEPLOYMENT, Obj, ServiceKey
from millrace_operator.observed.snapshot import Advice
from testing.world import World
from tests.operator.model.test_resolve import EXTERNAL
from tests.operator.watched import Watched

HOUR = 3600.0


async def count_tries(world: World, seconds: float = HOUR) -> int:
    """Return how often the service is planned for in this time, when nothing happens to it from outside."""
    watched = Watched(world)
    with watched.queue.opened():
        await watched.run(seconds)
    assert watched.looks
    return len(watched.looks)


async def test_two_refusals_at_once_are_tried_once_a_minute() -> None:
    world = World()
    world.cluster.refuse = lambda obj: "exceeded quota" if obj["kind"] == "Service" else None
    assert await count_tries(world) < 80
    assert "exceeded quota" in world.condition("Degraded")["message"]


async def test_a_refusal_longer_than_a_condition_is_tried_once_a_minute() -> None:
    world = World()
    world.cluster.refuse = lambda obj: "x" * 5000 if obj["kind"] == "Service" else None
    assert await count_tries(world) < 80


async def test_a_refusal_that_never_says_the_same_twice_is_tried_ever_more_slowly() -> None:
    world, numbers = World(), itertools.count()
    world.cluster.refuse = lambda obj: f"used {next(numbers)}" if obj["kind"] == "Service" else None
    assert await count_tries(world) < 30


async def test_a_refusal_that_ends_is_noticed_within_a_minute() -> None:
    world = World()
    world.cluster.refuse = lambda obj: "exceeded quota" if obj["kind"] == "Service" else None
    watched = Watched(world)
    with watched.queue.opened():
        await watched.run(600)
        world.cluster.refuse = lambda _: None
        await watched.run(60)
    assert len(world.objects("Service")) == 2
    assert world.condition("Degraded")["status"] == "False"


async def refuse_the_next_replica(world: World) -> set[float]:
    """Have all replicas ready that a new revision has asked for, and no more allowed.

    Return the times of tries, which grow.
    """
    await world.settle()
    world.edit(engine={"maxSequences": 4})
    await world.reconcile()
    world.run_controllers()
    tries: set[float] = set()

    def refuse(obj: Obj) -> str | None:
        if obj["kind"] == DEPLOYMENT.kind:
            tries.add(world.now)
            return "no more"
        return None

    world.cluster.refuse = refuse
    return tries


@pytest.mark.parametrize("deadline", ["4s", "1m", "30m"])
async def test_a_turn_that_is_written_down_hastens_no_try_of_what_is_refused(deadline: str) -> None:
    world = World(scaling=EXTERNAL, replicas=2, rollout={"progressDeadline": deadline})
    tries = await refuse_the_next_replica(world)
    watched = Watched(world)
    with watched.queue.opened():
        await watched.run(1800)
        assert "rejectedRevision" not in world.status
        assert world.status["rollout"]["progressedAt"] >= render_time(world.now - 62)
        looks = sorted(tries)
        waits = [after - before for before, after in itertools.pairwise(looks) if before > looks[0] + 60]
        assert len(looks) < 50
        assert 9 < min(waits) <= max(waits) < 65
        world.cluster.refuse = lambda _: None
        await watched.run(600)
    assert world.status["currentRevision"] == world.status["updateRevision"]


async def test_figures_that_move_along_with_a_turn_hasten_no_try_of_what_is_refused_either() -> None:
    scaling = {"mode": "Automatic", "minReplicas": 2, "maxReplicas": 4}
    world = World(scaling=scaling, rollout={"progressDeadline": "4s"})

    def advise() -> Advice:
        load = 3 + world.now % 7 / 10
        figures = {"observedAt": render_time(world.now), "generatedTokensPerSecond": f"{100 * load:.0f}"}
        made_from = world.status.get("scaling", {}).get("desiredReplicas")
        words = f"{load:.1f} requests/s need 2 replicas"
        return Advice(2, "Load", words, "throughput", False, made_from=made_from, evidence=figures)

    world._advise = advise  # type: ignore[method-assign]
    tries = await refuse_the_next_replica(world)
    watched = Watched(world)
    with watched.queue.opened():
        await watched.run(900)
    assert len(tries) < 30


async def test_marks_that_somebody_removes_again_are_no_hot_loop() -> None:
    world = World(scaling={"mode": "External"}, replicas=2)
    await world.settle()
    world.edit(replicas=1)
    put = world.cluster.put

    def strip(obj: Obj) -> Obj:
        if obj["kind"] == "Pod":
            obj = {**obj, "metadata": {**obj["metadata"], "annotations": {}}}
        return put(obj)

    world.cluster.put = strip  # type: ignore[method-assign]
    assert await count_tries(world) < 30


async def test_what_a_webhook_undoes_each_time_is_no_hot_loop() -> None:
    world = World()
    await world.settle()
    (budget,) = world.objects("PodDisruptionBudget")
    undone = world.cluster.put({**budget, "spec": {**budget["spec"], "minAvailable": 5}})
    tries = 0

    async def undo(*_: Any) -> Obj:
        nonlocal tries
        tries += 1
        return undone

    world.cluster.apply_owned = undo  # type: ignore[method-assign]
    assert await count_tries(world) < 80
    assert tries > 0


async def test_what_an_older_crd_drops_of_a_status_is_no_hot_loop() -> None:
    world = World()
    await world.settle()
    apply_status, tries = world.cluster.apply_status, 0

    async def drop(_: Obj) -> Obj:
        nonlocal tries
        tries += 1
        return world.service

    world.cluster.put({**world.service, "status": {**world.status, "selector": "dropped"}})
    world.cluster.apply_status = drop  # type: ignore[method-assign]
    assert await count_tries(world) < 80
    assert tries > 0
    world.cluster.apply_status = apply_status  # type: ignore[method-assign]
    await world.settle()


def test_a_wait_has_its_own_upper_bound() -> None:
    queue, key = WorkQueue(clock=lambda: 0.0), ServiceKey("a", "b")
    waits = [queue.retry(key, 10.0, 60.0) for _ in range(20)]
    assert (min(waits), max(waits), waits == sorted(waits)) == (10.0, 60.0, True)
