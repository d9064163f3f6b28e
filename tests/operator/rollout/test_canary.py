"""A new revision proves itself on a few replicas, and then gets all of them, or none."""

from typing import Any

import pytest
from pydantic import ValidationError

from millrace_operator.api.annotations import ROLLOUT_ANNOTATION
from millrace_operator.api.rollout_types import CanaryOptions, RolloutStrategy
from millrace_operator.rollout.canary import count_canary
from millrace_operator.rollout.surge import Method, RevisionState, plan_rollout
from testing.world import World, crash_status, ready_status
from tests.operator.test_argocd_health import judge

EXTERNAL = {"mode": "External", "minReplicas": 1, "maxReplicas": 1}
NEW = {"engine": {"maxSequences": 4}}
DURATION = 600.0
DEADLINE = 1800.0


async def served(num_replicas: int, *, canary: Any = None, **rollout: Any) -> World:
    world = World(scaling=EXTERNAL, replicas=num_replicas, rollout={"canary": canary or {}, **rollout})
    await world.settle()
    return world


async def served_with_canary(num_replicas: int = 4, *, canary: Any = None, **rollout: Any) -> World:
    world = await served(num_replicas, canary=canary, **rollout)
    world.edit(**NEW)
    await world.settle()
    return world


def counts(world: World) -> tuple[int, int]:
    """Replicas of the revision that served, and of the one that the spec asks for."""
    deployments = world.deployments()
    stable, asked = world.status["currentRevision"], world.status["updateRevision"]
    return deployments.get(stable, 0), deployments.get(asked, 0)


def order(world: World, action: str | None) -> None:
    metadata = {key: value for key, value in world.service["metadata"].items() if key != "annotations"}
    text = f"{action} {world.status['updateRevision']}"
    beside = {} if action is None else {"annotations": {ROLLOUT_ANNOTATION: text}}
    world.cluster.put({**world.service, "metadata": {**metadata, **beside}})


def uids(world: World, revision: str | None = None) -> set[str]:
    return {pod["metadata"]["uid"] for pod in world.pods(revision)}


def is_whole(world: World) -> bool:
    return world.status["currentRevision"] == world.status["updateRevision"] and len(world.deployments()) == 1


def set_pods(world: World, status: dict[str, Any]) -> None:
    """Let the canary's pods say this."""
    for pod in world.pods(world.status["updateRevision"]):
        world.cluster.put({**pod, "status": status})


async def test_it_is_promoted_after_its_duration_and_no_pod_of_it_restarts() -> None:
    world = await served_with_canary()
    assert counts(world) == (3, 1)
    assert world.condition("Progressing")["reason"] == "Canary"
    assert judge(world.service)[0] == "Progressing"
    assert world.condition("Degraded")["status"] == "False"
    canary = uids(world, world.status["updateRevision"])
    world.now += DURATION / 2
    await world.settle()
    assert counts(world) == (3, 1)
    wait = (await world.reconcile()).look_again
    assert wait is not None
    assert DURATION / 2 <= wait <= DURATION / 2 + 2
    world.now += wait
    await world.settle()
    assert is_whole(world)
    assert canary <= uids(world)
    assert "rollout" not in world.status


async def test_fewer_than_desired_never_serve_and_the_only_one_stays_beside_its_canary() -> None:
    world = await served_with_canary(1)
    assert counts(world) == (1, 1)
    assert world.status["replicas"] == 1
    world.now += DURATION + 1
    await world.settle()
    assert is_whole(world)


async def test_the_status_is_not_written_while_time_goes_on() -> None:
    world = await served_with_canary(canary={"promotion": "Manual"})
    before = {**world.status, "scaling": None}  # its evidence has a time of its own
    for _ in range(48):
        world.now += 3600
        await world.settle()
        assert {**world.status, "scaling": None} == before
    assert counts(world) == (3, 1)


async def test_by_hand_it_waits_for_its_owner_and_argo_cd_says_so() -> None:
    world = await served_with_canary(canary={"promotion": "Manual"})
    world.now += 10 * DEADLINE
    await world.settle()
    progressing = world.condition("Progressing")
    assert progressing["reason"] == "AwaitingPromotion"
    assert "kubectl millrace promote chat" in progressing["message"]
    assert judge(world.service) == ("Suspended", progressing["message"])
    order(world, "promote")
    await world.settle()
    assert is_whole(world)


async def test_a_promotion_holds_when_its_annotation_goes() -> None:
    world = await served_with_canary(canary={"promotion": "Manual"})
    order(world, "promote")
    await world.reconcile()
    order(world, None)
    world.restart_operator()
    await world.settle()
    assert is_whole(world)


