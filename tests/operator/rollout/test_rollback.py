"""A revision that does not get ready in time is rolled back, and not tried again until the spec changes."""

from dataclasses import replace
from typing import Any

import pytest

from millrace_operator.api.conditions import render_time
from millrace_operator.kube.errors import TransientError
from millrace_operator.kube.kinds import DEPLOYMENT
from millrace_operator.rollout.choice import Progress, Trial, choose_revision
from millrace_operator.rollout.surge import RevisionState
from testing.world import BEGAN, World, crash_status, ready_status
from tests.operator.test_argocd_health import judge

EXTERNAL = {"mode": "External", "minReplicas": 1, "maxReplicas": 1}
BAD = {"engine": {"maxSequences": 4}}
GOOD = {"engine": {"maxSequences": 8}}
DEADLINE = 1800.0


async def rolled_out_badly(num_replicas: int = 2, **spec: Any) -> World:
    """A service whose new revision ends again and again."""
    world = World(scaling=EXTERNAL, replicas=num_replicas, **spec)
    await world.settle()
    world.edit(**BAD)
    await world.reconcile()
    world.broken[world.status["updateRevision"]] = crash_status("no room for the KV cache")
    await world.settle()
    return world


async def wait_for_deadline(world: World) -> None:
    world.now += DEADLINE + 60
    await world.settle()


async def test_a_revision_whose_pods_no_controller_made_is_not_to_blame() -> None:
    """The whole control plane was away, for longer than the deadline."""
    world = World(scaling=EXTERNAL, replicas=2)
    await world.settle()
    world.edit(**GOOD)
    await world.reconcile()
    asked = world.status["updateRevision"]
    assert not world.pods(asked)
    world.now += DEADLINE + 60
    world.restart_operator()
    await world.settle()
    assert "rejectedRevision" not in world.status
    assert world.deployments() == {asked: 2}


async def test_while_no_controller_makes_its_pods_nothing_is_written() -> None:
    world = World(scaling=EXTERNAL, replicas=2)
    await world.reconcile_until_quiet()
    num_writes = len(world.cluster.writes)
    for _ in range(5):
        world.now += 120
        await world.reconcile_until_quiet()
    assert len(world.cluster.writes) == num_writes


async def test_a_pod_that_controllers_made_late_has_its_whole_time() -> None:
    """They were away for longer than the deadline, and came back while no operator ran."""
    world = World(scaling=EXTERNAL, replicas=2)
    await world.settle()
    world.edit(**GOOD)
    await world.reconcile()
    asked = world.status["updateRevision"]
    world.broken[asked] = crash_status("no room for the KV cache")
    world.now += DEADLINE + 60
    world.run_controllers()
    world.restart_operator()
    await world.settle()
    assert world.pods(asked)
    assert "rejectedRevision" not in world.status
    world.now += DEADLINE + 60
    await world.settle()
    assert world.status["rejectedRevision"]["revision"] == asked


async def test_one_whose_pods_a_quota_refuses_is_judged() -> None:
    world = World(scaling=EXTERNAL, replicas=2, rollout={"strategy": "Surge"})
    world.quota = 2
    await world.settle()
    stable = world.status["currentRevision"]
    world.edit(**GOOD)
    await world.settle()
    assert not world.pods(world.status["updateRevision"])
    await wait_for_deadline(world)
    assert world.status["rejectedRevision"]["revision"] == world.status["updateRevision"]
    assert world.deployments() == {stable: 2}


@pytest.mark.parametrize(
    ("facts", "is_judged"),
    [
        ({"num_pods": 1, "num_ready": 1}, False),
        ({"num_pods": 1, "num_ready": 0}, True),
        ({"num_pods": 0, "num_ended": 1}, True),
        ({"num_pods": 0, "lacks_room": True}, True),
    ],
)
def test_missing_pods_are_the_controllers_turn_where_no_pod_of_the_revision_fails(
    facts: dict[str, Any], *, is_judged: bool
) -> None:
    started = render_time(BEGAN)
    rollout = {"revision": ASKED, "startedAt": started, "progressedAt": started, "readyReplicas": 1}
    progress = Progress.read(
        rollout, RevisionState(ASKED, num_wanted=2, **facts), BEGAN + 9e3, deadline=DEADLINE
    )
    assert (progress.seconds_left(DEADLINE) <= 0) == is_judged


@pytest.mark.parametrize("seconds", [59, 60, 9999])
def test_no_deadline_passes_while_all_that_was_asked_for_is_ready(seconds: float) -> None:
    """As while an old replica finishes its streams: the operator asks for the next one after that."""
    started = render_time(BEGAN)
    rollout = {"revision": ASKED, "startedAt": started, "progressedAt": started, "readyReplicas": 1}
    state = RevisionState(ASKED, num_wanted=1, num_pods=1, num_ready=1, newest_at=BEGAN)
    assert Progress.read(rollout, state, BEGAN + seconds, deadline=30).seconds_left(30) > 0


