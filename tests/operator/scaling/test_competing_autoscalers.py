"""Who else scales: an autoscaler of a Deployment of ours is named, and spec.replicas is its writer's."""

from typing import Any

import pytest

from millrace_operator.kube.errors import RefusedError
from millrace_operator.kube.kinds import HORIZONTAL_POD_AUTOSCALER, Obj
from millrace_operator.scaling.competing_autoscalers import LOOK_SECONDS
from testing.world import KEY, World
from tests.operator.test_argocd_health import judge

EXTERNAL = {"mode": "External", "minReplicas": 1, "maxReplicas": 8}


def make_autoscaler(target: str, name: str = "chat-hpa", kind: str = "Deployment") -> Obj:
    reference = {"apiVersion": "apps/v1", "kind": kind, "name": target}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"namespace": KEY.namespace, "name": name},
        "spec": {"scaleTargetRef": reference, "minReplicas": 3, "maxReplicas": 5},
    }


async def served(**spec: Any) -> World:
    world = World(**{"scaling": EXTERNAL, "replicas": 1, **spec})
    await world.settle()
    return world


def scale(world: World, count: int) -> str:
    """Change the count of the Deployment as others do; return its name."""
    (deployment,) = world.objects("Deployment")
    world.cluster.put({**deployment, "spec": {**deployment["spec"], "replicas": count}})
    return str(deployment["metadata"]["name"])


async def test_an_autoscaler_of_a_deployment_of_ours_is_named_until_it_is_gone() -> None:
    world = await served()
    world.cluster.put(make_autoscaler(scale(world, 3)))
    await world.settle()
    degraded = world.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "Contested")
    assert "HorizontalPodAutoscaler chat-hpa scales Deployment chat-" in degraded["message"]
    assert judge(world.service)[0] == "Degraded"
    assert world.condition("Ready")["status"] == "True"
    assert list(world.deployments().values()) == [1]
    for _ in range(5):  # it goes on, and the status stays as it is
        before = world.status
        scale(world, 3)
        await world.settle()
        assert world.status["conditions"] == before["conditions"]
    assert (await world.reconcile()).look_again == LOOK_SECONDS
    world.cluster.remove(HORIZONTAL_POD_AUTOSCALER, KEY.namespace, "chat-hpa")
    await world.settle()
    assert world.condition("Degraded")["status"] == "False"
    assert (await world.reconcile()).look_again is None


async def test_somebody_who_scales_it_once_by_hand_is_no_rival() -> None:
    world = await served()
    scale(world, 3)
    await world.settle()
    assert list(world.deployments().values()) == [1]
    assert world.condition("Degraded")["status"] == "False"


async def test_autoscalers_of_others_are_none_of_ours() -> None:
    world = await served()
    name = scale(world, 3)
    world.cluster.put(make_autoscaler("elsewhere", "one"))
    world.cluster.put(make_autoscaler(name, "two", kind="StatefulSet"))
    await world.settle()
    assert world.condition("Degraded")["status"] == "False"


async def test_our_own_change_of_the_count_asks_for_no_autoscaler() -> None:
    world = await served()
    world.edit(replicas=4)
    world.cluster.read_faults.append(RefusedError("nobody may look"))
    await world.reconcile()
    await world.reconcile()
    assert len(world.cluster.read_faults) == 1


async def test_an_operator_that_may_not_look_goes_on_without() -> None:
    world = await served()
    world.cluster.put(make_autoscaler(scale(world, 3)))
    await world.reconcile()
    world.cluster.read_faults.append(RefusedError("horizontalpodautoscalers is forbidden"))
    await world.reconcile()
    assert not world.cluster.read_faults
    assert list(world.deployments().values()) == [1]
    await world.settle()
    assert world.condition("Degraded")["reason"] == "Contested"


@pytest.mark.parametrize("period", [1, 7])
async def test_a_thousand_reconciles_leave_spec_replicas_to_its_writer(period: int) -> None:
    """As KEDA and an HPA write: by way of the scale subresource, to zero and back, at any moment."""
    world = await served()
    counts = [2, 5, 8, 8, 3, 1, 0, 0, 1, 4]
    for number in range(1000):
        if number % period == 0:
            world.edit(replicas=counts[(number // period) % len(counts)])
        spec = world.service["spec"]
        await world.reconcile()
        world.run_controllers()
        assert world.service["spec"] == spec
    assert not [write for write in world.cluster.writes if write[:2] == ("apply", "InferenceService")]
    await world.settle()
    assert sum(world.deployments().values()) == world.service["spec"]["replicas"]
