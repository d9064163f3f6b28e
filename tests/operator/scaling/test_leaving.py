"""A scale-down from its first mark to the deletion, with what gateways tell."""

import pytest

from millrace_operator.api.conditions import render_time
from millrace_operator.controller.worker import SOON
from millrace_operator.controller.writer import MARK_TRIES
from millrace_operator.kube.errors import ConflictError
from millrace_operator.observed.pods import DELETION_COST, read_pod
from millrace_operator.observed.snapshot import PodLoad
from millrace_operator.scaling.drain import DONE_COST, LEAVING_COST, SILENT_SECONDS
from millrace_operator.status.rollout_conditions import WAIT_SECONDS
from millrace_runtime.contract import ANNOTATION_LEAVING
from testing.world import World

BUSY = PodLoad(1, has_left=True)


async def settled(replicas: int) -> World:
    world = World(scaling={"mode": "External"}, replicas=replicas)
    await world.settle()
    return world


async def scale(world: World, replicas: int) -> None:
    world.edit(replicas=replicas)
    await world.settle()


def uids(world: World) -> set[str]:
    return {pod["metadata"]["uid"] for pod in world.pods()}


def marked(world: World) -> list[str]:
    return [pod.uid for pod in map(read_pod, world.pods()) if pod.is_marked]


async def test_the_last_request_is_waited_for_and_then_the_replica_goes() -> None:
    world = await settled(2)
    before = uids(world)
    world.loads = dict.fromkeys(before, BUSY)
    await scale(world, 1)
    (leaver,) = marked(world)
    assert uids(world) == before
    outcome = await world.reconcile()
    assert outcome.look_again is not None
    assert outcome.look_again <= 1.0
    world.loads[leaver] = PodLoad(0, has_left=True)
    await world.settle()
    assert uids(world) == before - {leaver}


async def test_who_waits_for_a_replica_to_go_is_told_which_and_until_when() -> None:
    world = await settled(3)
    world.loads = dict.fromkeys(uids(world), BUSY)
    await scale(world, 1)
    world.now += WAIT_SECONDS
    await world.settle()
    leavers = [pod["metadata"]["name"] for pod in world.pods() if pod["metadata"]["uid"] in marked(world)]
    found = world.condition("Progressing")
    assert (found["status"], found["reason"]) == ("True", "Scaling")
    assert found["message"] == (
        f"3 replicas are ready, and 1 is desired; pod {min(leavers)} finishes its requests and goes by "
        "2026-01-01T00:10:30Z, and 1 more"
    )
    world.loads = {}
    await world.settle()
    assert world.condition("Progressing")["message"] == "1 of 1 desired replicas are ready"


async def test_a_wait_is_told_once_and_writes_nothing_else() -> None:
    world = await settled(2)
    world.loads = dict.fromkeys(uids(world), BUSY)
    await scale(world, 1)
    world.cluster.writes.clear()
    for _ in range(100):
        world.now += 1.0
        await world.reconcile()
    assert world.cluster.writes == [("status", "InferenceService", "chat")]


async def test_a_request_without_end_holds_no_replica_for_longer_than_the_grace() -> None:
    world = await settled(2)
    world.loads = dict.fromkeys(uids(world), BUSY)
    await scale(world, 1)
    world.now += 629.0
    await world.settle()
    assert len(uids(world)) == 2
    world.now += 2.0
    await world.settle()
    assert len(uids(world)) == 1


async def test_a_gateway_that_falls_silent_later_makes_no_busy_replica_idle() -> None:
    world = await settled(2)
    world.loads = dict.fromkeys(uids(world), BUSY)
    await scale(world, 1)
    world.now += 60.0
    world.loads = dict.fromkeys(uids(world), PodLoad(1, has_left=False, silent_since=world.now))
    world.now += 60.0
    await world.settle()
    assert len(uids(world)) == 2  # the others' requests are known


async def test_gateways_are_waited_for_from_when_they_fell_silent() -> None:
    world = await settled(2)
    world.loads = dict.fromkeys(uids(world), BUSY)
    await scale(world, 1)
    world.now += 60.0
    world.loads = dict.fromkeys(uids(world), PodLoad(0, has_left=False, silent_since=world.now))
    world.restart_operator()
    await world.settle()
    assert len(uids(world)) == 2
    world.now += SILENT_SECONDS + 1.0
    await world.settle()
    assert len(uids(world)) == 1


async def test_a_mark_that_an_older_operator_took_back_in_part_is_taken_back() -> None:
    world = await settled(2)
    world.loads = dict.fromkeys(uids(world), BUSY)
    await scale(world, 1)
    for pod in world.pods():
        pod["metadata"].get("annotations", {}).pop(DELETION_COST, None)
        world.cluster.put(pod)
    await scale(world, 2)
    assert [pod for pod in world.pods() if ANNOTATION_LEAVING in pod["metadata"].get("annotations", {})] == []


def mark(world: World, uid: str, cost: str, since: float) -> None:
    """Mark a pod as another leader does."""
    pod = next(pod for pod in world.pods() if pod["metadata"]["uid"] == uid)
    annotations = {DELETION_COST: cost, ANNOTATION_LEAVING: render_time(since)}
    world.cluster.put({**pod, "metadata": {**pod["metadata"], "annotations": annotations}})


