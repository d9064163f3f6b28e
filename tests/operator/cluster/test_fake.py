import pytest

from millrace_operator.cluster.errors import AbsentError, ConflictError, TransientError
from millrace_operator.cluster.fake import FakeCluster
from millrace_operator.cluster.kinds import DEPLOYMENT, POD
from tests.operator.world import make_pod

OBJ = {"kind": "Deployment", "metadata": {"namespace": "a", "name": "b"}, "spec": {"replicas": 1}}


async def test_a_create_meets_what_is_there() -> None:
    cluster = FakeCluster()
    await cluster.apply_new(OBJ)
    with pytest.raises(ConflictError):
        await cluster.apply_new(OBJ)


async def test_an_apply_without_change_keeps_the_version() -> None:
    cluster = FakeCluster()
    made = await cluster.apply_new(OBJ)
    again = await cluster.apply_owned(OBJ, made["metadata"]["uid"])
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_another_uid_or_version_is_a_conflict() -> None:
    cluster = FakeCluster()
    made = await cluster.apply_new(OBJ)
    with pytest.raises(ConflictError):
        await cluster.apply_owned(OBJ, "other")
    with pytest.raises(ConflictError):
        await cluster.delete(DEPLOYMENT, "a", "b", "other")
    cluster.put(made)
    with pytest.raises(ConflictError):
        await cluster.apply_status({**made, "status": {}})


async def test_what_is_gone_takes_neither_status_nor_annotation() -> None:
    cluster = FakeCluster()
    made = await cluster.apply_new(OBJ)
    await cluster.delete(DEPLOYMENT, "a", "b", made["metadata"]["uid"])
    with pytest.raises(AbsentError):
        await cluster.apply_status({**made, "status": {}})
    pod = cluster.put(make_pod())["metadata"]
    with pytest.raises(ConflictError):
        await cluster.annotate_pod(pod["namespace"], pod["name"], "other", {})
    cluster.remove(POD, pod["namespace"], pod["name"])
    with pytest.raises(AbsentError):
        await cluster.annotate_pod(pod["namespace"], pod["name"], pod["uid"], {})
    with pytest.raises(ConflictError):
        await cluster.apply_owned(OBJ, made["metadata"]["uid"])


async def test_reads_and_events_can_fail() -> None:
    cluster = FakeCluster()
    cluster.read_faults.extend([TransientError("away"), TransientError("away")])
    with pytest.raises(TransientError):
        await cluster.fetch(DEPLOYMENT, "a", "b")
    with pytest.raises(TransientError):
        await cluster.fetch_all(DEPLOYMENT)
    cluster.faults.append(TransientError("away"))
    with pytest.raises(TransientError):
        await cluster.create_event({"metadata": {}})
    assert cluster.events == []


async def test_faults_come_in_their_order() -> None:
    cluster = FakeCluster()
    cluster.faults.extend([None, TransientError("away")])
    made = await cluster.apply_new(OBJ)
    with pytest.raises(TransientError):
        await cluster.delete(DEPLOYMENT, "a", "b", made["metadata"]["uid"])
    await cluster.delete(DEPLOYMENT, "a", "b", made["metadata"]["uid"])
    assert cluster.objects == {}
