"""The planner with its loop, in a world of fakes: whole sequences, and every way to be interrupted."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_operator.api.conditions import render_time
from millrace_operator.controller.worker import SOON
from millrace_operator.kube.errors import ClusterError, ConflictError, RefusedError, TransientError
from millrace_operator.kube.kinds import CHILDREN, INFERENCE_SERVICE, JOB, POD, SERVICE, Kind
from millrace_operator.observed.snapshot import Advice, PodLoad
from millrace_runtime import contract
from testing.world import KEY, World, crash_status, ready_status

READY = {"type": "Ready", "status": "True"}
EXTERNAL = {"mode": "External", "minReplicas": 1, "maxReplicas": 1}


async def started(num_replicas: int = 1) -> World:
    world = World(scaling=EXTERNAL, replicas=num_replicas)
    await world.settle()
    return world


async def test_a_new_service_gets_its_children_and_becomes_ready() -> None:
    world = World()
    await world.settle()
    assert [kind for kind in CHILDREN if not world.objects(kind.kind)] == [JOB]
    assert world.condition("Ready")["status"] == "True"
    assert world.condition("Degraded")["status"] == "False"
    assert world.condition("Progressing")["reason"] == "Settled"
    assert world.status["currentRevision"] == world.status["updateRevision"]
    assert "rollout" not in world.status


async def test_nothing_is_written_when_nothing_changed_even_after_a_restart() -> None:
    world = await started()
    world.restart_operator()
    assert await world.reconcile_until_quiet() == 0


async def test_the_decision_is_in_status_before_a_deployment_follows_it() -> None:
    world = await started()
    world.cluster.writes.clear()
    world.edit(replicas=3)
    await world.reconcile()
    assert [kind for _, kind, _ in world.cluster.writes][:2] == ["InferenceService", "Deployment"]


@pytest.mark.parametrize("kind", CHILDREN, ids=lambda kind: kind.kind)
async def test_a_child_deleted_by_hand_comes_back(kind: Kind) -> None:
    world = await started()
    names = {child["metadata"]["name"] for child in world.objects(kind.kind)}
    for name in names:
        world.cluster.remove(kind, KEY.namespace, name)
    await world.settle()
    assert {child["metadata"]["name"] for child in world.objects(kind.kind)} == names


async def test_a_deployment_scaled_by_hand_is_set_back_without_a_pod_lost() -> None:
    world = await started(2)
    pods = {pod["metadata"]["name"] for pod in world.pods()}
    deployment = world.objects("Deployment")[0]
    world.cluster.put({**deployment, "spec": {**deployment["spec"], "replicas": 0}})
    await world.reconcile_until_quiet()
    world.run_controllers()
    assert {pod["metadata"]["name"] for pod in world.pods()} == pods


async def test_somebody_elses_service_of_the_same_name_is_left_alone_and_reported() -> None:
    world = World()
    theirs = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": KEY.namespace, "name": KEY.name},
        "spec": {"ports": []},
    }
    stored = world.cluster.put(theirs)
    await world.settle()
    assert world.condition("Ready")["reason"] == "Conflict"
    assert "Service named chat" in world.condition("Degraded")["message"]
    assert world.cluster.objects[("Service", *KEY)] == stored
    world.cluster.remove(SERVICE, *KEY)
    await world.settle()
    assert world.condition("Ready")["status"] == "True"


async def test_an_edit_rolls_over_without_ever_fewer_ready_replicas() -> None:
    world = await started(2)
    old = world.status["currentRevision"]
    world.edit(engine={"maxSequences": 4})
    for _ in range(20):
        await world.reconcile_until_quiet()
        world.run_controllers()
        assert sum(pod["status"] == ready_status() for pod in world.pods()) >= 2
        assert len(world.pods()) <= 3
    await world.settle()
    assert world.status["currentRevision"] != old
    assert set(world.deployments().values()) == {2}
    assert len(world.objects("ControllerRevision")) == 2


async def test_old_replicas_go_when_gateways_know_the_new_ones() -> None:
    world = await started(2)
    old = {pod["metadata"]["uid"] for pod in world.pods()}
    world.edit(engine={"maxSequences": 4})
    await world.reconcile_until_quiet()
    world.run_controllers()
    new = {pod["metadata"]["uid"] for pod in world.pods()} - old
    world.loads = dict.fromkeys(new, PodLoad(0, has_left=False, is_routable=False))
    for pod in world.pods():
        stamped = {"conditions": [{**READY, "lastTransitionTime": render_time(world.now)}]}
        world.cluster.put({**pod, "status": {**pod["status"], **stamped}})
    await world.settle()
    assert old <= {pod["metadata"]["uid"] for pod in world.pods()}
    outcome = await world.reconcile()
    assert outcome.look_again is not None
    assert outcome.look_again <= 0.5
    world.loads = {}
    await world.settle()
    assert not old & {pod["metadata"]["uid"] for pod in world.pods()}


async def test_a_gateway_that_never_learns_of_a_replica_holds_a_rollout_for_a_minute() -> None:
    world = await started(1)
    (old,) = {pod["metadata"]["uid"] for pod in world.pods()}
    world.edit(engine={"maxSequences": 4})
    await world.reconcile_until_quiet()
    world.run_controllers()
    (new,) = {pod["metadata"]["uid"] for pod in world.pods()} - {old}
    world.loads = {new: PodLoad(0, has_left=False, is_routable=False)}
    pod = next(pod for pod in world.pods() if pod["metadata"]["uid"] == new)
    stamped = {"conditions": [{**READY, "lastTransitionTime": render_time(world.now)}]}
    world.cluster.put({**pod, "status": {**pod["status"], **stamped}})
    await world.settle()
    assert old in {pod["metadata"]["uid"] for pod in world.pods()}
    world.now += 61.0
    await world.settle()
    assert [pod["metadata"]["uid"] for pod in world.pods()] == [new]


async def test_a_broken_revision_leaves_the_old_pods_and_its_revert_restarts_none() -> None:
    world = await started(2)
    stable = world.status["currentRevision"]
    pods = {pod["metadata"]["uid"] for pod in world.pods()}
    world.edit(model={"uri": "file:///models/absent"})
    await world.reconcile()
    broken = world.status["updateRevision"]
    world.broken[broken] = crash_status("/models/absent: there is no such folder", code=65)
    await world.settle()
    assert world.condition("Ready")["status"] == "True"
    assert world.condition("Degraded")["reason"] == "ModelInvalid"
    assert "no such folder" in world.condition("Degraded")["message"]
    assert world.condition("ModelReady")["status"] == "False"
    assert {pod["metadata"]["uid"] for pod in world.pods(stable)} == pods
    assert len(world.pods(broken)) == 1
    world.edit(model={"uri": "file:///models/stories"})
    await world.settle()
    assert {pod["metadata"]["uid"] for pod in world.pods()} == pods
    assert world.condition("Degraded")["status"] == "False"
    assert world.deployments() == {stable: 2}


async def test_a_first_revision_that_never_worked_gives_way_at_once() -> None:
    world = World(model={"uri": "file:///models/absent"})
    await world.reconcile()
    bad = world.status["updateRevision"]
    world.broken[bad] = crash_status("no such folder", code=65)
    await world.settle()
    assert world.condition("Ready")["reason"] == "ModelInvalid"
    world.edit(model={"uri": "file:///models/stories"})
    await world.settle()
    assert bad not in world.deployments()
    assert world.condition("Ready")["status"] == "True"


async def test_without_room_for_a_surge_one_replica_at_a_time_makes_room() -> None:
    world = await started(2)
    world.capacity = 2
    world.edit(engine={"maxSequences": 4})
    for _ in range(30):
        world.now += 60.0
        await world.reconcile_until_quiet()
        world.run_controllers()
        assert sum(pod["status"] == ready_status() for pod in world.pods()) >= 1
    await world.settle()
    assert world.status["currentRevision"] == world.status["updateRevision"]
    assert set(world.deployments().values()) == {2}


async def test_a_single_replica_without_room_keeps_serving_and_says_what_the_scheduler_said() -> None:
    world = await started(1)
    world.capacity = 1
    world.edit(engine={"maxSequences": 4})
    await world.settle()
    assert world.condition("Degraded")["status"] == "False"
    assert "Insufficient nvidia.com/gpu" in world.condition("Progressing")["message"]
    world.now += 400.0
    await world.settle()
    assert world.condition("Ready")["status"] == "True"
    assert world.condition("Degraded")["reason"] == "Unschedulable"
    assert "Insufficient nvidia.com/gpu" in world.condition("Degraded")["message"]


async def test_the_idlest_replica_is_marked_before_the_deployment_shrinks() -> None:
    world = World(scaling={"mode": "Automatic", "minReplicas": 1, "maxReplicas": 4})
    world.advice = Advice(3, "ScalingUp", "load", "forecast", is_held=False)
    await world.settle()
    names = sorted(pod["metadata"]["name"] for pod in world.pods())
    running = {names[0]: 2.0, names[1]: 0.0, names[2]: 5.0}
    world.advice = Advice(2, "ScalingDown", "less", "forecast", is_held=False, in_flight=running)
    world.cluster.writes.clear()
    await world.settle()
    assert sorted(pod["metadata"]["name"] for pod in world.pods()) == [names[0], names[2]]
    verbs = [verb for verb, kind, _ in world.cluster.writes if kind in ("Pod", "Deployment")]
    assert verbs == ["annotate", "apply"]


async def test_a_late_rollout_is_degraded_and_wakes_itself_for_it() -> None:
    world = await started(1)
    world.edit(engine={"maxSequences": 4}, rollout={"progressDeadline": "60s", "rollback": "Never"})
    await world.reconcile()
    world.broken[world.status["updateRevision"]] = {
        "containerStatuses": [{"name": "replica", "state": {"running": {}}}]
    }
    await world.settle()
    assert world.condition("Degraded")["status"] == "False"
    outcome = await world.reconcile()
    assert outcome.look_again is not None
    world.now += outcome.look_again
    await world.settle()
    assert world.condition("Progressing")["reason"] == "DeadlineExceeded"
    assert world.condition("Degraded")["status"] == "True"
    assert world.condition("Ready")["status"] == "True"


async def test_switching_modes_keeps_the_count() -> None:
    world = await started(3)
    world.edit(scaling={"mode": "Automatic", "minReplicas": 1, "maxReplicas": 5})
    await world.settle()
    assert world.status["scaling"]["desiredReplicas"] == 3
    world.edit(scaling=EXTERNAL, replicas=2)
    await world.settle()
    assert (world.status["scaling"]["mode"], len(world.pods())) == ("External", 2)
    assert world.status["scaling"]["message"] == "the count is spec.replicas"
    assert world.condition("ScalingActive")["message"] == "the count is spec.replicas, written from outside"


async def test_dry_run_shows_a_decision_and_does_not_follow_it() -> None:
    world = World(scaling={"mode": "DryRun", "minReplicas": 1, "maxReplicas": 5})
    world.advice = Advice(4, "ScalingUp", "load", "forecast", is_held=False)
    await world.settle()
    scaling = world.status["scaling"]
    assert (scaling["desiredReplicas"], scaling["recommendedReplicas"], len(world.pods())) == (1, 4, 1)


async def test_held_signals_are_said_and_the_count_stays() -> None:
    world = World(scaling={"mode": "Automatic", "minReplicas": 1, "maxReplicas": 5})
    world.advice = Advice(3, "ScalingUp", "load", "forecast", is_held=False)
    await world.settle()
    world.advice = Advice(3, "SignalsMissing", "Prometheus is away", "current", is_held=True)
    await world.settle()
    assert world.condition("ScalingActive")["reason"] == "SignalsMissing"
    assert world.status["scaling"]["desiredReplicas"] == 3


async def test_advice_made_from_another_count_lowers_nothing() -> None:
    """Its speed was chosen for the count that it began with."""
    scaling = {"mode": "Automatic", "minReplicas": 1, "maxReplicas": 20}
    world = World(scaling=scaling)
    world.advice = Advice(3, "Steady", "load", "forecast", is_held=False)
    await world.settle()
    world.advice = Advice(3, "Steady", "load", "forecast", is_held=False, made_from=3)
    world.edit(scaling={**scaling, "minReplicas": 12})
    await world.settle()
    world.edit(scaling=scaling)
    await world.settle()
    assert len(world.pods()) == 12
    world.advice = Advice(11, "ScalingDown", "less", "forecast", is_held=False, made_from=12)
    await world.settle()
    assert len(world.pods()) == 11
    world.advice = Advice(13, "ScalingUp", "more", "forecast", is_held=False, made_from=12)
    await world.settle()
    assert len(world.pods()) == 13  # more never waits


@pytest.mark.parametrize("has_advice", [False, True])
async def test_a_lost_status_leaves_the_count_that_runs(*, has_advice: bool) -> None:
    world = World(scaling={"mode": "Automatic", "minReplicas": 1, "maxReplicas": 20})
    world.advice = Advice(7, "ScalingUp", "load", "forecast", is_held=False)
    await world.settle()
    world.cluster.put({**world.service, "status": {}})
    world.restart_operator()
    world.advice = Advice(1, "Steady", "less", "forecast", is_held=False) if has_advice else None
    await world.reconcile()
    assert (world.status["scaling"]["desiredReplicas"], len(world.pods())) == (7, 7)


async def test_live_numbers_alone_write_nothing() -> None:
    world = World()
    world.advice = Advice(1, "Steady", "0.2 requests/s", "forecast", is_held=False)
    await world.settle()
    world.advice = Advice(1, "Steady", "0.3 requests/s", "forecast", is_held=False)
    assert await world.reconcile_until_quiet() == 0


async def test_a_deleted_service_is_not_touched() -> None:
    world = await started()
    service = world.service
    world.cluster.put(
        {**service, "metadata": {**service["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    )
    world.cluster.remove(SERVICE, *KEY)
    assert await world.reconcile_until_quiet() == 0
    world.cluster.remove(INFERENCE_SERVICE, *KEY)
    for _ in range(3):
        world.run_controllers()
    assert world.num_children() == 0
    assert not world.pods()


async def test_a_refused_child_is_reported_with_the_servers_words() -> None:
    world = World()
    world.cluster.faults.extend([None, None, None, None, None, RefusedError("spec.template: invalid label")])
    await world.reconcile()
    await world.reconcile()
    assert "invalid label" in world.condition("Degraded")["message"]
    await world.settle()
    assert world.condition("Degraded")["status"] == "False"


async def test_a_record_deleted_mid_rollout_costs_no_serving_pod() -> None:
    world = await started(2)
    stable = world.status["currentRevision"]
    world.edit(engine={"maxSequences": 4})
    await world.reconcile()
    world.broken[world.status["updateRevision"]] = crash_status()
    await world.settle()
    for record in world.objects("ControllerRevision"):
        del world.cluster.objects[("ControllerRevision", KEY.namespace, record["metadata"]["name"])]
    await world.settle()
    assert len(world.pods(stable)) == 2
    assert len(world.objects("ControllerRevision")) == 2


@pytest.mark.parametrize("kind", ["ControllerRevision", "Deployment"])
async def test_a_revision_is_known_without_its_label(kind: str) -> None:
    world = await started(2)
    pods, deployments = world.pods(), world.deployments()
    child = world.objects(kind)[0]
    del child["metadata"]["labels"][contract.LABEL_REVISION]
    world.cluster.put(child)
    await world.reconcile_until_quiet()
    await world.settle()
    assert (world.pods(), world.deployments()) == (pods, deployments)
    assert world.num_children() == 6


async def test_a_pod_that_vanished_holds_up_nothing_else() -> None:
    world = World(scaling=EXTERNAL, replicas=2)
    await world.settle()
    world.edit(replicas=1)
    world.observe()
    world.cluster.remove(POD, KEY.namespace, world.pods()[-1]["metadata"]["name"])
    assert (await world.reconciler.reconcile(KEY)).retry is SOON
    assert world.cluster.writes[-1] == ("apply", "PodDisruptionBudget", KEY.name)
    assert len(world.cache.pods(KEY)) == 1
    await world.settle()
    assert len(world.pods()) == 1


FAULTS = st.sampled_from(
    [None, None, ConflictError("409"), TransientError("429", 1.0), TransientError("500")]
)


@given(st.lists(st.lists(FAULTS, max_size=8), max_size=6), st.integers(1, 3))
async def test_any_faults_on_the_way_end_where_none_do(
    rounds: list[list[ClusterError | None]], replicas: int
) -> None:
    world = World(scaling=EXTERNAL, replicas=replicas)
    edits = iter([{"engine": {"maxSequences": 4}}, {"replicas": 2}, {"engine": {}}])
    for faults in rounds:
        world.cluster.faults.extend(faults)
        with contextlib.suppress(ClusterError):
            await world.reconcile()
        world.run_controllers()
        edit = next(edits, None)
        if edit:
            world.edit(**edit)
    world.cluster.faults.clear()
    await world.settle()
    assert await world.reconcile_until_quiet() == 0
    assert world.condition("Ready")["status"] == "True"
    assert (
        len(world.pods()) == world.service["spec"]["replicas"] == world.status["scaling"]["desiredReplicas"]
    )
    assert len(world.deployments()) == 1


@pytest.mark.parametrize("num_writes", range(9))
async def test_every_prefix_of_a_plan_converges(num_writes: int) -> None:
    world = World()
    world.cluster.faults.extend([None] * num_writes + [TransientError("the operator died here")] * 50)
    with pytest.raises(TransientError) if num_writes < 7 else contextlib.nullcontext():
        await world.reconcile()
    world.cluster.faults.clear()
    world.restart_operator()
    await world.settle()
    assert world.condition("Ready")["status"] == "True"
    assert world.num_children() == 6


async def test_a_spec_that_nobody_can_read_is_said_beside_conditions_of_a_newer_operator() -> None:
    world = await started()
    conditions = [
        {**one, "reason": "NotKnownHere"} if one["type"] == "Ready" else one
        for one in world.status["conditions"]
    ]
    world.cluster.put({**world.service, "status": {**world.status, "conditions": conditions}})
    world.edit(rollout={"progressDeadline": "soon"})
    await world.settle()
    assert world.condition("Degraded")["reason"] == "SettingsInvalid"
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"], ready["observedGeneration"]) == ("True", "NotKnownHere", 1)
