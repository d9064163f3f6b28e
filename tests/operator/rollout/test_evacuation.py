"""Nodes that are emptied under a service: each replica on them is replaced before it goes."""

from typing import Any, NamedTuple

import pytest

from millrace_operator.api.conditions import render_time
from millrace_operator.kube.kinds import NODE, Obj
from millrace_operator.kube.node import find_departure
from millrace_operator.observed.pods import read_pod
from millrace_operator.observed.snapshot import PodLoad
from testing.world import World, crash_status, ready_status, unschedulable_status

EDIT = {"engine": {"maxSequences": 4}}
BUSY = PodLoad(1, has_left=True)
UNSCHEDULABLE_WORDS = unschedulable_status()["conditions"][0]["message"]
TOLERANT = {"pod": {"tolerations": [{"operator": "Exists"}]}}


class Turn(NamedTuple):
    """What there was after the operator and the controllers had a turn each."""

    num_wanted: int
    num_serving: int
    num_told: int


async def settled(replicas: int, *nodes: str, room: int = 8, **spec: Any) -> World:
    """A service whose replicas are all on the first node; the others come later."""
    world = World(scaling={"mode": "External"}, replicas=replicas, **spec)
    world.put_node(nodes[0], room)
    await world.settle()
    for node in nodes[1:]:
        world.put_node(node, room)
    return world


async def cordon(world: World, node: str, *, is_on: bool = True) -> None:
    world.put_node(node, world.room[node], **({"unschedulable": True} if is_on else {}))
    await world.reconcile_until_quiet()


async def take_turns(world: World) -> list[Turn]:
    """Let all take turns until none moves."""
    seen = []
    for _ in range(60):
        written = await world.reconcile_until_quiet()
        moved = world.run_controllers()
        num_serving = sum(pod["status"] == ready_status() for pod in world.pods())
        seen.append(Turn(num_wanted(world), num_serving, world.status["replicas"]))
        if not written and not moved:
            return seen
    raise AssertionError(f"never settled: {seen}")


def num_wanted(world: World) -> int:
    return sum(world.deployments().values())


def nodes_of(world: World) -> list[str]:
    return sorted(pod.get("spec", {}).get("nodeName", "") for pod in world.pods())


def budget(world: World) -> int:
    (found,) = world.objects("PodDisruptionBudget")
    return int(found["spec"]["minAvailable"])


def names(pods: list[Obj]) -> list[str]:
    return [pod["metadata"]["name"] for pod in pods]


def marked(world: World) -> list[str]:
    return names([pod for pod in world.pods() if read_pod(pod).is_marked])


def progressing(world: World) -> tuple[str, str, str]:
    found = world.condition("Progressing")
    return found["status"], found["reason"], found["message"]


async def test_the_only_replica_goes_when_another_one_serves_elsewhere() -> None:
    world = await settled(1, "a", "b")
    (old,) = world.pods()
    assert (nodes_of(world), budget(world)) == (["a"], 0)
    await cordon(world, "a")
    assert (num_wanted(world), budget(world)) == (2, 1)
    (name,) = names([old])
    text = f"replica {name} is replaced, as node a is being emptied (it is cordoned)"
    assert progressing(world) == ("True", "Replacing", text)
    world.loads = {old["metadata"]["uid"]: BUSY}
    turns = await take_turns(world)
    assert (nodes_of(world), marked(world)) == (["a", "b"], [name])  # the one there ends what it has
    world.loads = {}
    turns += await take_turns(world)
    assert min(turn.num_serving for turn in turns) >= 1
    assert {turn.num_told for turn in turns} == {1}
    assert (nodes_of(world), num_wanted(world), budget(world)) == (["b"], 1, 0)
    assert progressing(world)[:2] == ("False", "Settled")


async def test_a_replica_that_was_long_on_its_way_out_leaves_the_replacement_all_its_time() -> None:
    world = await settled(1, "a", "b", rollout={"progressDeadline": "5m"})
    world.put_node("b", 0)
    world.edit(replicas=2)
    await world.settle()
    world.loads = {pod["metadata"]["uid"]: BUSY for pod in world.pods()}
    world.edit(replicas=1)
    await world.settle()
    world.now += 400
    await world.settle()
    assert progressing(world)[:2] == ("True", "Scaling")
    world.put_node("b", 8)
    await cordon(world, "a")
    assert (progressing(world)[:2], budget(world)) == (("True", "Replacing"), 1)
    assert world.status["replacement"] == {"startedAt": render_time(world.now)}
    await cordon(world, "a", is_on=False)
    assert "replacement" not in world.status