@pytest.mark.parametrize("deadline", [10.0, 20.0, 30.0, 60.0, 90.0, DEADLINE])
def test_the_time_of_the_operators_turn_is_not_the_revisions_when_that_ends(deadline: float) -> None:
    """As where one probe of a ready replica fails once."""
    started = render_time(BEGAN)
    rollout: dict[str, Any] = {"revision": ASKED, "startedAt": started, "progressedAt": started}
    ready = RevisionState(ASKED, num_wanted=1, num_pods=1, num_ready=1, newest_at=BEGAN - deadline)
    failed = replace(ready, num_ready=0)
    now, num_written = BEGAN, 0
    while now < BEGAN + 2 * deadline:
        progress = Progress.read(rollout, ready, now, deadline=deadline)
        num_written += progress.render() != rollout
        rollout = progress.render()
        assert progress.noted_after is not None
        now += progress.noted_after + 1
        left = Progress.read(rollout, failed, now, deadline=deadline).seconds_left(deadline)
        assert left >= deadline / 2 - 2, f"after {now - BEGAN} s"
    assert num_written <= 2 + 2 * deadline / min(60, deadline / 2)


async def test_a_look_is_due_when_the_operators_turn_is_to_be_written_down() -> None:
    """As while the next replica is refused, so that nothing happens."""
    world = World(scaling=EXTERNAL, replicas=2, rollout={"progressDeadline": "30s"})
    await world.settle()
    world.edit(**GOOD)
    await world.reconcile()
    world.run_controllers()
    world.cluster.refuse = lambda obj: "no more" if obj["kind"] == DEPLOYMENT.kind else None
    for _ in range(3):
        look = (await world.reconcile()).look_again
    assert look is not None
    assert look <= 16
    before, world.now = world.status["rollout"]["progressedAt"], world.now + look
    await world.reconcile()
    assert world.status["rollout"]["progressedAt"] == render_time(world.now) != before


def uids(world: World) -> set[str]:
    return {pod["metadata"]["uid"] for pod in world.pods()}


async def test_it_goes_back_to_what_served_without_touching_it() -> None:
    world = await rolled_out_badly()
    stable, bad = world.status["currentRevision"], world.status["updateRevision"]
    serving = {pod["metadata"]["uid"] for pod in world.pods(stable)}
    await wait_for_deadline(world)
    assert world.deployments() == {stable: 2}
    assert uids(world) == serving
    assert (world.status["currentRevision"], world.status["updateRevision"]) == (stable, bad)
    assert world.status["rejectedRevision"]["revision"] == bad
    degraded = world.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "RolledBack")
    assert "no room for the KV cache" in degraded["message"]
    assert world.condition("Ready")["status"] == "True"
    assert world.condition("Progressing")["status"] == "False"
    assert world.condition("ModelReady")["reason"] == "RolledBack"
    assert "rollout" not in world.status
    assert judge(world.service)[0] == "Degraded"


async def test_it_is_not_tried_again_by_time_or_by_another_leader() -> None:
    world = await rolled_out_badly()
    await wait_for_deadline(world)
    world.broken.clear()
    for _ in range(5):
        world.now += 5 * DEADLINE
        world.restart_operator()
        await world.settle()
    assert list(world.deployments()) == [world.status["currentRevision"]]


async def test_another_spec_is_tried_and_the_same_one_after_that() -> None:
    world = await rolled_out_badly()
    bad = world.status["updateRevision"]
    await wait_for_deadline(world)
    world.edit(**GOOD)
    await world.settle()
    assert world.status["currentRevision"] == world.status["updateRevision"] != bad
    assert "rejectedRevision" not in world.status
    assert world.condition("Degraded")["status"] == "False"
    world.broken.clear()
    world.edit(**BAD)
    await world.settle()
    assert world.status["currentRevision"] == bad


async def test_a_revert_after_it_touches_no_pod() -> None:
    world = await rolled_out_badly()
    await wait_for_deadline(world)
    serving = uids(world)
    world.edit(engine={})
    await world.settle()
    assert uids(world) == serving
    assert "rejectedRevision" not in world.status
    assert world.condition("Degraded")["status"] == "False"


async def test_replicas_that_made_room_come_back() -> None:
    world = World(scaling=EXTERNAL, replicas=2, rollout={"strategy": "Replace"})
    await world.settle()
    world.capacity = 2
    world.edit(**BAD)
    await world.reconcile()
    world.broken[world.status["updateRevision"]] = crash_status("no room for the KV cache")
    await world.settle()
    assert sum(pod["status"] == ready_status() for pod in world.pods()) == 1
    await wait_for_deadline(world)
    assert sum(pod["status"] == ready_status() for pod in world.pods()) == 2


async def test_what_was_rolled_back_scales() -> None:
    world = await rolled_out_badly()
    await wait_for_deadline(world)
    world.edit(replicas=4)
    await world.settle()
    assert world.deployments() == {world.status["currentRevision"]: 4}
    assert world.condition("Degraded")["reason"] == "RolledBack"


