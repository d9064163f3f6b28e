"""A service that is deleted and made anew: what the former one has left is waited for, and no conflict."""

import pytest

from millrace_operator.api.conditions import render_time
from millrace_operator.kube.kinds import SERVICE, Obj, is_owned
from millrace_operator.observed.snapshot import LEFT_OVER_SECONDS
from millrace_runtime import contract
from testing.world import KEY, World, make_service
from tests.operator.controller.test_ownership import make_foreign

EXTERNAL = {"scaling": {"mode": "External"}, "replicas": 1}
OURS = {"apiVersion": f"{contract.GROUP}/{contract.VERSION}", "kind": contract.KIND, "name": KEY.name}
OTHERS = {
    "KServe's": OURS | {"apiVersion": "serving.kserve.io/v1beta1"},
    "of another name": OURS | {"name": "chat-2"},
    "no service": OURS | {"kind": "ReplicaSet", "apiVersion": "apps/v1"},
}


async def made_anew() -> World:
    """A service after `kubectl replace --force`, before garbage collection has begun."""
    world = World(**EXTERNAL)
    await world.settle()
    service = make_service(**EXTERNAL)
    service["metadata"] |= {"uid": "uid-anew", "creationTimestamp": render_time(world.now)}
    world.cluster.put(service)
    world.cluster.events.clear()
    return world


def list_children(world: World) -> list[Obj]:
    return [obj for obj in world.cluster.objects.values() if obj["metadata"].get("ownerReferences")]


def list_warnings(world: World) -> list[str]:
    return [event["reason"] for event in world.cluster.events if event["type"] == "Warning"]


async def test_what_the_former_service_has_left_is_waited_for_in_words() -> None:
    world = await made_anew()
    before = list_children(world)
    for _ in range(2):
        outcome = await world.reconcile()
    assert outcome.look_again is not None
    assert list_children(world) == before
    assert world.condition("Degraded")["status"] == "False"
    words = "an earlier InferenceService of this name left ControllerRevision chat-"
    for name, status in {"Ready": "False", "Progressing": "True", "UpToDate": "False"}.items():
        found = world.condition(name)
        assert (found["status"], found["reason"]) == (status, "Starting")
        assert words in found["message"]
    await world.settle()
    assert world.condition("UpToDate")["status"] == "True"
    assert all(is_owned(obj, "uid-anew") for obj in list_children(world) if obj["kind"] != "Pod")
    assert list_warnings(world) == []


async def test_what_nobody_collects_is_a_conflict_in_the_end() -> None:
    world = await made_anew()
    await world.reconcile()
    for _ in range(100):
        look = (await world.reconcile()).look_again
        if world.condition("Degraded")["status"] == "True":
            break
        assert look is not None
        world.now += look
    assert world.condition("Degraded")["reason"] == "Conflict"
    assert world.condition("Ready")["reason"] == "Conflict"
    made_at = world.service["metadata"]["creationTimestamp"]
    assert made_at < render_time(world.now - LEFT_OVER_SECONDS + 1.0)
    assert render_time(world.now - LEFT_OVER_SECONDS - 30.0) < made_at


@pytest.mark.parametrize("owner", OTHERS)
async def test_what_somebody_else_owns_is_a_conflict_at_once(owner: str) -> None:
    world = await made_anew()
    foreign = make_foreign(SERVICE, KEY.name, **{contract.LABEL_SERVICE: KEY.name})
    foreign["metadata"]["ownerReferences"] = [{**OTHERS[owner], "uid": "u", "controller": True}]
    world.cluster.put(foreign)
    for _ in range(2):  # one that belongs to another service is met by a write
        await world.reconcile()
    assert world.condition("Degraded")["reason"] == "Conflict"
