"""How the fake API server fails. What it does like the real one is in contract.py."""

import pytest

from millrace_operator.kube.errors import TransientError
from millrace_operator.kube.fake import FakeCluster
from millrace_operator.kube.kinds import (
    DEPLOYMENT,
    Scope,
)

OBJ = {"kind": "Deployment", "metadata": {"namespace": "a", "name": "b"}, "spec": {"replicas": 1}}


async def test_reads_and_events_can_fail() -> None:
    cluster = FakeCluster()
    cluster.read_faults.extend([TransientError("away"), TransientError("away")])
    with pytest.raises(TransientError):
        await cluster.fetch(DEPLOYMENT, "a", "b")
    with pytest.raises(TransientError):
        await cluster.fetch_all(Scope(DEPLOYMENT))
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