async def test_a_drain_is_held_until_the_replacement_serves_and_no_longer() -> None:
    world = await settled(1, "a", "b")
    (old,) = world.pods()
    await cordon(world, "a")
    assert not world.evict(old)
    world.run_controllers()
    assert world.evict(old)
    turns = await take_turns(world)
    assert {turn.num_serving for turn in turns} == {1}
    assert (nodes_of(world), num_wanted(world), budget(world)) == (["b"], 1, 0)


async def test_a_whole_pool_is_replaced_one_by_one() -> None:
    world = await settled(3, "a", "b")
    await cordon(world, "a")
    others = ", and 2 more after it"
    assert progressing(world)[2].endswith(others)
    turns = await take_turns(world)
    assert max(turn.num_wanted for turn in turns) == 4
    assert min(turn.num_serving for turn in turns) >= 3
    assert {turn.num_told for turn in turns} == {3}
    assert (nodes_of(world), num_wanted(world), marked(world)) == (["b"] * 3, 3, [])


async def test_the_replica_on_the_node_goes_and_not_the_idlest() -> None:
    world = await settled(1, "a", "b")
    world.edit(replicas=2)
    await world.settle()
    assert nodes_of(world) == ["a", "b"]
    (on_a,) = [pod for pod in world.pods() if pod["spec"]["nodeName"] == "a"]
    world.loads = {on_a["metadata"]["uid"]: BUSY}
    await cordon(world, "a")
    await take_turns(world)
    assert marked(world) == names([on_a])
    world.loads = {}
    await take_turns(world)
    assert nodes_of(world) == ["b", "b"]


async def test_without_room_one_more_waits_and_the_drain_goes_on_after_the_timeout() -> None:
    world = await settled(2, "a", rollout={"schedulingTimeout": "5m"})
    world.edit(replicas=1)
    await world.settle()
    await cordon(world, "a")
    (old,) = world.pods()
    await take_turns(world)
    assert (num_wanted(world), nodes_of(world), budget(world)) == (2, ["", "a"], 1)
    assert progressing(world)[2].endswith(UNSCHEDULABLE_WORDS)
    assert world.condition("Degraded")["status"] == "False"
    world.cluster.writes.clear()
    for _ in range(20):
        world.now += 10
        await world.reconcile()
    assert world.cluster.writes == []
    assert not world.evict(old)
    world.now += 300
    await take_turns(world)
    assert (num_wanted(world), budget(world)) == (2, 0)
    assert world.condition("Degraded")["reason"] == "Unschedulable"
    assert world.evict(old)


async def test_a_replacement_that_never_serves_holds_up_no_drain_for_ever() -> None:
    world = await settled(1, "a", "b", rollout={"progressDeadline": "30m"})
    (old,) = world.pods()
    world.broken = {revision: crash_status() for revision in world.deployments()}
    await cordon(world, "a")
    await take_turns(world)
    world.now += 1700
    outcome = await world.reconcile()
    assert outcome.look_again is not None
    assert outcome.look_again <= 100 + 10
    assert (nodes_of(world), budget(world)) == (["a", "b"], 1)
    world.now += outcome.look_again + 1
    await take_turns(world)
    assert budget(world) == 0
    assert world.evict(old)


@pytest.mark.parametrize("num_turns", [0, 1, 2])
async def test_an_uncordon_takes_the_extra_replica_back(num_turns: int) -> None:
    world = await settled(1, "a", "b")
    (old,) = world.pods()
    world.loads = {old["metadata"]["uid"]: BUSY}
    await cordon(world, "a")
    for _ in range(num_turns):
        world.run_controllers()
        await world.reconcile_until_quiet()
    await cordon(world, "a", is_on=False)
    world.loads = {}
    turns = await take_turns(world)
    assert {(turn.num_serving, turn.num_told) for turn in turns} <= {(1, 1), (2, 1)}
    assert (num_wanted(world), len(world.pods()), marked(world), budget(world)) == (1, 1, [], 0)
    assert progressing(world)[:2] == ("False", "Settled")


