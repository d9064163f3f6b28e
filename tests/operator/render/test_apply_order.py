"""What waits for what: children that need others, and all that follows a decision that cannot be written."""

import contextlib
import logging

import pytest

from millrace_operator.controller.worker import REFUSED, SOON
from millrace_operator.kube.errors import ClusterError, ConflictError, RefusedError, TransientError
from millrace_operator.kube.kinds import SERVICE_ACCOUNT, Obj, ObjectId
from millrace_operator.observed.snapshot import PodLoad
from millrace_operator.render.child import Need, find_unmet, need
from testing.world import KEY, World

EXTERNAL = {"mode": "External", "minReplicas": 1, "maxReplicas": 1}
WORDS = "no such thing here"


def is_complete(job: Obj) -> bool:
    return bool(job.get("status", {}).get("succeeded"))


def test_a_need_is_met_by_an_object_as_it_must_be() -> None:
    job = ObjectId("Job", "chat-model")
    needs = (*need({"kind": "ServiceAccount", "metadata": {"name": "chat"}}), Need(job, is_complete))
    account = {ObjectId("ServiceAccount", "chat"): {"kind": "ServiceAccount"}}
    assert find_unmet(needs, {}) == (ObjectId("ServiceAccount", "chat"), job)
    assert find_unmet(needs, {**account, job: {"status": {}}}) == (job,)
    assert find_unmet(needs, {**account, job: {"status": {"succeeded": 1}}}) == ()


def refuse(kind: str, world: World) -> None:
    world.cluster.refuse = lambda obj: WORDS if obj["kind"] == kind else None


def allow(world: World) -> None:
    world.cluster.refuse = lambda _: None


@pytest.mark.parametrize("kind", ["ServiceAccount", "ControllerRevision"])
async def test_a_deployment_waits_for_what_it_needs(kind: str) -> None:
    world = World(scaling=EXTERNAL, replicas=1)
    refuse(kind, world)
    for _ in range(5):
        await world.reconcile()
    assert world.objects("Deployment") == []
    assert len(world.objects("Service")) == 2
    assert kind in world.condition("Degraded")["message"]
    allow(world)
    await world.settle()
    assert world.condition("Ready")["status"] == "True"


async def test_a_deployment_waits_while_its_account_is_somebody_elses() -> None:
    world = World(scaling=EXTERNAL, replicas=1)
    theirs = {"apiVersion": "v1", "kind": "ServiceAccount"}
    metadata = {"namespace": KEY.namespace, "name": f"{KEY.name}-replica"}
    world.cluster.put({**theirs, "metadata": metadata})
    for _ in range(5):
        await world.reconcile()
    assert world.objects("Deployment") == []
    for condition in ("Degraded", "Ready", "ModelReady"):
        assert world.condition(condition)["reason"] == "Conflict"


async def test_a_deployment_that_is_there_goes_on_without_what_it_once_needed() -> None:
    world = World(scaling=EXTERNAL, replicas=1)
    await world.settle()
    world.cluster.remove(SERVICE_ACCOUNT, KEY.namespace, f"{KEY.name}-replica")
    refuse("ServiceAccount", world)
    world.edit(replicas=3)
    for _ in range(5):
        await world.reconcile()
    assert list(world.deployments().values()) == [3]


