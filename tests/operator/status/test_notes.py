"""Which transitions of a service are told by Events, in whole sequences; nothing that stays is told again."""

from typing import Any

import pytest

from millrace_operator.api.annotations import ROLLOUT_ANNOTATION
from millrace_operator.status.events import find_notes
from testing.world import World, crash_status

EXTERNAL = {"mode": "External", "minReplicas": 1, "maxReplicas": 8}
EDIT = {"engine": {"maxSequences": 4}}
DEADLINE = 1800.0
IMAGE = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}


def told(world: World) -> list[str]:
    """Reasons of the Events in their order, each as often as it was told."""
    return [event["reason"] for event in world.cluster.events for _ in range(event["count"])]


def last(world: World, reason: str) -> Any:
    return [event for event in world.cluster.events if event["reason"] == reason][-1]


async def edited(num_replicas: int = 2, *, broken: dict[str, Any] | None = None, **spec: Any) -> World:
    """A service that served, after an edit; what was told before that is forgotten."""
    world = World(scaling=EXTERNAL, replicas=num_replicas, **spec)
    await world.settle()
    world.cluster.events.clear()
    world.edit(**EDIT)
    await world.reconcile()
    if broken is not None:
        world.broken[world.status["updateRevision"]] = broken
    await world.settle()
    return world


async def stay(world: World) -> None:
    """Nothing happens for an hour, and then another leader takes over."""
    before = told(world)
    for _ in range(6):
        world.now += 600.0 if "rollout" not in world.status else 1.0
        await world.settle()
    world.restart_operator()
    await world.settle()
    assert told(world) == before
    assert list(find_notes(world.status, world.status)) == []


def order(world: World, action: str) -> None:
    text = f"{action} {world.status['updateRevision']}"
    metadata = {**world.service["metadata"], "annotations": {ROLLOUT_ANNOTATION: text}}
    world.cluster.put({**world.service, "metadata": metadata})


async def test_a_rollout_that_ends_is_told_once() -> None:
    world = await edited()
    assert told(world) == ["RolledOut"]
    text = last(world, "RolledOut")["message"]
    assert text == f"revision {world.status['currentRevision']} serves with all of its 2 replicas"
    await stay(world)


async def test_a_rollback_is_told_once_with_its_revision_and_why() -> None:
    world = await edited(broken=crash_status("no room for the KV cache"))
    await stay(world)
    world.now += DEADLINE + 60
    await world.settle()
    assert told(world) == ["Crashing", "RolledBack"]
    event = last(world, "RolledBack")
    assert event["type"] == "Warning"
    assert world.status["updateRevision"] in event["message"]
    assert "no room for the KV cache" in event["message"]
    await stay(world)


async def test_a_canary_is_told_as_it_begins_and_as_it_is_promoted() -> None:
    world = await edited(4, rollout={"canary": {}})
    assert told(world) == ["CanaryBegun"]
    assert "1 replica" in last(world, "CanaryBegun")["message"]
    await stay(world)
    world.now += 601.0
    await world.settle()
    assert told(world) == ["CanaryBegun", "Promoted", "RolledOut"]
    await stay(world)


@pytest.mark.parametrize(
    ("action", "reasons"), [("promote", ["Promoted", "RolledOut"]), ("abort", ["RolledBack"])]
)
async def test_a_canary_that_waits_for_its_owner_is_told_and_so_is_the_owners_word(
    action: str, reasons: list[str]
) -> None:
    world = await edited(4, rollout={"canary": {"promotion": "Manual"}})
    assert told(world) == ["CanaryBegun", "AwaitingPromotion"]
    await stay(world)
    order(world, action)
    await world.settle()
    assert told(world) == ["CanaryBegun", "AwaitingPromotion", *reasons]
    await stay(world)


async def test_another_cause_of_trouble_is_told() -> None:
    world = await edited(1, broken=crash_status())
    assert told(world) == ["Crashing"]
    for pod in world.pods(world.status["updateRevision"]):
        status = {"containerStatuses": [{"name": "replica", "state": IMAGE}]}
        world.cluster.put({**pod, "status": status})
    await world.settle()
    assert told(world) == ["Crashing", "ImageUnavailable"]
    await stay(world)
