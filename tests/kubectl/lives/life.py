"""The parts of services' lives: each life is a function that returns its world at the end."""

from collections.abc import Awaitable, Callable
from typing import Any

from testing.world import World

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
