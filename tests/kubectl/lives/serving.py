"""Services that serve, and what others do to them."""

from millrace_operator.observed.snapshot import Advice
from testing.world import World
from tests.kubectl.lives.life import EDIT, EXTERNAL, life, serve
from tests.operator.scaling.test_competing_autoscalers import make_autoscaler, scale

LOST = "every signal (Prometheus did not answer within 2 s)"


@life
async def serves() -> World:
    return await serve()


@life
async def edit_not_seen() -> World:
    world = await serve()
    world.edit(**EDIT)
    return world


@life
async def scales_up() -> World:
    world = await serve(2)
    world.capacity = 2
    world.edit(replicas=3)
    await world.settle()
    return world


@life
async def at_zero() -> World:
    return await serve(0)


@life
async def name_is_taken() -> World:
    world = World(scaling=EXTERNAL, replicas=1)
    metadata = {"namespace": "shop", "name": "chat", "uid": "theirs"}
    world.cluster.put({"apiVersion": "v1", "kind": "Service", "metadata": metadata})
    await world.settle()
    return world


@life
async def model_name_is_shadowed() -> World:
    world = await serve()
    other = {**world.service["metadata"], "namespace": "elsewhere", "uid": "theirs"}
    world.cluster.put({**world.service, "metadata": other})
    await world.settle()
    return world


@life
async def is_contested() -> World:
    world = await serve(1)
    world.cluster.put(make_autoscaler(scale(world, 3)))
    await world.settle()
    return world


@life
async def signals_are_missing() -> World:
    world = World(scaling={"mode": "Automatic", "minReplicas": 1, "maxReplicas": 8})
    await world.settle()
    world.advice = Advice(
        1, "SignalsMissing", "Prometheus did not answer within 2 s", "signals", is_held=True, missing=LOST
    )
    await world.settle()
    world.now += 300
    return world
