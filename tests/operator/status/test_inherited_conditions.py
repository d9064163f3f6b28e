"""What stands in the way of a service is not forgotten by a failed read, nor by a change of the leader."""

from collections.abc import Awaitable, Callable

import pytest

from millrace_operator.kube.errors import TransientError
from millrace_operator.kube.kinds import SERVICE, Obj
from testing.world import KEY, World
from tests.operator.controller.test_ownership import make_foreign

Make = Callable[[], Awaitable[World]]
EXTERNAL = {"mode": "External"}


def read_truths(world: World) -> dict[str, tuple[str, str]]:
    conditions = {name: world.condition(name) for name in ("Ready", "Degraded", "UpToDate")}
    return {name: (one["status"], one["reason"]) for name, one in conditions.items()}


async def make_conflict() -> World:
    world = World(scaling=EXTERNAL, replicas=1)
    world.cluster.put(make_foreign(SERVICE, KEY.name))
    await world.settle()
    assert read_truths(world)["Ready"] == ("False", "Conflict")
    return world


def refuse_budget(obj: Obj) -> str | None:
    return "exceeded quota" if obj["kind"] == "PodDisruptionBudget" else None


async def make_refusal() -> World:
    world = World(scaling=EXTERNAL, replicas=1)
    world.cluster.refuse = refuse_budget
    for _ in range(8):
        await world.reconcile()
        world.run_controllers()
    assert read_truths(world)["UpToDate"] == ("False", "ChildRefused")
    return world


async def test_a_read_that_fails_forgets_no_conflict() -> None:
    world = await make_conflict()
    before, num_events = read_truths(world), len(world.cluster.events)
    world.cluster.read_faults.append(TransientError("503"))
    with pytest.raises(TransientError):
        await world.reconcile()
    for _ in range(3):
        await world.reconcile()
        assert read_truths(world) == before
    assert len(world.cluster.events) == num_events


@pytest.mark.parametrize("make", [make_conflict, make_refusal])
async def test_a_new_leader_tries_before_it_tells_that_a_trouble_is_over(make: Make) -> None:
    world = await make()
    before, num_events = read_truths(world), len(world.cluster.events)
    world.restart_operator()
    for _ in range(3):
        await world.reconcile()
        assert read_truths(world) == before
    assert len(world.cluster.events) == num_events


@pytest.mark.parametrize("make", [make_conflict, make_refusal])
async def test_a_first_look_that_fails_is_no_try(make: Make) -> None:
    world = await make()
    before = read_truths(world)
    world.restart_operator()
    world.edit(replicas=2)
    world.cluster.faults.extend([None, *[TransientError("away")] * 2])
    with pytest.raises(TransientError):
        await world.reconcile()
    await world.reconcile()
    assert read_truths(world) == before


async def test_a_new_leader_tells_soon_that_a_trouble_is_over() -> None:
    world = await make_conflict()
    world.restart_operator()
    world.cluster.remove(SERVICE, *KEY)
    outcome = await world.reconcile()
    assert outcome.retry is not None
    await world.settle()
    assert read_truths(world)["UpToDate"] == ("True", "Settled")


async def test_a_trouble_that_a_new_leader_need_not_try_again_is_over_at_its_second_look() -> None:
    """Somebody made what was refused, say: the first plan writes nothing."""
    world = await make_refusal()
    old = world.status
    world.cluster.refuse = lambda _: None
    await world.settle()
    world.cluster.put({**world.service, "status": old})
    world.restart_operator()
    assert (await world.reconcile()).retry is not None
    assert (await world.reconcile()).retry is None
    assert read_truths(world)["Degraded"] == ("False", "Healthy")
