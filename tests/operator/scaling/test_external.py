"""Mode External: the count in the spec is somebody else's, however often the operator looks."""

import contextlib
from random import Random

from millrace_operator.kube.errors import ClusterError
from millrace_operator.kube.kinds import INFERENCE_SERVICE
from testing.world import World

RECONCILES = 1000


async def test_a_thousand_reconciles_never_write_a_count_that_others_do() -> None:
    """As `kubectl scale`, an HPA or KEDA writes it: at any time, also twice before anybody looks."""
    world, chance = World(scaling={"mode": "External"}, replicas=1), Random(7)
    wanted = 1
    for _ in range(RECONCILES):
        if chance.random() < 0.1:
            wanted = chance.randrange(0, 6)
            world.edit(replicas=wanted)
        with contextlib.suppress(ClusterError):  # what was seen late is written in the next round
            await world.reconcile(is_stale=chance.random() < 0.2)
        if chance.random() < 0.3:
            world.run_controllers()
        assert world.service["spec"]["replicas"] == wanted
    await world.settle()
    assert sum(world.deployments().values()) == wanted == len(world.pods())
    verbs = {verb for verb, kind, _ in world.cluster.writes if kind == INFERENCE_SERVICE.kind}
    assert verbs == {"status"}


def drop_count(world: World) -> None:
    """Apply a manifest without the count that it had."""
    spec = {name: value for name, value in world.service["spec"].items() if name != "replicas"}
    world.cluster.put({**world.service, "spec": spec})
    world.edit()


def scale_writes(world: World) -> int:
    return sum(verb == "scale" for verb, _, _ in world.cluster.writes)


async def test_a_new_service_without_a_count_gets_one_replica_and_is_others_from_then_on() -> None:
    world = World(scaling={"mode": "External"})
    await world.settle()
    assert list(world.deployments().values()) == [1]
    assert world.service["spec"]["replicas"] == 1  # without which no HPA begins
    world.edit(replicas=4)
    await world.settle()
    world.restart_operator()
    await world.settle()
    assert (list(world.deployments().values()), scale_writes(world)) == ([4], 1)


async def test_a_count_that_a_manifest_drops_stays_as_it_is() -> None:
    world = World(scaling={"mode": "External"}, replicas=3)
    await world.settle()
    drop_count(world)
    world.restart_operator()
    await world.settle()
    assert (list(world.deployments().values()), world.service["spec"]["replicas"]) == ([3], 3)
    assert world.status["scaling"]["message"] == "the count is spec.replicas"


async def test_a_switch_from_automatic_keeps_the_count() -> None:
    world = World(scaling={"mode": "Automatic", "minReplicas": 5, "maxReplicas": 8})
    await world.settle()
    world.edit(scaling={"mode": "External"})
    await world.settle()
    assert (list(world.deployments().values()), world.service["spec"]["replicas"]) == ([5], 5)


async def test_a_count_that_somebody_writes_meanwhile_is_not_overwritten() -> None:
    world = World(scaling={"mode": "External"})
    await world.reconcile()
    drop_count(world)
    world.observe()
    world.cluster.put({**world.service, "spec": {**world.service["spec"], "replicas": 6}})  # an HPA's
    with contextlib.suppress(ClusterError):
        await world.reconcile(is_stale=True)
    await world.settle()
    assert (list(world.deployments().values()), world.service["spec"]["replicas"]) == ([6], 6)


async def test_a_count_that_may_not_be_written_is_told_and_holds() -> None:
    world = World(scaling={"mode": "External"})
    world.cluster.refuse = lambda obj: "no right to scale" if obj["kind"] == INFERENCE_SERVICE.kind else None
    for _ in range(3):
        await world.reconcile()
        world.run_controllers()
    assert list(world.deployments().values()) == [1]
    assert "no right to scale" in str(world.status["conditions"])
