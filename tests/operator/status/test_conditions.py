"""What conditions say, in whole sequences, and what Argo CD makes of it."""

from typing import Any

import pytest

from millrace_operator.api.conditions import render_time
from millrace_runtime import contract
from testing.world import World, crash_status, make_pod, ready_status
from tests.operator.rollout.test_evacuation import cordon, names, progressing, settled
from tests.operator.test_argocd_health import judge

EXTERNAL = {"mode": "External", "minReplicas": 1, "maxReplicas": 1}
EDIT = {"engine": {"maxSequences": 4}}
DEADLINE = 1800.0


def health(world: World) -> str:
    return judge(world.service)[0]


def container(**state: Any) -> dict[str, Any]:
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"}
    replica = {"name": "replica", "started": False, "state": state}
    return {"phase": "Pending", "conditions": [placed], "containerStatuses": [replica]}


LOADING = container(running={})
CREATING = container(waiting={"reason": "ContainerCreating"})


async def new_with_pods(status: dict[str, Any], **spec: Any) -> World:
    """A new service whose first pod gets this far, and no further."""
    world = World(scaling=EXTERNAL, replicas=1, **spec)
    await world.reconcile()
    world.broken[world.status["updateRevision"]] = status
    await world.settle()
    return world


async def test_a_pod_whose_image_is_being_pulled_loads_no_model() -> None:
    world = await new_with_pods(CREATING)
    ready = world.condition("Ready")
    assert ready["reason"] == "Starting"
    assert "its container is being created" in ready["message"]
    assert health(world) == "Progressing"


async def test_a_pod_that_runs_loads_the_model() -> None:
    world = await new_with_pods(LOADING)
    assert world.condition("Ready")["reason"] == "Loading"


async def test_ten_minutes_of_loading_are_progress() -> None:
    world = await new_with_pods(LOADING)
    world.now += 600.0
    await world.settle()
    assert health(world) == "Progressing"


async def test_a_pod_that_its_node_does_not_admit_is_told_with_the_nodes_words() -> None:
    world = World(scaling=EXTERNAL, replicas=1)
    await world.reconcile()
    world.capacity = 0
    await world.settle()
    words = "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu"
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": words}
    revision = world.status["updateRevision"]
    world.cluster.put(make_pod("chat-refused", revision, **status))
    await world.reconcile()
    degraded = world.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "PodFailed")
    assert f"a pod failed: UnexpectedAdmissionError: {words}" in degraded["message"]


async def test_pods_that_ended_behind_enough_ready_ones_are_history() -> None:
    world = World(scaling=EXTERNAL, replicas=2)
    await world.settle()
    world.cluster.put(make_pod("old", world.status["currentRevision"], phase="Failed", reason="Evicted"))
    await world.settle()
    assert world.condition("Degraded")["status"] == "False"
    assert health(world) == "Healthy"


async def test_at_zero_nothing_progresses_and_no_revision_that_never_ran_is_the_current_one() -> None:
    world = World(scaling=EXTERNAL, replicas=1)
    await world.settle()
    ran = world.status["currentRevision"]
    world.edit(replicas=0)
    await world.settle()
    world.edit(**EDIT)
    await world.settle()
    assert world.status["updateRevision"] != ran
    assert world.status["currentRevision"] == ran
    assert "rollout" not in world.status
    assert world.condition("Progressing")["status"] == "False"
    assert health(world) == "Suspended"
    world.now += 2 * DEADLINE
    await world.settle()
    assert health(world) == "Suspended"
    world.edit(replicas=1)
    await world.settle()
    assert world.status["currentRevision"] == world.status["updateRevision"]
    assert health(world) == "Healthy"


async def test_a_new_service_at_zero_is_suspended() -> None:
    world = World(scaling=EXTERNAL, replicas=0)
    await world.settle()
    assert health(world) == "Suspended"
    assert "currentRevision" not in world.status


async def test_who_waits_for_the_end_of_a_rollout_is_not_told_that_a_failed_one_ended() -> None:
    """`kubectl wait --for=condition=Progressing=false` is how people wait for a rollout."""
    world = World(scaling=EXTERNAL, replicas=1, rollout={"rollback": "Never"})
    await world.settle()
    world.edit(**EDIT)
    await world.reconcile()
    world.broken[world.status["updateRevision"]] = LOADING
    await world.settle()
    world.now += DEADLINE + 60
    await world.settle()
    progressing = world.condition("Progressing")
    assert (progressing["status"], progressing["reason"]) == ("True", "DeadlineExceeded")
    assert health(world) == "Degraded"


