"""Services whose count moves: at rest, woken, pinned, and with replicas that leave."""

from dataclasses import replace
from typing import Any

from millrace_operator.api.conditions import render_time
from millrace_operator.observed.snapshot import Advice
from testing.world import World
from tests.kubectl.lives.life import life, serve
from tests.operator.rollout.test_evacuation import BUSY, cordon, settled
from tests.operator.scaling.test_pin import pin, pin_for
from tests.operator.scaling.test_pin import started as automatic
from tests.operator.scaling.test_rest import ASKED, rest, started
from tests.operator.status.test_causes import LOADING

STEADY = Advice(3, "Steady", "9 req/s: 3 replicas carry that", "forecast", is_held=False, wanted=3)
OBJECTIVE = {"metric": "TimeToFirstToken", "percentile": 95, "target": "500ms"}
MISSED = {
    "metric": "TimeToFirstToken",
    "percentile": 95,
    "targetSeconds": "0.5",
    "measuredSeconds": "1.9",
    "state": "Missed",
    "samples": 2400,
}
LOADS: dict[str, Any] = {"phase": "Running", "containerStatuses": [LOADING]}


async def pass_time(world: World, seconds: float) -> World:
    world.now += seconds
    await world.settle()
    return world


@life
async def operator_is_gone() -> World:
    """For three days no operator has written the status."""
    world = await automatic()
    evidence = {"observedAt": render_time(world.now)}
    world.advice = replace(STEADY, desired=1, wanted=1, evidence=evidence)
    await world.settle()
    world.now += 3 * 86400
    return world


@life
async def rests() -> World:
    world = await started()
    await rest(world)
    return await pass_time(world, 3600)


async def wake(status: dict[str, Any] | None) -> World:
    """A service at rest that is asked, and whose first replica gets this far; None: no node has room."""
    world = await rests()
    world.demand = ASKED
    if status is None:
        world.capacity = 0
    else:
        world.broken[world.status["currentRevision"]] = status
    await world.settle()
    return await pass_time(world, 40)


@life
async def wakes() -> World:
    return await wake(LOADS)


@life
async def wakes_without_room() -> World:
    return await wake(None)


@life
async def replica_leaves() -> World:
    world = await serve(3)
    world.loads = {pod["metadata"]["uid"]: BUSY for pod in world.pods()}
    world.edit(replicas=2)
    await world.settle()
    return await pass_time(world, 120)


@life
async def node_is_emptied() -> World:
    world = await settled(2, "gpu-a", "gpu-b")
    world.broken[world.status["currentRevision"]] = LOADS
    await cordon(world, "gpu-a")
    await world.settle()
    return await pass_time(world, 60)


@life
async def node_is_emptied_and_no_other_has_room() -> World:
    world = await settled(2, "gpu-a")
    await cordon(world, "gpu-a")
    await world.settle()
    return await pass_time(world, 60)


@life
async def is_pinned() -> World:
    world = await automatic(STEADY)
    pin_for(world, 6, 3600)
    await world.settle()
    return await pass_time(world, 600)


@life
async def pin_is_invalid() -> World:
    world = await automatic(STEADY)
    pin(world, "6 for an hour")
    await world.settle()
    return await pass_time(world, 60)


@life
async def pin_has_lapsed() -> World:
    world = await automatic(STEADY)
    pin_for(world, 6, 600)
    await world.settle()
    return await pass_time(world, 660)


@life
async def pin_is_not_for_this_mode() -> World:
    world = await serve(2)
    pin_for(world, 6, 3600)
    await world.settle()
    return world


@life
async def only_shows_what_it_would_have() -> World:
    return await pass_time(await automatic(STEADY, mode="DryRun"), 60)


@life
async def misses_an_objective() -> World:
    """And one replica more would help, but finds no node."""
    world = World(
        scaling={"mode": "Automatic", "minReplicas": 1, "maxReplicas": 8, "objectives": [OBJECTIVE]}
    )
    world.advice = replace(STEADY, desired=2)
    world.capacity = 2
    await world.settle()
    await pass_time(world, 3600)
    words = "TimeToFirstToken P95 is 1.9s, target 500ms"
    fields = {
        "are_objectives_met": False,
        "objectives_message": words,
        "evidence": {"observedAt": "2026-01-01T01:00:00Z", "objectives": [MISSED]},
    }
    world.advice = replace(STEADY, reason="ScalingUp", message="40 req/s: 3 replicas carry that", **fields)
    await world.settle()
    return await pass_time(world, 60)
