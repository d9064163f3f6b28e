"""The parts put together on the fake API server; only Kopf's watches are left out."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest

from e2e.polling import wait_until_async
from millrace_operator.application import Application, OperatorSettings
from millrace_operator.cluster.errors import ConflictError, RefusedError, TransientError
from millrace_operator.cluster.fake import FakeCluster
from millrace_operator.cluster.lease import DEADLINE_SECONDS, LeaseView
from millrace_operator.metrics import Metrics
from millrace_operator.reconcile.render.settings import RenderSettings
from millrace_operator.scaling.settings import ScalingSettings
from tests.operator.world import KEY, make_service

SETTINGS = OperatorSettings(
    RenderSettings(), ScalingSettings("http://127.0.0.1:9"), "millrace-system", "test", "127.0.0.1", 0, 2
)


def make_view() -> LeaseView:
    return LeaseView(SETTINGS.identity, SETTINGS.namespace, "millrace-operator")


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
async def application(cluster: FakeCluster) -> AsyncIterator[Application]:
    application = Application(SETTINGS, cluster, make_view(), Metrics())
    cluster.put(make_service())
    tasks = [asyncio.create_task(application.election.run()), asyncio.create_task(application._lead())]
    yield application
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def has(cluster: FakeCluster, kind: str) -> Callable[[], bool]:
    return lambda: any(key[0] == kind for key in cluster.objects)


@pytest.mark.usefixtures("application")
async def test_a_leader_sees_everything_first_and_then_acts(cluster: FakeCluster) -> None:
    await wait_until_async("a disruption budget", has(cluster, "PodDisruptionBudget"))
    assert cluster.objects[("InferenceService", *KEY)]["status"]["observedGeneration"] == 1


async def test_failures_of_every_sort_are_tried_again(application: Application, cluster: FakeCluster) -> None:
    await wait_until_async("a disruption budget", has(cluster, "PodDisruptionBudget"))
    faults = [ConflictError("old"), TransientError("away"), None, RefusedError("no"), TransientError("again")]
    cluster.faults.extend(faults)
    edited = make_service(engine={"maxSequences": 4})
    old = cluster.objects[("InferenceService", *KEY)]
    application.cache.put(cluster.put({**old, "spec": edited["spec"]}))
    application.queue.add(KEY)
    await wait_until_async(
        "a second Deployment", lambda: len([key for key in cluster.objects if key[0] == "Deployment"]) == 2
    )
    await wait_until_async("no fault is left", lambda: not cluster.faults)
    assert application.queue.num_retries >= 3


async def test_a_complete_view_that_fails_is_waited_for(cluster: FakeCluster) -> None:
    application = Application(SETTINGS, cluster, make_view(), Metrics())
    await application._wait_for_resource()
    await application.election.campaign()
    await application._relist()
    assert application._read_decision(KEY) is None


async def test_a_replica_that_lost_the_lease_does_not_name_itself_as_the_leader(cluster: FakeCluster) -> None:
    view = make_view()
    application = Application(SETTINGS, cluster, view, Metrics())
    await application.election.campaign()
    health = application._read_health()
    assert (health.is_leader, health.leader) == (True, SETTINGS.identity)
    view.renewed_at = time.monotonic() - DEADLINE_SECONDS
    health = application._read_health()
    assert (health.is_leader, health.leader) == (False, "")


async def test_stopping_lets_the_lease_go(application: Application, cluster: FakeCluster) -> None:
    await wait_until_async("it leads", application.election.is_leader)
    await application.election.release()
    lease = cluster.objects[("Lease", "millrace-system", "millrace-operator")]
    assert lease["spec"]["holderIdentity"] == ""