async def test_a_late_mark_changes_nothing_of_what_the_next_leader_has_marked() -> None:
    """It would take back that the replica is done, and its time would begin anew."""
    world = await settled(2)
    world.loads = dict.fromkeys(uids(world), BUSY)
    idle = min(uids(world))
    world.loads[idle] = PodLoad(0, has_left=True)
    world.edit(replicas=1)
    world.observe()
    mark(world, idle, DONE_COST, world.now)
    (before,) = [pod for pod in world.pods() if pod["metadata"]["uid"] == idle]
    world.now += 60.0
    outcome = await world.reconcile(is_stale=True)
    assert ("annotate", "Pod", before["metadata"]["name"]) in world.cluster.writes
    assert before in world.pods()
    assert outcome.retry == SOON
    others = uids(world) - {idle}
    await world.settle()
    assert uids(world) == others


async def test_a_late_mark_of_another_replica_is_taken_back_and_the_idlest_goes() -> None:
    world = await settled(3)
    world.loads = dict.fromkeys(uids(world), BUSY)
    await scale(world, 2)
    (leaver,) = marked(world)
    kept = uids(world) - {leaver}
    world.loads |= dict.fromkeys(kept, PodLoad(2, has_left=True))
    mark(world, min(kept), LEAVING_COST, world.now)
    await world.settle()
    assert marked(world) == [leaver]
    world.loads[leaver] = PodLoad(0, has_left=True)
    await world.settle()
    assert uids(world) == kept


async def test_gateways_that_tell_nothing_hold_no_replica_for_long() -> None:
    world = await settled(2)
    world.loads = None
    await scale(world, 1)
    assert len(uids(world)) == 2
    world.now += SILENT_SECONDS + 1.0
    await world.settle()
    assert len(uids(world)) == 1


@pytest.mark.parametrize("is_new_leader", [False, True])
async def test_a_replica_that_is_needed_again_never_stops(*, is_new_leader: bool) -> None:
    world = await settled(3)
    before = uids(world)
    world.loads = dict.fromkeys(before, BUSY)
    await scale(world, 1)
    assert len(marked(world)) == 2
    if is_new_leader:
        world.restart_operator()
    await scale(world, 2)
    assert len(marked(world)) == 1
    await scale(world, 3)
    assert marked(world) == []
    assert uids(world) == before


async def test_an_idle_replica_does_not_wait_for_a_busy_one() -> None:
    world = await settled(3)
    before = uids(world)
    world.loads = dict.fromkeys(before, BUSY)
    await scale(world, 1)
    idle, busy = marked(world)
    world.loads[idle] = PodLoad(0, has_left=True)
    await world.settle()
    assert uids(world) == before - {idle}
    assert marked(world) == [busy]


async def test_a_rollout_waits_for_no_request() -> None:
    world = await settled(2)
    before = uids(world)
    world.loads = dict.fromkeys(before, BUSY)
    world.edit(engine={"maxSequences": 4})
    await world.settle()
    assert not before & uids(world)


def annotate_all(world: World) -> None:
    """Write each pod as somebody else does who keeps notes there."""
    for pod in world.pods():
        notes = {**pod["metadata"].get("annotations", {}), "example.org/seen": str(world.now)}
        world.cluster.put({**pod, "metadata": {**pod["metadata"], "annotations": notes}})


def count_marks_tried(world: World) -> int:
    return sum(verb == "annotate" for verb, *_ in world.cluster.writes)


async def about_to_shrink() -> World:
    """Two busy replicas, of which one is to go, and an operator that has seen it."""
    world = await settled(2)
    world.loads = dict.fromkeys(uids(world), BUSY)
    world.edit(replicas=1)
    world.observe()
    return world


async def test_a_pod_that_others_write_before_each_mark_is_marked_in_the_same_look() -> None:
    world = await about_to_shrink()
    annotate_all(world)
    await world.reconcile(is_stale=True)
    (leaver,) = marked(world)
    world.loads = {leaver: PodLoad(0, has_left=True)}
    world.observe()
    annotate_all(world)
    await world.reconcile(is_stale=True)
    assert list(world.deployments().values()) == [1]


async def test_a_pod_that_is_another_one_at_each_try_is_tried_a_few_times_in_a_look() -> None:
    world = await about_to_shrink()
    world.cluster.faults.extend([None, *[ConflictError("409")] * 100])  # the status is written
    outcome = await world.reconcile(is_stale=True)
    assert marked(world) == []
    assert count_marks_tried(world) == MARK_TRIES
    assert outcome.retry == SOON
    world.cluster.faults.clear()
    annotate_all(world)
    await world.reconcile(is_stale=True)
    assert len(marked(world)) == 1


async def test_a_pod_that_goes_meanwhile_is_not_marked() -> None:
    world = await about_to_shrink()
    for pod in world.pods():
        leaving = {"deletionTimestamp": render_time(world.now)}
        world.cluster.put({**pod, "metadata": {**pod["metadata"], **leaving}})
    await world.reconcile(is_stale=True)
    assert count_marks_tried(world) == 1
    assert not any("annotations" in pod["metadata"] for pod in world.objects("Pod"))


async def test_a_pod_that_is_replaced_meanwhile_is_not_marked() -> None:
    world = await about_to_shrink()
    for pod in world.pods():
        world.cluster.put({**pod, "metadata": {**pod["metadata"], "uid": f"new-{pod['metadata']['uid']}"}})
    await world.reconcile(is_stale=True)
    assert count_marks_tried(world) == 1
    assert marked(world) == []