async def test_a_bad_revision_behind_healthy_pods_is_degraded() -> None:
    world = World(scaling=EXTERNAL, replicas=2)
    await world.settle()
    world.edit(**EDIT)
    await world.reconcile()
    world.broken[world.status["updateRevision"]] = crash_status("no such model", code=65)
    await world.settle()
    assert world.condition("Ready")["status"] == "True"
    assert health(world) == "Degraded"


async def test_the_budget_counts_replicas_of_all_revisions() -> None:
    """In the middle of a rollout the old ones alone would be too few, and the new ones unprotected."""
    world = World(scaling=EXTERNAL, replicas=4)
    await world.settle()
    world.edit(**EDIT)
    for _ in range(3):
        await world.reconcile_until_quiet()
        world.run_controllers()
    revisions = {pod["metadata"]["labels"][contract.LABEL_REVISION] for pod in world.pods()}
    assert len(revisions) == 2
    (budget,) = world.objects("PodDisruptionBudget")
    assert budget["spec"]["minAvailable"] == 3
    selector = budget["spec"]["selector"]["matchLabels"]
    assert contract.LABEL_REVISION not in selector
    assert selector[contract.LABEL_SERVICE] == "chat"
    assert sum(pod["status"] == ready_status() for pod in world.pods()) >= 4


@pytest.mark.parametrize("deadline", ["60s", "30m", "30h"])
async def test_no_pod_is_ended_for_a_slow_start_that_its_owner_gave_more_time(deadline: str) -> None:
    """The probe is frozen in the pod and the deadline is not, so the probe must never be what judges."""
    world = World(scaling=EXTERNAL, replicas=1, rollout={"progressDeadline": deadline})
    await world.settle()
    frozen = world.objects("Deployment")
    (pod,) = frozen[0]["spec"]["template"]["spec"]["containers"]
    probe = pod["startupProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] == 7 * 24 * 3600
    world.edit(rollout={"progressDeadline": "90h"})
    await world.settle()
    assert world.objects("Deployment") == frozen


async def test_a_replica_that_loads_for_too_long_outside_a_rollout_is_trouble() -> None:
    world = World(scaling=EXTERNAL, replicas=1)
    await world.settle()
    loading = {"containerStatuses": [{"name": "replica", "started": False, "state": {"running": {}}}]}
    world.broken[world.status["currentRevision"]] = {"phase": "Running", **loading}
    world.edit(replicas=2)
    await world.settle()
    assert world.condition("Degraded")["status"] == "False"
    look = (await world.reconcile()).look_again
    assert look is not None
    world.now += look + 1.0
    await world.settle()
    degraded = world.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "DeadlineExceeded")
    assert "progressDeadline (30m)" in degraded["message"]
    assert world.condition("Ready")["status"] == "True"


async def test_the_time_that_a_replica_waited_for_a_node_is_no_time_of_loading() -> None:
    world = World(scaling=EXTERNAL, replicas=1)
    await world.settle()
    world.capacity = 1
    world.edit(replicas=2)
    await world.settle()
    world.now += 2400
    await world.settle()
    assert world.condition("Degraded")["reason"] == "Unschedulable"
    began = {"running": {"startedAt": render_time(world.now)}}
    loading = {"containerStatuses": [{"name": "replica", "started": False, "state": began}]}
    world.broken[world.status["currentRevision"]] = {"phase": "Running", **loading}
    world.capacity = 2
    await world.settle()
    world.now += 60
    await world.settle()
    assert world.condition("Degraded")["status"] == "False"
    world.now += 1800
    await world.settle()
    assert world.condition("Degraded")["reason"] == "DeadlineExceeded"


async def test_a_pod_that_served_for_long_and_failed_lately_is_told() -> None:
    world = World(scaling=EXTERNAL, replicas=1)
    await world.settle()
    world.now += 3600
    world.capacity = 0
    (pod,) = world.pods()
    gone = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": render_time(world.now)}
    status = {"phase": "Failed", "reason": "Evicted", "message": "low on memory", "conditions": [gone]}
    world.cluster.put({**pod, "status": status})
    world.now += 500
    await world.settle()
    degraded = world.condition("Degraded")
    assert degraded["reason"] == "PodFailed"
    assert "low on memory" in degraded["message"]
    look = (await world.reconcile()).look_again
    assert look is not None
    assert look <= 101
    world.now += 101
    await world.settle()
    assert world.condition("Degraded")["reason"] != "PodFailed"


async def test_who_waits_for_a_replacement_is_told_which_pod_it_is() -> None:
    world = await settled(1, "a", "b")
    (name,) = names(world.pods())
    world.broken[world.status["currentRevision"]] = LOADING
    await cordon(world, "a")
    await world.settle()
    (new,) = set(names(world.pods())) - {name}
    told = (
        f"replica {name} is replaced, as node a is being emptied (it is cordoned); pod {new} takes its place"
    )
    assert progressing(world)[2] == f"{told} once it is Ready"