async def test_an_order_for_another_revision_says_nothing() -> None:
    world = await served_with_canary(canary={"promotion": "Manual"})
    order(world, "promote")
    await world.settle()
    world.edit(engine={"maxSequences": 8})
    await world.settle()
    assert counts(world) == (3, 1)


async def test_one_that_ends_by_itself_is_rolled_back_at_once() -> None:
    world = await served_with_canary()
    stable = world.status["currentRevision"]
    serving = uids(world, stable)
    set_pods(world, crash_status("CUDA error: an illegal memory access"))
    await world.settle()
    assert world.deployments() == {stable: 4}
    assert serving <= uids(world)
    degraded = world.condition("Degraded")
    assert degraded["reason"] == "RolledBack"
    assert "failed as a canary" in degraded["message"]
    assert "illegal memory access" in degraded["message"]
    assert world.status["rejectedRevision"]["reason"] == "CanaryFailed"
    world.now += 10 * DEADLINE
    await world.settle()
    assert world.deployments() == {stable: 4}


async def test_a_node_that_is_lost_is_not_its_fault() -> None:
    world = await served_with_canary()
    lost = {"conditions": [{"type": "Ready", "status": "False"}], "containerStatuses": []}
    world.now += DURATION / 2
    set_pods(world, lost)
    await world.settle()
    assert "rejectedRevision" not in world.status
    set_pods(world, ready_status())
    await world.settle()
    world.now += DURATION - 10
    await world.settle()
    assert counts(world) == (3, 1)
    world.now += 20
    await world.settle()
    assert is_whole(world)


async def test_after_days_a_lost_replica_has_the_whole_deadline_to_come_back() -> None:
    world = await served_with_canary(canary={"promotion": "Manual"})
    world.now += 100 * DEADLINE
    set_pods(world, {"conditions": [{"type": "Ready", "status": "False"}], "containerStatuses": []})
    await world.settle()
    world.now += DEADLINE / 2
    await world.settle()
    assert "rejectedRevision" not in world.status
    world.now += DEADLINE
    await world.settle()
    assert world.status["rejectedRevision"]["reason"] == "DeadlineExceeded"


async def test_one_that_never_serves_is_rolled_back_at_the_deadline() -> None:
    world = await served(4)
    world.edit(**NEW)
    await world.reconcile()
    world.broken[world.status["updateRevision"]] = crash_status("no such model")
    await world.settle()
    assert counts(world) == (4, 1)
    world.now += DEADLINE + 60
    await world.settle()
    assert world.status["rejectedRevision"]["reason"] == "DeadlineExceeded"
    assert counts(world) == (4, 0)


async def test_an_abort_rolls_back_also_where_the_owner_wants_no_rollback() -> None:
    world = await served_with_canary(canary={"promotion": "Manual"}, rollback="Never")
    stable = world.status["currentRevision"]
    serving = uids(world, stable)
    order(world, "abort")
    await world.settle()
    assert world.deployments() == {stable: 4}
    assert serving <= uids(world)
    assert "was aborted" in world.condition("Degraded")["message"]
    order(world, None)
    await world.settle()
    assert world.deployments() == {stable: 4}


async def test_an_abort_needs_no_canary() -> None:
    world = World(scaling=EXTERNAL, replicas=2)
    await world.settle()
    world.edit(**NEW)
    await world.reconcile()
    order(world, "abort")
    await world.settle()
    assert counts(world) == (2, 0)


async def test_a_first_revision_can_not_be_aborted() -> None:
    world = World(scaling=EXTERNAL, replicas=2, rollout={"canary": {}})
    await world.reconcile()
    order(world, "abort")
    await world.settle()
    assert is_whole(world)


async def test_what_was_given_up_is_tried_again_when_it_is_promoted_and_only_once() -> None:
    world = await served_with_canary()
    bad = world.status["updateRevision"]
    set_pods(world, crash_status("boom"))
    world.broken[bad] = crash_status("boom")
    await world.settle()
    order(world, "promote")
    await world.settle()
    assert bad in world.deployments()
    assert "rejectedRevision" not in world.status
    world.now += DEADLINE + 60
    await world.settle()
    for _ in range(4):
        world.now += DEADLINE
        await world.settle()
    assert bad not in world.deployments()


async def test_a_promoted_one_that_recovers_gets_all() -> None:
    world = await served_with_canary()
    set_pods(world, crash_status("boom"))
    await world.settle()
    order(world, "promote")
    await world.settle()
    assert is_whole(world)


