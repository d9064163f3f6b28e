"""Services that start: their pods on the way, and what stops them there."""

from millrace_operator.observed.snapshot import Fetched
from testing.world import World, crash_status, make_pod, resolver_status
from tests.kubectl.lives.life import EXTERNAL, begin, life, wait
from tests.operator.model.test_fill import GIB, get_pod, make_filling
from tests.operator.model.test_fill import make_world as make_cached
from tests.operator.model.test_fit import make_world
from tests.operator.model.test_look import make_world as make_in_claim
from tests.operator.model.test_resolve import MAIN
from tests.operator.status.test_causes import GATED, STARTED, fetching


@life
async def not_seen() -> World:
    return World(scaling=EXTERNAL, replicas=3)


@life
async def waits_for_a_node() -> World:
    world = World(scaling=EXTERNAL, replicas=2)
    world.capacity = 0
    await world.settle()
    world.now += 120
    await world.settle()
    return world


@life
async def pulls_an_image() -> World:
    return await begin(wait(waiting={"reason": "ContainerCreating"}))


@life
async def has_no_image() -> World:
    return await begin(
        wait(waiting={"reason": "ImagePullBackOff", "message": "no such image: example.com/none:1"})
    )


@life
async def asks_for_its_model() -> World:
    world = World(scaling=EXTERNAL, replicas=2, model=MAIN)
    await world.settle()
    world.now += 120
    await world.settle()
    return world


@life
async def looks_at_its_model() -> World:
    world = make_in_claim(None)
    await world.settle()
    world.now += 30
    await world.settle()
    return world


@life
async def does_not_fit() -> World:
    world = make_world(resources={"limits": {"memory": "8Gi"}})
    await world.settle()
    world.now += 120
    await world.settle()
    return world


@life
async def fetches() -> World:
    return await begin(fetching({"running": {"startedAt": STARTED}}))


@life
async def cannot_fetch() -> World:
    ended = {"exitCode": 1, "reason": "Error", "message": GATED}
    return await begin(fetching({"waiting": {"reason": "CrashLoopBackOff"}}, **ended))


@life
async def has_no_claim() -> World:
    world = make_cached()
    await world.settle()
    world.now += 120
    await world.settle()
    return world


@life
async def fills_a_claim() -> World:
    world = await make_filling()
    name = get_pod(world)["metadata"]["name"]
    world.now += 120
    world.fetched = {name: Fetched(16 * GIB, 4 * GIB, 100_000_000)}
    await world.settle()
    return world


@life
async def cannot_fill_a_claim() -> World:
    world = await make_filling()
    world.cluster.put({**get_pod(world), "status": resolver_status(GATED, code=1)})
    world.now += 120
    await world.settle()
    return world


@life
async def loads() -> World:
    return await begin(wait(running={}))


@life
async def has_no_model() -> World:
    return await begin(crash_status("file:///models/stories: there is no config.json", code=65))


@life
async def quota_refuses() -> World:
    world = World(scaling=EXTERNAL, replicas=2)
    world.quota = 1
    await world.settle()
    world.now += 120
    await world.settle()
    return world


@life
async def node_refuses() -> World:
    world = World(scaling=EXTERNAL, replicas=1)
    await world.reconcile()
    world.capacity = 0
    await world.settle()
    words = "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu"
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": words}
    world.cluster.put(make_pod("chat-refused", world.status["updateRevision"], **status))
    await world.settle()
    return world
