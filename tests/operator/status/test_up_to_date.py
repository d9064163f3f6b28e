"""UpToDate: True exactly where what the spec asks for serves completely, else the worst reason why not."""

from typing import Any

import pytest

from millrace_operator.observed.snapshot import Demand
from testing.world import GRACE_SECONDS, World, crash_status, unschedulable_status
from tests.operator.test_argocd_health import judge

EXTERNAL = {"mode": "External", "minReplicas": 1, "maxReplicas": 1}
RESTING = {"mode": "Automatic", "minReplicas": 0, "maxReplicas": 4, "scaleToZeroAfter": "10m"}
EDIT = {"engine": {"maxSequences": 4}}
DEADLINE = 1800.0
PLACED = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"}
LOADING = {
    "phase": "Running",
    "conditions": [PLACED],
    "containerStatuses": [{"name": "replica", "started": False, "state": {"running": {}}}],
}


def told(world: World) -> tuple[str, str]:
    """The status and the reason, which speak of the newest spec."""
    condition = world.condition("UpToDate")
    assert condition["observedGeneration"] == world.service["metadata"]["generation"]
    return condition["status"], condition["reason"]


async def served(num_replicas: int = 2, **spec: Any) -> World:
    world = World(scaling=EXTERNAL, replicas=num_replicas, **spec)
    await world.settle()
    return world


async def edited(world: World, status: dict[str, Any] | None = None, **spec: Any) -> World:
    """An edit whose new pods get as far as the status says."""
    world.edit(**(spec or EDIT))
    await world.reconcile()
    if status is not None:
        world.broken[world.status["updateRevision"]] = status
    return world


async def test_it_is_false_from_the_edit_on_until_the_newest_revision_has_all_replicas() -> None:
    world = World(scaling=EXTERNAL, replicas=2)
    await world.reconcile()
    assert told(world) == ("False", "Starting")
    await world.settle()
    assert told(world) == ("True", "Settled")
    await edited(world)
    seen = {told(world)}
    for _ in range(20):
        await world.reconcile_until_quiet()
        is_whole = len(world.pods()) == len(world.pods(world.status["updateRevision"])) == 2
        assert is_whole or told(world) != ("True", "Settled")
        seen.add(told(world))
        world.run_controllers()
    assert seen == {("False", "RollingOut"), ("True", "Settled")}
    assert told(world) == ("True", "Settled")


async def test_a_changed_count_is_scaling() -> None:
    world = await served(1)
    await edited(world, replicas=3)
    assert told(world) == ("False", "Scaling")
    await world.settle()
    assert told(world) == ("True", "Settled")


@pytest.mark.parametrize(
    ("status", "reason"),
    [(LOADING, "Loading"), (crash_status(), "Crashing"), (unschedulable_status(), "Unschedulable")],
)
async def test_a_new_service_says_what_keeps_it(status: dict[str, Any], reason: str) -> None:
    world = World(scaling=EXTERNAL, replicas=1)
    await world.reconcile()
    world.broken[world.status["updateRevision"]] = status
    await world.settle()
    assert told(world) == ("False", reason)
    assert world.condition("UpToDate")["message"] == world.condition("Ready")["message"]


async def test_a_bad_revision_behind_healthy_pods_and_its_rollback_are_told() -> None:
    world = await edited(await served(), crash_status())
    await world.settle()
    assert told(world) == ("False", "Crashing")
    world.now += DEADLINE + 60
    await world.settle()
    assert told(world) == ("False", "RolledBack")
    assert world.condition("Progressing")["status"] == "False"  # who waited for that is let go
    assert judge(world.service)[0] == "Degraded"
    world.edit(engine={})
    await world.settle()
    assert told(world) == ("True", "Settled")
    assert judge(world.service)[0] == "Healthy"


@pytest.mark.parametrize(
    ("promotion", "reason", "health"),
    [("Automatic", "Canary", "Progressing"), ("Manual", "AwaitingPromotion", "Suspended")],
)
async def test_a_canary_is_not_the_whole_service(promotion: str, reason: str, health: str) -> None:
    world = await edited(await served(4, rollout={"canary": {"promotion": promotion}}))
    await world.settle()
    assert told(world) == ("False", reason)
    assert judge(world.service)[0] == health


async def test_nothing_is_asked_for_at_zero() -> None:
    world = World(scaling=EXTERNAL, replicas=0)
    await world.settle()
    assert told(world) == ("True", "ScaledToZero")
    assert judge(world.service)[0] == "Suspended"
    world.edit(replicas=1)
    await world.settle()
    assert told(world) == ("True", "Settled")
    await edited(world, replicas=0)
    assert told(world) == ("False", "Scaling")  # its replica still serves
    world.now += GRACE_SECONDS
    await world.settle()
    assert told(world) == ("True", "ScaledToZero")
    await edited(world)
    await world.settle()
    assert told(world) == ("True", "ScaledToZero")


async def rested() -> World:
    world = World(scaling=RESTING)
    await world.settle()
    world.demand = Demand(0, world.now)
    world.now += 600.0
    await world.settle()
    assert world.status["scaling"]["desiredReplicas"] == 0
    return world


async def test_a_service_at_rest_is_healthy_and_progresses_only_until_it_is_awake() -> None:
    world = await rested()
    assert told(world) == ("True", "ScaledToZero")
    assert judge(world.service)[0] == "Healthy"
    revision = world.status["currentRevision"]
    world.broken[revision] = LOADING
    world.demand = Demand(1, None)
    await world.settle()
    assert told(world) == ("False", "Waking")
    assert judge(world.service)[0] == "Progressing"
    (pod,) = world.pods()
    killed = {"terminated": {"exitCode": 137, "reason": "Error"}}
    (replica,) = LOADING["containerStatuses"]
    again = {**LOADING, "containerStatuses": [{**replica, "restartCount": 1, "lastState": killed}]}
    world.cluster.put({**pod, "status": again})  # the kubelet's startup probe has ended
    await world.settle()
    assert told(world) == ("False", "Crashing")
    assert judge(world.service)[0] == "Degraded"
    world.cluster.put({**pod, "status": {}})
    world.broken.clear()
    await world.settle()
    assert told(world) == ("True", "Settled")
    assert judge(world.service)[0] == "Healthy"


async def test_a_spec_that_cannot_be_read_is_not_up_to_date() -> None:
    world = await served()
    world.cluster.put({**world.service, "spec": {**world.service["spec"], "scaling": {"mode": "Unknown"}}})
    world.edit()
    await world.reconcile()
    assert told(world) == ("False", "SettingsInvalid")
