"""Services that follow a branch."""

from testing.world import World
from tests.kubectl.lives.life import life
from tests.operator.reconcile.test_following import give_up, make_followed, refuse_ask


@life
async def follows() -> World:
    world = await make_followed()
    world.now += 600
    return world


@life
async def follows_a_source_that_refuses() -> World:
    world = await make_followed()
    await refuse_ask(world)
    return world


@life
async def followed_a_bad_one() -> World:
    world = await make_followed()
    await give_up(world)
    return world


@life
async def follows_at_zero() -> World:
    world = await make_followed()
    world.edit(replicas=0)
    await world.settle()
    return world
