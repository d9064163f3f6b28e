"""Mode External: the count in the spec is somebody else's, however often the operator looks."""

import contextlib
from random import Random

from millrace_operator.cluster.errors import ClusterError
from millrace_operator.cluster.kinds import INFERENCE_SERVICE
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


async def test_a_count_that_is_missing_is_held() -> None:
    """The API server requires it, but the rule that says so may be of another version."""
    world = World(scaling={"mode": "External"}, replicas=3)
    await world.settle()
    spec = {name: value for name, value in world.service["spec"].items() if name != "replicas"}
    world.cluster.put({**world.service, "spec": spec})
    world.edit()
    world.restart_operator()
    await world.settle()
    assert list(world.deployments().values()) == [3]
    assert world.status["scaling"]["message"] == "spec.replicas is missing, and the count stays as it is"


async def test_a_new_service_without_a_count_has_none() -> None:
    world = World(scaling={"mode": "External"})
    await world.settle()
    assert list(world.deployments().values()) == [0]