async def test_nothing_follows_a_decision_that_cannot_be_written(caplog: pytest.LogCaptureFixture) -> None:
    world = World(scaling=EXTERNAL, replicas=1)
    await world.settle()
    world.edit(replicas=3)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        world.cluster.faults.append(RefusedError(WORDS))
        outcome = await world.reconcile()
    assert outcome.retry == REFUSED
    assert list(world.deployments().values()) == [1]
    (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert WORDS in line.message
    assert line.exc_info is None
    await world.settle()
    assert list(world.deployments().values()) == [3]


async def test_replicas_go_unmarked_where_marks_are_refused() -> None:
    world = World(scaling=EXTERNAL, replicas=2)
    await world.settle()
    world.loads = {pod["metadata"]["uid"]: PodLoad(1, has_left=False) for pod in world.pods()}
    world.edit(replicas=1)
    world.cluster.faults.extend([None, RefusedError(WORDS)])  # status, and then the mark
    await world.reconcile()
    assert list(world.deployments().values()) == [2]
    await world.reconcile()
    assert world.condition("Degraded")["reason"] == "ChildRefused"
    assert "Pod" in world.condition("Degraded")["message"]
    assert list(world.deployments().values()) == [1]
    await world.settle()
    look = (await world.reconcile()).look_again
    assert look is not None
    world.now += look + 1.0  # then marks are tried again
    await world.settle()
    assert world.condition("Degraded")["status"] == "False"


async def test_a_refused_mark_is_told_while_somebody_wants_it() -> None:
    """It was told for ten minutes, after the replica had gone without a mark or served on."""
    world = World(scaling=EXTERNAL, replicas=2)
    await world.settle()
    world.cluster.refuse_other = {"annotate": WORDS}
    world.edit(replicas=1)
    for _ in range(2):
        await world.reconcile()
    assert world.condition("Degraded")["reason"] == "ChildRefused"
    await world.settle()
    assert list(world.deployments().values()) == [1]
    assert world.condition("Degraded")["status"] == "False"


async def test_a_mark_that_cannot_be_taken_back_is_told() -> None:
    """Gateways send such a replica nothing new."""
    world = World(scaling=EXTERNAL, replicas=2)
    await world.settle()
    world.loads = {pod["metadata"]["uid"]: PodLoad(1, has_left=False) for pod in world.pods()}
    world.edit(replicas=1)
    await world.settle()
    world.cluster.refuse_other = {"annotate": WORDS}
    world.edit(replicas=2)
    await world.settle()
    assert world.condition("Degraded")["reason"] == "ChildRefused"


async def test_a_replacement_stays_beside_the_old_replica_where_marks_are_refused() -> None:
    world = World(scaling=EXTERNAL, replicas=1)
    world.put_node("a")
    await world.settle()
    world.put_node("b")
    world.put_node("a", unschedulable=True)
    world.cluster.refuse_other = {"annotate": WORDS}
    names = set()
    for _ in range(14):
        await world.settle()
        world.now += 60.0
        names |= {pod["metadata"]["name"] for pod in world.pods()}
    assert len(names) == len(world.pods()) == 2


async def test_a_delete_that_is_refused_is_told_and_tried_again() -> None:
    world = World(scaling=EXTERNAL, replicas=1)
    await world.settle()
    world.edit(engine={"maxSequences": 4})
    world.cluster.refuse_other = {"delete": WORDS}
    for _ in range(10):
        outcome = await world.reconcile()
        world.run_controllers()
    assert outcome.retry == REFUSED
    assert "Deployment" in world.condition("Degraded")["message"]
    world.cluster.refuse_other = {}
    await world.settle()
    assert world.condition("Degraded")["status"] == "False"
    assert len(world.objects("Deployment")) == 1


async def test_a_refusal_is_told_through_a_moment_in_which_nothing_can_be_written() -> None:
    world = World(scaling=EXTERNAL, replicas=1)
    refuse("ControllerRevision", world)
    for _ in range(3):
        await world.reconcile()
    since = world.condition("Degraded")["lastTransitionTime"]
    world.now += 60.0
    world.cluster.faults.append(TransientError("503"))
    with contextlib.suppress(ClusterError):
        await world.reconcile()
    world.cluster.faults.clear()
    for _ in range(3):
        await world.reconcile()
        assert world.condition("Degraded")["status"] == "True"
    assert world.condition("Degraded")["lastTransitionTime"] == since


async def test_what_is_written_late_undoes_nothing() -> None:
    """A leader plans from an old view, while another one has scaled the Deployment already."""
    world = World(scaling=EXTERNAL, replicas=1)
    await world.settle()
    world.edit(replicas=4)
    world.observe()
    (deployment,) = world.objects("Deployment")
    world.cluster.put({**deployment, "spec": {**deployment["spec"], "replicas": 9}})
    outcome = await world.reconcile(is_stale=True)
    assert list(world.deployments().values()) == [9]
    assert outcome.retry == SOON
    await world.settle()
    assert list(world.deployments().values()) == [4]


async def test_a_child_that_changes_all_the_time_is_written_once_a_look() -> None:
    world = World(scaling=EXTERNAL, replicas=1)
    await world.settle()
    world.edit(replicas=2)
    world.cluster.refuse = conflict_of_deployments
    for _ in range(5):
        world.cluster.writes.clear()
        outcome = await world.reconcile()
        assert outcome.retry == SOON
        assert [kind for _, kind, _ in world.cluster.writes].count("Deployment") <= 1
    allow(world)
    await world.settle()
    assert list(world.deployments().values()) == [2]


def conflict_of_deployments(obj: Obj) -> str | None:
    if obj["kind"] == "Deployment":
        raise ConflictError("it has been modified")
    return None
