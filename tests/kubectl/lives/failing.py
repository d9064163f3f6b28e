"""Services whose pods fail, each in its own way."""

from typing import Any

from testing.world import World, crash_status
from tests.kubectl.lives.life import EXTERNAL, begin, life, serve, wait
from tests.operator.status.test_causes import LOADING, beside, running, waiting

LOST = "2026-01-01T00:59:00Z"


async def befall(world: World, status: dict[str, Any], count: int | None = None) -> World:
    """The first pods, or all of them, get this far; and two minutes go by."""
    for pod in world.pods()[:count]:
        world.cluster.put({**pod, "status": status})
    await world.settle()
    world.now += 120
    await world.settle()
    return world


def killed(reason: str, message: str = "") -> dict[str, Any]:
    ended = {"exitCode": 137, "reason": reason, "message": message}
    replica = {"name": "replica", "restartCount": 4, "lastState": {"terminated": ended}}
    back = {"reason": "CrashLoopBackOff", "message": "back-off 1m20s restarting failed container=replica"}
    return {"containerStatuses": [{**replica, "state": {"waiting": back}}]}


@life
async def is_killed_for_memory() -> World:
    return await befall(await serve(), killed("OOMKilled", "loading layer 17 of 32\n"), count=1)


@life
async def is_killed_by_nobody_knows_whom() -> World:
    return await begin(killed("Error", "loading layer 17 of 32\n"))


@life
async def crashes_in_service() -> World:
    return await befall(
        await serve(), crash_status("CUDA error: an illegal memory access", code=134), count=1
    )


@life
async def refuses_its_settings() -> World:
    return await begin(crash_status("--max-model-length 9000000: the model knows 8192 positions", code=64))


@life
async def container_is_refused() -> World:
    text = 'secret "registry-token" not found'
    return await begin(wait(waiting={"reason": "CreateContainerConfigError", "message": text}))


@life
async def probe_fails() -> World:
    return await befall(await serve(1), running(is_ready=False, since=LOST))


@life
async def node_is_lost() -> World:
    return await befall(await serve(), running(is_ready=True, since=LOST, message=""), count=1)


@life
async def sidecar_fails() -> World:
    status = waiting("CrashLoopBackOff", exitCode=1, reason="Error", message="no certificate for this mesh")
    return await befall(await serve(), beside(status, state={"running": {}}), count=1)


@life
async def loads_too_long_in_a_rollout() -> World:
    world = await begin({"phase": "Running", "containerStatuses": [LOADING]})
    world.now += 1900
    await world.settle()
    return world


@life
async def loads_too_long_after_a_restart() -> World:
    world = await serve(2)
    world.broken[world.status["currentRevision"]] = {"phase": "Running", "containerStatuses": [LOADING]}
    world.edit(replicas=3)
    await world.settle()
    world.now += 1900
    await world.settle()
    return world


@life
async def waits_for_room_for_too_long() -> World:
    world = World(scaling=EXTERNAL, replicas=2)
    world.capacity = 1
    await world.settle()
    world.now += 700
    await world.settle()
    return world