async def test_a_new_leader_takes_nothing_back() -> None:
    world = await settled(1, "a", "b")
    await cordon(world, "a")
    world.restart_operator()
    world.cluster.writes.clear()
    assert await world.reconcile_until_quiet() == 0


async def test_a_replica_whose_node_falls_silent_when_it_is_replaced_is_not_replaced_twice() -> None:
    world = await settled(1, "a", "b")
    (old,) = world.pods()
    await cordon(world, "a")
    world.run_controllers()
    conditions = [{"type": "Ready", "status": "False"}]
    world.cluster.put({**old, "status": {**ready_status(), "conditions": conditions}})
    turns = await take_turns(world)
    assert {turn.num_wanted for turn in turns} == {1}
    assert nodes_of(world) == ["b"]


async def test_a_replacement_that_its_node_does_not_admit_holds_up_no_drain() -> None:
    world = await settled(1, "a", "b")
    await cordon(world, "a")
    world.run_controllers()
    (new,) = [pod for pod in world.pods() if pod["spec"]["nodeName"] == "b"]
    world.cluster.put({**new, "status": {"phase": "Failed", "reason": "UnexpectedAdmissionError"}})
    await world.reconcile_until_quiet()
    assert (num_wanted(world), budget(world)) == (2, 0)


async def test_what_goes_anyway_is_not_replaced() -> None:
    world = await settled(1, "a", "b")
    world.edit(replicas=0)
    await world.reconcile_until_quiet()
    await cordon(world, "a")
    assert (num_wanted(world), progressing(world)[1]) == (0, "Scaling")
    await world.settle()
    world.cluster.writes.clear()
    await cordon(world, "b")
    assert world.cluster.writes == []


@pytest.mark.parametrize("node", ["a", "b"])
async def test_a_rollout_moves_the_replicas_itself(node: str) -> None:
    """The old ones are on a, and the first of the new ones is on b."""
    world = await settled(2, "a", "b")
    world.edit(**EDIT)
    await world.reconcile_until_quiet()
    world.run_controllers()
    before = world.deployments()
    await cordon(world, node)
    turns = await take_turns(world)
    assert sorted(before.values()) == [1, 2]
    assert max(turn.num_wanted for turn in turns) == 3
    assert min(turn.num_serving for turn in turns) >= 2
    (other,) = {"a", "b"} - {node}
    assert (nodes_of(world), num_wanted(world)) == ([other] * 2, 2)


async def test_a_replica_that_tolerates_it_stays() -> None:
    """Its replacement could land on the same node, and so could that one's, for ever."""
    world = await settled(1, "a", "b", **TOLERANT)
    (pod,) = world.pods()
    world.cluster.put({**pod, "spec": {**pod["spec"], **TOLERANT["pod"]}})
    await world.settle()
    world.cluster.writes.clear()
    await cordon(world, "a")
    assert world.cluster.writes == []


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"unschedulable": True}, "it is cordoned"),
        (
            {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]},
            "the cluster autoscaler removes it",
        ),
        ({"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]}, "Karpenter removes it"),
        ({"taints": [{"key": "nvidia.com/gpu", "effect": "NoExecute"}]}, None),
        ({}, None),
    ],
)
def test_what_tells_that_a_node_is_emptied(fields: dict[str, Any], why: str | None) -> None:
    node = {"metadata": {"name": "a"}, "spec": fields, "status": {}}
    assert find_departure(NODE.trim(node)) == why


def test_a_node_that_is_being_deleted_is_emptied() -> None:
    node = {"metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z", "labels": {}}}
    assert find_departure(NODE.trim(node)) == "it is being deleted"


async def test_a_drain_is_not_held_for_ever_where_the_replacement_cannot_even_be_asked_for() -> None:
    world = await settled(1, "a", "b")
    world.cluster.refuse = lambda obj: "no" if obj["kind"] == "Deployment" else None
    await world.reconcile_until_quiet()
    world.put_node("a", unschedulable=True)
    for _ in range(5):
        await world.reconcile()
    (budget,) = world.objects("PodDisruptionBudget")
    assert budget["spec"]["minAvailable"] == 0
