"""A rollout where there is no room for one more replica: who makes some, when, and what is said meanwhile."""

from typing import Any

import pytest

from millrace_operator.kube.kinds import Obj
from testing.world import GRACE_SECONDS, KEY, World, make_pod, ready_status, unschedulable_status

EXTERNAL = {"mode": "External", "minReplicas": 1, "maxReplicas": 1}
EDIT = {"engine": {"maxSequences": 4}}
LONG = 400.0
"""More than the five minutes that a replica waits for room."""


async def full(num_replicas: int, **spec: Any) -> World:
    """A service in a cluster that has room for no other replica, and a new revision asked for."""
    world = World(scaling=EXTERNAL, replicas=num_replicas, **spec)
    await world.settle()
    world.capacity = num_replicas
    world.edit(**EDIT)
    await world.settle()
    return world


def num_ready(world: World) -> int:
    return sum(pod["status"] == ready_status() for pod in world.pods())


def is_rolled_out(world: World) -> bool:
    return bool(world.status["currentRevision"] == world.status["updateRevision"])


async def let_go(world: World, least_ready: int, turns: int = 40) -> None:
    """Let time pass, and see that never fewer serve."""
    for _ in range(turns):
        world.now += 60.0
        await world.reconcile_until_quiet()
        world.run_controllers()
        assert num_ready(world) >= least_ready
    await world.settle()


async def pass_time(world: World, seconds: float) -> None:
    """Let time pass without any event: the operator looks again only when it said that it would."""
    until = world.now + seconds
    while world.now < until:
        outcome = await world.reconcile()
        world.now = min(until, world.now + (1.0 if outcome.retry else outcome.look_again or seconds))
    await world.reconcile()


async def test_a_serving_replica_stays_while_a_node_may_still_come() -> None:
    world = await full(3)
    assert num_ready(world) == 3
    assert world.status["rollout"]["method"] == "Surge"
    world.capacity = 4
    await world.settle()
    assert is_rolled_out(world)
    assert num_ready(world) == 3


async def test_a_replica_makes_room_when_none_has_come() -> None:
    world = await full(3)
    await pass_time(world, LONG)
    await let_go(world, least_ready=2)
    assert is_rolled_out(world)


async def test_a_pod_that_waits_for_room_is_no_trouble_until_it_has_waited_long() -> None:
    world = World(scaling=EXTERNAL, replicas=2)
    await world.settle()
    world.capacity = 2
    world.edit(replicas=3)
    await world.settle()
    assert (world.condition("Degraded")["status"], world.condition("Ready")["status"]) == ("False", "True")
    assert world.condition("Progressing")["reason"] == "Scaling"
    assert "Insufficient nvidia.com/gpu" in world.condition("Progressing")["message"]
    await pass_time(world, LONG)
    assert world.condition("Degraded")["reason"] == "Unschedulable"


async def test_how_long_it_may_wait_is_the_owners_choice() -> None:
    world = await full(2, rollout={"schedulingTimeout": "20m"})
    world.now += LONG
    await world.settle()
    assert (world.condition("Degraded")["status"], num_ready(world)) == ("False", 2)


async def test_one_replica_in_a_full_cluster_waits_and_is_told_what_to_write() -> None:
    world = await full(1)
    world.now += LONG
    await world.settle()
    assert num_ready(world) == 1
    assert "write rollout.strategy: Replace" in world.condition("Degraded")["message"]
    world.edit(rollout={"strategy": "Replace"})
    await world.settle()
    assert is_rolled_out(world)
    assert num_ready(world) == 1
    assert world.condition("Degraded")["status"] == "False"


async def test_strategy_surge_never_serves_with_fewer() -> None:
    world = await full(3, rollout={"strategy": "Surge", "rollback": "Never"})
    world.now += LONG
    await let_go(world, least_ready=3)
    assert not is_rolled_out(world)
    assert "write rollout.strategy: Replace" in world.condition("Degraded")["message"]