async def test_another_way_to_roll_out_is_another_try() -> None:
    """Without room it waited, and was given up; its owner then lets the old replica make room."""
    world = World(scaling=EXTERNAL, replicas=1)
    await world.settle()
    world.capacity = 1
    world.edit(**BAD)
    await world.settle()
    await wait_for_deadline(world)
    assert world.condition("Degraded")["reason"] == "RolledBack"
    assert "Insufficient nvidia.com/gpu" in world.condition("Degraded")["message"]
    world.edit(replicas=1, scaling=EXTERNAL)
    await world.settle()
    assert "rejectedRevision" in world.status
    world.edit(rollout={"strategy": "Replace"})
    await world.settle()
    assert world.status["currentRevision"] == world.status["updateRevision"]
    assert "rejectedRevision" not in world.status


async def test_never_is_the_owners_choice() -> None:
    world = await rolled_out_badly(rollout={"rollback": "Never"})
    await wait_for_deadline(world)
    assert len(world.deployments()) == 2
    assert world.condition("Degraded")["status"] == "True"
    assert "rejectedRevision" not in world.status


async def test_a_first_revision_has_nothing_to_go_back_to() -> None:
    world = World(scaling=EXTERNAL, replicas=1)
    await world.reconcile()
    world.broken[world.status["updateRevision"]] = crash_status("no such model")
    await world.settle()
    await wait_for_deadline(world)
    assert len(world.pods()) == 1
    assert "rejectedRevision" not in world.status


async def test_a_rollout_that_goes_on_is_not_late_however_long_it_takes() -> None:
    """The deadline counts from the last replica that became ready, as a Deployment's does."""
    world = World(scaling=EXTERNAL, replicas=4)
    await world.settle()
    world.edit(**BAD)
    began = world.now
    for _ in range(12):
        world.now += DEADLINE / 2
        await world.reconcile_until_quiet()
        world.run_controllers()
    await world.settle()
    assert world.now - began > 2 * DEADLINE
    assert world.status["currentRevision"] == world.status["updateRevision"]
    assert "rejectedRevision" not in world.status


@pytest.mark.parametrize(("deadline", "seconds"), [("30m", 3 * DEADLINE), ("20s", 40)])
async def test_time_without_an_operator_is_not_the_revisions(deadline: str, seconds: float) -> None:
    """It tells of the first replica, and dies before it asks for the second."""
    world = World(scaling=EXTERNAL, replicas=3, rollout={"progressDeadline": deadline})
    await world.settle()
    world.edit(**BAD)
    await world.reconcile_until_quiet()
    world.run_controllers()
    world.cluster.faults.extend([None, TransientError("the operator died here")])
    with pytest.raises(TransientError):
        await world.reconcile()
    assert world.status["rollout"]["readyReplicas"] == 1
    world.cluster.faults.clear()
    world.now += seconds
    world.restart_operator()
    await world.settle()
    assert world.status["currentRevision"] == world.status["updateRevision"]
    assert "rejectedRevision" not in world.status


async def test_a_revision_that_got_no_pod_before_its_operator_died_is_tried() -> None:
    """The operator dies between its decision and the first child. The next one comes after the deadline."""
    world = World(scaling=EXTERNAL, replicas=1, rollout={"progressDeadline": "10s"})
    await world.settle()
    world.edit(**GOOD)
    world.cluster.faults.extend([None, TransientError("the operator died here")])
    with pytest.raises(TransientError):
        await world.reconcile()
    world.cluster.faults.clear()
    world.now += 20
    world.restart_operator()
    await world.settle()
    assert world.status["currentRevision"] == world.status["updateRevision"]
    assert "rejectedRevision" not in world.status


STABLE, ASKED = "stable", "asked"


@pytest.mark.parametrize(
    ("ready_before", "ready", "seconds", "chosen"),
    [(0, 0, 1799, ASKED), (0, 0, 1800, STABLE), (1, 2, 9999, ASKED), (2, 1, 9999, STABLE)],
)
def test_the_choice(ready_before: int, ready: int, seconds: int, chosen: str) -> None:
    stamp = "2026-01-01T00:00:00Z"
    rollout = {"revision": ASKED, "startedAt": stamp, "progressedAt": stamp, "readyReplicas": ready_before}
    state = RevisionState(ASKED, num_wanted=3, num_pods=3, num_ready=ready)
    progress = Progress.read(rollout, state, BEGAN + seconds, deadline=DEADLINE)
    choice = choose_revision(ASKED, STABLE, {"rollout": rollout}, progress, Trial(DEADLINE, "way"))
    assert choice.chosen == chosen
    assert (choice.rejected is not None) is (chosen == STABLE)


async def test_the_model_that_is_told_is_the_one_that_runs() -> None:
    world = await rolled_out_badly()
    world.edit(model={"uri": "file:///models/other", "servedName": "other"})
    await world.reconcile()
    world.broken[world.status["updateRevision"]] = crash_status()
    await world.settle()
    assert (world.status["model"]["servedName"], world.status["model"]["uri"]) == (
        "other",
        "file:///models/other",
    )
    await wait_for_deadline(world)
    told = world.status["model"]
    assert (told["servedName"], told["uri"]) == ("chat", "file:///models/stories")
