"""Services whose spec was edited: a new revision on its way, as a canary, and given up."""

from millrace_operator.api.annotations import ROLLOUT_ANNOTATION
from testing.world import World, crash_status
from tests.kubectl.lives.life import EDIT, edit, life, serve, wait


@life
async def rolls_out() -> World:
    return await edit(await serve(), wait(running={}))


@life
async def new_revision_crashes() -> World:
    return await edit(await serve(), crash_status("no kernel image is available", code=1))


@life
async def rolled_back() -> World:
    world = await edit(await serve(), crash_status("no kernel image is available", code=1))
    world.now += 1900
    await world.settle()
    return world


@life
async def rolled_back_again() -> World:
    """It was promoted in between, and failed as before."""
    world = await rolled_back()
    world = await order(world, f"promote {world.status['updateRevision']} at 2026-01-01T01:35:00Z")
    world.now += 1900
    await world.settle()
    return world


@life
async def comes_back_after_an_abort() -> World:
    """A revision was aborted, and the spec went away from it; now it asks for it again."""
    world = await edit(await serve(rollout={"canary": {"promotion": "Manual"}}))
    world = await order(world, f"abort {world.status['updateRevision']} at 2026-01-01T01:02:00Z")
    world.edit(engine={})
    await world.settle()
    world.now += 3600
    return await edit(world)


@life
async def never_rolled_back() -> World:
    world = await edit(await serve(rollout={"rollback": "Never"}), wait(running={}))
    world.now += 1900
    await world.settle()
    return world


@life
async def new_revision_finds_no_room() -> World:
    world = await serve(1)
    world.capacity = 1
    world.edit(**EDIT)
    await world.settle()
    world.now += 700
    await world.settle()
    return world


@life
async def old_replicas_make_room() -> World:
    world = await serve(3, rollout={"strategy": "Replace"})
    world.capacity = 3
    return await edit(world, wait(running={}))


@life
async def canary_serves() -> World:
    return await edit(await serve(rollout={"canary": {}}))


@life
async def canary_waits_for_promotion() -> World:
    return await edit(await serve(rollout={"canary": {"promotion": "Manual"}}))


@life
async def canary_loads() -> World:
    return await edit(await serve(rollout={"canary": {"promotion": "Manual"}}), wait(running={}))


@life
async def canary_was_promoted() -> World:
    """And the replicas that it gets now load still."""
    world = await edit(await serve(rollout={"canary": {"promotion": "Manual"}}))
    revision = world.status["updateRevision"]
    world.broken[revision] = wait(running={})
    return await order(world, f"promote {revision}")


@life
async def canary_failed() -> World:
    world = await edit(await serve(rollout={"canary": {}}))
    for pod in world.pods(world.status["updateRevision"]):
        world.cluster.put({**pod, "status": crash_status("CUDA error: an illegal memory access", code=134)})
    await world.settle()
    return world


@life
async def aborted() -> World:
    world = await edit(await serve(rollout={"canary": {"promotion": "Manual"}}))
    return await order(world, f"abort {world.status['updateRevision']}")


@life
async def order_is_unreadable() -> World:
    return await order(await edit(await serve(rollout={"canary": {"promotion": "Manual"}})), "go on")


async def order(world: World, text: str) -> World:
    metadata = {**world.service["metadata"], "annotations": {ROLLOUT_ANNOTATION: text}}
    world.cluster.put({**world.service, "metadata": metadata})
    await world.settle()
    return world