async def test_strategy_replace_never_has_one_more() -> None:
    world = World(scaling=EXTERNAL, replicas=3, rollout={"strategy": "Replace"})
    await world.settle()
    world.edit(**EDIT)
    for _ in range(30):
        await world.reconcile_until_quiet()
        world.run_controllers()
        assert len(world.pods()) <= 3
        assert num_ready(world) >= 2
    await world.settle()
    assert is_rolled_out(world)


async def test_a_quota_without_room_for_one_more_is_no_dead_end() -> None:
    world = World(scaling=EXTERNAL, replicas=2)
    await world.settle()
    world.quota = 2
    world.edit(**EDIT)
    await let_go(world, least_ready=1)
    assert is_rolled_out(world)
    assert num_ready(world) == 2


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
async def test_pods_that_ended_long_ago_are_not_waited_for(phase: str) -> None:
    world = await full(2)
    old = world.status["currentRevision"]
    world.cluster.put(make_pod("evicted", old, phase=phase, reason="Evicted"))
    world.now += LONG
    await let_go(world, least_ready=1)
    assert is_rolled_out(world)


async def test_a_pod_on_a_lost_node_is_waited_for_until_its_grace_is_over() -> None:
    world = await full(2)
    world.are_nodes_lost = True
    lost = make_pod("lost", world.status["currentRevision"], **ready_status())
    lost["metadata"]["deletionTimestamp"] = "2026-01-01T00:10:30Z"
    world.cluster.put(lost)
    world.now += LONG
    await world.settle()
    assert world.status["rollout"]["method"] == "Surge"
    outcome = await world.reconcile()
    assert outcome.look_again is not None
    assert outcome.look_again <= GRACE_SECONDS - LONG + 60
    world.now += outcome.look_again + 1
    await world.reconcile()
    assert world.status["rollout"]["method"] == "Replace"


async def test_a_pod_behind_a_scheduling_gate_has_no_room() -> None:
    world = await full(2)
    gated = unschedulable_status("Scheduling is blocked due to non-empty scheduling gates")
    gated["conditions"][0]["reason"] = "SchedulingGated"
    (pod,) = [pod for pod in world.pods() if pod["status"] != ready_status()]
    world.cluster.put({**pod, "status": gated})
    world.now += LONG
    await world.reconcile()
    assert world.status["rollout"]["method"] == "Replace"
    assert "scheduling gates" in world.condition("Degraded")["message"]


def add_to_status(service: Obj, **fields: Any) -> Obj:
    return {**service, "status": {**service["status"], **fields}}


async def test_a_method_of_a_newer_operator_is_as_none() -> None:
    world = await full(2)
    rollout = {**world.status["rollout"], "method": "Teleport"}
    world.cluster.put(add_to_status(world.service, rollout=rollout))
    await world.reconcile()
    assert world.status["rollout"]["method"] == "Surge"
    assert world.service["metadata"]["name"] == KEY.name


def budget(world: World) -> int:
    (found,) = world.objects("PodDisruptionBudget")
    return int(found["spec"]["minAvailable"])


@pytest.mark.parametrize("limit", ["capacity", "quota"])
async def test_a_drain_of_a_full_cluster_goes_on_once_replicas_have_waited_for_room(limit: str) -> None:
    world = World(scaling=EXTERNAL, replicas=4)
    setattr(world, limit, 2)
    await world.settle()
    assert (num_ready(world), budget(world)) == (2, 3)
    await pass_time(world, LONG)
    assert budget(world) == 1
    setattr(world, limit, 4)
    await world.settle()
    assert (num_ready(world), budget(world)) == (4, 3)


async def test_a_rollouts_extra_replica_without_room_lets_no_more_of_the_others_go() -> None:
    world = await full(3)
    await pass_time(world, 60.0)
    assert (num_ready(world), len(world.pods()), budget(world)) == (3, 4, 2)
    await pass_time(world, LONG)
    assert budget(world) == 2