async def test_a_revert_keeps_the_pods_that_serve_and_needs_no_canary() -> None:
    world = await served_with_canary()
    serving = uids(world, world.status["currentRevision"])
    world.edit(engine={})
    await world.settle()
    assert is_whole(world)
    assert serving <= uids(world)
    assert len(uids(world)) == 4


async def test_another_edit_is_another_canary() -> None:
    world = await served_with_canary()
    world.now += DURATION - 10
    await world.settle()
    world.edit(engine={"maxSequences": 8})
    await world.settle()
    world.now += 20
    await world.settle()
    assert counts(world) == (3, 1)
    assert sum(world.deployments().values()) == 4


async def test_its_time_does_not_begin_anew_with_another_leader_or_another_count() -> None:
    world = await served_with_canary(canary={"replicas": "25%"})
    world.now += DURATION / 2
    world.restart_operator()
    world.edit(replicas=8)
    await world.settle()
    assert counts(world) == (6, 2)
    world.now += DURATION / 2 + 1
    await world.settle()
    assert is_whole(world)
    assert len(world.pods()) == 8


async def test_without_room_an_old_replica_goes_first_and_the_rest_stay() -> None:
    world = await served(4)
    world.capacity = 4
    world.edit(**NEW)
    await world.settle()
    world.now += 400
    await world.settle()
    assert counts(world) == (3, 1)
    assert sum(pod["status"] == ready_status() for pod in world.pods()) == 4


async def test_a_single_replica_that_made_room_is_rolled_back_from_its_record() -> None:
    world = await served_with_canary(1, strategy="Replace")
    stable = world.status["currentRevision"]
    assert counts(world) == (0, 1)
    assert "beside" not in world.condition("Progressing")["message"]
    set_pods(world, crash_status())
    await world.settle()
    assert world.deployments() == {stable: 1}


async def test_a_single_one_that_made_room_has_its_time_and_more_are_of_the_old_revision() -> None:
    world = await served_with_canary(1, strategy="Replace")
    world.edit(replicas=4)
    await world.settle()
    assert counts(world) == (3, 1)
    world.now += DURATION + 1
    await world.settle()
    assert is_whole(world)


async def test_at_zero_there_is_none() -> None:
    world = await served_with_canary()
    world.edit(replicas=0)
    await world.settle()
    assert not world.pods()
    world.edit(replicas=2)
    await world.settle()
    assert sum(pod["status"] == ready_status() for pod in world.pods()) == 2


async def test_an_order_that_nobody_can_read_is_told() -> None:
    world = await served_with_canary()
    metadata = {**world.service["metadata"], "annotations": {ROLLOUT_ANNOTATION: "promote, please"}}
    world.cluster.put({**world.service, "metadata": metadata})
    await world.settle()
    assert "write for example 'promote 5f6c0a91d2'" in world.condition("Progressing")["message"]
    assert counts(world) == (3, 1)


@pytest.mark.parametrize(
    ("replicas", "desired", "count"),
    [(1, 4, 1), (3, 2, 2), ("10%", 4, 1), ("30%", 10, 3), ("31%", 10, 4), ("100%", 3, 3), ("7", 9, 7)],
)
def test_the_number_of_replicas(replicas: int | str, desired: int, count: int) -> None:
    assert count_canary(CanaryOptions(replicas=replicas), desired) == count


@pytest.mark.parametrize("options", [{"replicas": 0}, {"replicas": "a few"}, {"duration": "soon"}])
def test_what_says_nothing_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CanaryOptions.model_validate(options)


@pytest.mark.parametrize("strategy", list(RolloutStrategy))
@pytest.mark.parametrize("desired", range(1, 7))
@pytest.mark.parametrize("most", range(1, 4))
def test_the_others_keep_the_rest_whatever_is_ready(
    strategy: RolloutStrategy, desired: int, most: int
) -> None:
    """From any step on, the canary gets its replicas and no more, and the others keep what is left."""
    most, method = min(most, desired), Method.SURGE
    least = 0 if strategy is RolloutStrategy.REPLACE else 1
    old = RevisionState("old", desired, desired, desired, desired)
    new = RevisionState("new")
    for _ in range(20):
        step = plan_rollout(desired, new, [old], method, strategy, most=most)
        method, wanted = step.method, step.counts["new"]
        kept = step.counts.get("old", 0)
        assert kept >= max(desired - most, least)
        assert wanted <= most
        assert kept + wanted <= desired + 1
        old, new = (RevisionState(name, n, n, n, n) for name, n in (("old", kept), ("new", wanted)))
    assert (old.num_ready, new.num_ready) == (max(desired - most, least), most)
