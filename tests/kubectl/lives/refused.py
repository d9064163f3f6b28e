"""Services with an object that the operator can't write or read."""

from testing.world import World
from tests.kubectl.lives.life import EXTERNAL, edit, life, serve
from tests.operator.rollout.test_versions import started

QUOTA = "exceeded quota: objects, requested: count/deployments.apps=1, used: 20, limited: 20"


@life
async def child_is_refused() -> World:
    world = World(scaling=EXTERNAL, replicas=1)
    world.cluster.refuse = lambda obj: QUOTA if obj["kind"] == "Deployment" else None
    for _ in range(3):
        await world.reconcile()
    return world


@life
async def version_is_unknown() -> World:
    world = await started(scaling=EXTERNAL, replicas=1)
    world.now += 3600
    world.edit(engine={"version": "0.3.0"})
    await world.settle()
    return world


@life
async def first_version_is_unknown() -> World:
    return await started(scaling=EXTERNAL, replicas=1, engine={"version": "0.3.0"})


@life
async def spec_is_unreadable() -> World:
    world = await serve(2)
    world.edit(rollout={"progressDeadline": "soon"})
    await world.settle()
    return world


@life
async def spec_is_unreadable_behind_a_canary() -> World:
    world = await edit(await serve(3, rollout={"canary": {"promotion": "Manual"}}))
    world.edit(scaling={"mode": "Scheduled"})
    await world.settle()
    return world


@life
async def childs_name_is_taken() -> World:
    world = World(scaling=EXTERNAL, replicas=1)
    metadata = {"namespace": "shop", "name": "chat-replica", "uid": "theirs"}
    world.cluster.put({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    await world.settle()
    return world
