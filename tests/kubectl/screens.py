"""Services as the operator leaves them in each state of a life, and the screen that `status` shows of each.

After a change of words, `python -m tests.kubectl.screens` writes screens.txt anew: its diff shows each.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from millrace_kubectl.facts import Facts
from millrace_kubectl.screen import render_screen
from millrace_operator.reconcile.snapshot import Advice
from millrace_operator.resources.rollout_order import ANNOTATION
from tests.operator.reconcile.test_rivals import make_autoscaler, scale
from tests.operator.world import World, crash_status, make_pod

EXPECTED = Path(__file__).with_name("golden") / "screens.txt"
EXTERNAL = {"mode": "External", "minReplicas": 1, "maxReplicas": 1}
EDIT = {"engine": {"maxSequences": 4}}
PLACED = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"}
PENDING = {
    "phase": "Pending",
    "conditions": [PLACED],
    "containerStatuses": [{"name": "replica", "started": False, "state": {}}],
}
Life = Callable[[], Awaitable[World]]
LIVES: list[Life] = []


def life(function: Life) -> Life:
    LIVES.append(function)
    return function


def wait(**state: Any) -> dict[str, Any]:
    return {**PENDING, "containerStatuses": [{"name": "replica", "started": False, "state": state}]}


async def serve(replicas: int = 3, **spec: Any) -> World:
    world = World(scaling=EXTERNAL, replicas=replicas, **spec)
    await world.settle()
    world.now += 3600
    await world.settle()
    return world


async def begin(status: dict[str, Any]) -> World:
    """A new service whose pods get this far."""
    world = World(scaling=EXTERNAL, replicas=2)
    await world.reconcile()
    world.broken[world.status["updateRevision"]] = status
    await world.settle()
    world.now += 120
    await world.settle()
    return world


async def edit(world: World, status: dict[str, Any] | None = None) -> World:
    """Another revision, whose pods get this far."""
    world.edit(**EDIT)
    await world.reconcile()
    if status is not None:
        world.broken[world.status["updateRevision"]] = status
    await world.settle()
    world.now += 120
    await world.settle()
    return world


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
async def never_rolled_back() -> World:
    world = await edit(await serve(rollout={"rollback": "Never"}), wait(running={}))
    world.now += 1900
    await world.settle()
    return world


@life
async def canary_serves() -> World:
    return await edit(await serve(rollout={"canary": {}}))


@life
async def canary_waits_for_promotion() -> World:
    return await edit(await serve(rollout={"canary": {"promotion": "Manual"}}))


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
    order = {ANNOTATION: f"abort {world.status['updateRevision']}"}
    world.cluster.put({**world.service, "metadata": {**world.service["metadata"], "annotations": order}})
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
async def is_contested() -> World:
    world = await serve(1)
    world.cluster.put(make_autoscaler(scale(world, 3)))
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


@life
async def signals_are_missing() -> World:
    world = World(scaling={"mode": "Automatic", "minReplicas": 1, "maxReplicas": 8})
    await world.settle()
    world.advice = Advice(1, "Held", "Prometheus did not answer within 2 s", "signals", is_held=True)
    await world.settle()
    world.now += 300
    return world


def render() -> str:
    return "\n\n".join(f"## {one.__name__}\n{asyncio.run(show(one))}" for one in LIVES) + "\n"


async def show(one: Life) -> str:
    world = await one()
    return "\n".join(render_screen(Facts(world.service, world.now)))


if __name__ == "__main__":
    EXPECTED.write_text(render())
    sys.exit(0)
