"""Whose a child is: told by its ownerReference, whatever its labels say."""

import pytest

from millrace_operator.controller.cache import Cache
from millrace_operator.kube.kinds import (
    CHILDREN,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    POD,
    SERVICE,
    Kind,
    Obj,
)
from millrace_operator.render.child import render_child
from millrace_runtime import contract
from testing.world import KEY, World, make_service, ready_status


def make_foreign(kind: Kind, name: str, **labels: str) -> Obj:
    metadata = {"namespace": KEY.namespace, "name": name, "labels": labels}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": {}}


@pytest.mark.parametrize("kind", CHILDREN, ids=lambda kind: kind.kind)
async def test_a_child_that_lost_its_label_gets_it_back(kind: Kind) -> None:
    world = World()
    await world.settle()
    children = world.objects(kind.kind)
    for child in children:
        del child["metadata"]["labels"][contract.LABEL_SERVICE]
        world.cluster.put(child)
    assert await world.reconcile_until_quiet() < 8
    for child in world.objects(kind.kind):
        assert child["metadata"]["labels"][contract.LABEL_SERVICE] == KEY.name
    assert len(world.objects(kind.kind)) == len(children)
    assert world.condition("Degraded")["status"] == "False"


async def test_an_old_deployment_without_label_and_record_does_not_run_for_ever() -> None:
    """No watch sees it, and nobody knows to create it again, which would find it. Its pods tell of it."""
    world = World()
    await world.settle()
    (old,) = world.objects("Deployment")
    world.restart_operator()
    world.edit(engine={"maxSequences": 4})
    del old["metadata"]["labels"][contract.LABEL_SERVICE]
    world.cluster.put(old)
    world.cluster.remove(CONTROLLER_REVISION, KEY.namespace, old["metadata"]["name"])
    await world.settle()
    assert world.deployments() == {world.status["updateRevision"]: 1}
    assert len(world.pods()) == 1
    before = len(world.cluster.writes)
    await world.settle()
    assert len(world.cluster.writes) == before


async def test_an_object_with_our_label_and_another_name_is_nobodys_conflict() -> None:
    world = World()
    world.cluster.put(make_foreign(DEPLOYMENT, "canary", **{contract.LABEL_SERVICE: KEY.name}))
    await world.settle()
    assert world.condition("Degraded")["status"] == "False"
    assert world.cluster.objects[("Deployment", KEY.namespace, "canary")]["spec"] == {}


async def test_a_pod_of_somebody_with_our_label_is_neither_counted_nor_marked() -> None:
    world = World(scaling={"mode": "External"}, replicas=2)
    await world.settle()
    pod = make_foreign(POD, "load-tester", **{contract.LABEL_SERVICE: KEY.name})
    world.cluster.put({**pod, "status": ready_status()})
    before = len(world.cluster.writes)
    await world.reconcile_until_quiet()
    assert len(world.cluster.writes) == before
    world.edit(replicas=1)
    for _ in range(4):
        await world.reconcile()
    assert world.status["replicas"] == 2
    assert not world.cluster.objects[("Pod", KEY.namespace, "load-tester")]["metadata"].get("annotations")


async def test_one_with_our_label_and_our_name_is() -> None:
    world = World()
    world.cluster.put(make_foreign(SERVICE, KEY.name, **{contract.LABEL_SERVICE: KEY.name}))
    await world.settle()
    assert world.condition("Ready")["reason"] == "Conflict"


def test_a_childs_owner_counts_before_its_label() -> None:
    service = make_service()
    service["metadata"]["uid"] = "u"
    child = render_child(service, DEPLOYMENT, "chat-1")
    child["metadata"]["labels"][contract.LABEL_SERVICE] = "other"
    cache = Cache()
    cache.put(child)
    assert cache.children(KEY) == (child,)
