"""The parts put together on the fake API server; only Kopf's watches are left out."""

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Callable

import pytest
from prometheus_client import generate_latest

from millrace_kubernetes.connection import Connection
from millrace_operator.api.conditions import find_condition
from millrace_operator.app import application as module
from millrace_operator.app.application import Application, OperatorSettings
from millrace_operator.app.metrics import Metrics
from millrace_operator.autoscaler.run.settings import PrometheusSettings, ScalingSettings
from millrace_operator.controller import relister, watches
from millrace_operator.controller.leader_election import Election
from millrace_operator.kube.errors import ConflictError, NotLeaderError, RefusedError, TransientError
from millrace_operator.kube.fake import FakeCluster
from millrace_operator.kube.kinds import (
    INFERENCE_SERVICE,
    POD_DISRUPTION_BUDGET,
    Listing,
    Obj,
    ObjectKey,
    Scope,
)
from millrace_operator.kube.lease import DEADLINE_SECONDS, LeaseView
from millrace_operator.kube.protocol import Cluster
from millrace_operator.render.settings import RenderSettings
from testing.polling import wait_until_async
from testing.world import KEY, make_pod, make_record, make_service
from tests.operator.kube.test_connection import FakeAccess

SETTINGS = OperatorSettings(
    render=RenderSettings(),
    scaling=ScalingSettings(PrometheusSettings("http://127.0.0.1:9")),
    namespace="millrace-system",
    identity="test",
    bind_address="127.0.0.1",
    port=0,
    workers=2,
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
    tasks = [
        asyncio.create_task(application.election.run(application.priors.leave)),
        asyncio.create_task(application._lead()),
    ]
    yield application
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def has(cluster: FakeCluster, kind: str) -> Callable[[], bool]:
    return lambda: any(key.kind == kind for key in cluster.objects)


def num_deployments(cluster: FakeCluster) -> int:
    return sum(key.kind == "Deployment" for key in cluster.objects)


async def cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_services_are_among_the_metrics(application: Application, cluster: FakeCluster) -> None:
    await wait_until_async("a disruption budget", has(cluster, "PodDisruptionBudget"))
    text = generate_latest(application._metrics.registry).decode()
    assert 'millrace_desired_replicas{namespace="shop",service="chat"} 1.0' in text


def test_decisions_count_the_arrivals_that_gateways_stream(cluster: FakeCluster) -> None:
    application = Application(SETTINGS, cluster, make_view(), Metrics())
    assert application.scaling._arrivals == application.gateways.read_arrivals


@pytest.mark.usefixtures("application")
async def test_a_leader_sees_everything_first_and_then_acts(cluster: FakeCluster) -> None:
    await wait_until_async("a disruption budget", has(cluster, "PodDisruptionBudget"))
    assert cluster.objects[("InferenceService", *KEY)]["status"]["observedGeneration"] == 1


async def test_a_leader_that_ends_writes_down_what_it_knows_and_then_gives_the_lease_back(
    cluster: FakeCluster,
) -> None:
    application = Application(SETTINGS, cluster, make_view(), Metrics())
    service = cluster.put(make_service(scaling={"mode": "External"}, replicas=1))
    campaign = asyncio.create_task(application.election.run(application.priors.leave))
    await wait_until_async("it leads", application.election.is_leader)
    changes = ["2026-01-01T00:00:00Z 1 -> 2 External x"]
    application.cache.put({**service, "status": {"scaling": {"desiredReplicas": 2, "lastChanges": changes}}})
    application.cache.put(cluster.put(make_record(service)))
    await cancel(campaign)
    assert [(verb, kind) for verb, kind, _ in cluster.writes[-2:]] == [
        ("annotate", "ControllerRevision"),
        ("replace", "Lease"),
    ]
    lease = cluster.objects[("Lease", SETTINGS.namespace, "millrace-operator")]
    assert lease["spec"]["holderIdentity"] == ""


async def test_failures_of_every_sort_are_tried_again(application: Application, cluster: FakeCluster) -> None:
    await wait_until_async("a disruption budget", has(cluster, "PodDisruptionBudget"))
    faults = [ConflictError("old"), TransientError("away"), None, RefusedError("no"), TransientError("again")]
    cluster.faults.extend(faults)
    edited = make_service(engine={"maxSequences": 4})
    old = cluster.objects[("InferenceService", *KEY)]
    application.cache.put(cluster.put({**old, "spec": edited["spec"]}))
    application.queue.add(KEY)
    await wait_until_async("a second Deployment", lambda: num_deployments(cluster) == 2)
    await wait_until_async("no fault is left", lambda: not cluster.faults)
    assert application.queue.num_retries >= 3


async def test_a_service_that_vanished_is_dropped_quietly(
    application: Application, cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    await wait_until_async("a disruption budget", has(cluster, "PodDisruptionBudget"))
    old = cluster.objects[("InferenceService", *KEY)]
    application.cache.put(cluster.put({**old, "spec": make_service(engine={"maxSequences": 4})["spec"]}))
    cluster.remove(INFERENCE_SERVICE, *KEY)
    application.queue.add(KEY)
    await wait_until_async("it is dropped", lambda: application.cache.service(KEY) is None)
    assert num_deployments(cluster) == 1
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


async def test_a_lease_that_lapses_for_a_moment_loses_no_service(
    application: Application, cluster: FakeCluster
) -> None:
    await wait_until_async("a disruption budget", has(cluster, "PodDisruptionBudget"))
    cluster.faults.append(NotLeaderError("the Lease ran out before this write"))
    old = cluster.objects[("InferenceService", *KEY)]
    application.cache.put(cluster.put({**old, "spec": make_service(engine={"maxSequences": 4})["spec"]}))
    application.queue.add(KEY)
    await wait_until_async("a second Deployment", lambda: num_deployments(cluster) == 2)
    assert not cluster.faults


async def test_a_resource_that_is_not_known_yet_is_waited_for(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watches, "RESOURCE_RETRY_SECONDS", 0.01)
    cluster.read_faults.extend([RefusedError("not found"), TransientError("away")])
    await watches._wait_for_resource(Scope(INFERENCE_SERVICE), cluster)
    assert not cluster.read_faults
    assert caplog.text.count("is the CRD installed?") == 2


async def test_a_complete_view_that_fails_is_waited_for(cluster: FakeCluster) -> None:
    application = Application(SETTINGS, cluster, make_view(), Metrics())
    cluster.put(make_service())
    await application.election.campaign()
    cluster.writes.clear()
    cluster.read_faults.extend([None, TransientError("away")])
    leading = asyncio.create_task(application._lead())
    await wait_until_async("the list that fails", lambda: not cluster.read_faults)
    assert not cluster.writes
    await wait_until_async("a disruption budget", has(cluster, "PodDisruptionBudget"))
    await cancel(leading)


async def test_nothing_waits_for_a_replica_that_does_not_lead(cluster: FakeCluster) -> None:
    holder, view = Election(cluster, LeaseView("other", "millrace-system", "millrace-operator")), make_view()
    application = Application(SETTINGS, cluster, view, Metrics())
    await holder.campaign()
    await application.election.campaign()
    leading = asyncio.create_task(application._lead())
    await asyncio.sleep(0)
    application.recorder.record_event(INFERENCE_SERVICE, "ADDED", cluster.put(make_service()))
    await asyncio.sleep(0.01)
    assert (len(application.queue), application._read_health().stalled_seconds) == (0, 0)
    await holder.release()
    cluster.read_faults.extend([None, TransientError("away")])
    await application.election.campaign()
    assert application._read_health().stalled_seconds == 0
    await wait_until_async("a disruption budget", has(cluster, "PodDisruptionBudget"))
    await cancel(leading)


async def test_a_replica_that_does_not_lead_finds_its_ghosts_too(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait(*_: object) -> relister.Round:
        await asyncio.sleep(0.01)
        return relister.Round.EVERYTHING

    monkeypatch.setattr(relister, "wait_for_round", wait)
    application = Application(SETTINGS, cluster, make_view(), Metrics())
    application.cache.put(cluster.put(make_service()))
    cluster.remove(INFERENCE_SERVICE, *KEY)
    listing = asyncio.create_task(application.relister.run())
    await wait_until_async("the ghost gone", lambda: application.cache.service(KEY) is None)
    await cancel(listing)


async def test_after_an_event_that_was_lost_the_services_alone_are_listed(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only theirs can be lost. A namespace that could not be read whole stays so for all the list says."""
    monkeypatch.setattr(relister, "LOST_SECONDS", 0.0)
    settings = dataclasses.replace(SETTINGS, namespaces=(KEY.namespace, "b"))
    application = Application(settings, cluster, make_view(), Metrics())
    application.recorder.lists.note_missing([Scope(POD_DISRUPTION_BUDGET, "b")])
    cluster.put(make_service())
    listed, fetch_all = [], cluster.fetch_all

    async def fetch(scope: Scope, label_selector: str | None = None) -> Listing:
        listed.append(scope)
        return await fetch_all(scope, label_selector)

    monkeypatch.setattr(cluster, "fetch_all", fetch)
    listing = asyncio.create_task(application.relister.run())
    application.recorder.has_lost.set()
    await wait_until_async("the service known", lambda: application.cache.service(KEY) is not None)
    await wait_until_async("the second list", lambda: len(listed) == 2)
    assert listed == [Scope(INFERENCE_SERVICE, KEY.namespace), Scope(INFERENCE_SERVICE, "b")]
    lists = application.recorder.lists
    assert (lists.is_known(KEY.namespace), lists.is_known("b")) == (True, False)
    await cancel(listing)


@pytest.mark.parametrize("error", [TransientError("HTTP 503"), RefusedError("forbidden"), ValueError("odd")])
async def test_a_list_that_fails_after_an_event_was_lost_is_tried_again_soon(
    cluster: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    monkeypatch.setattr(relister, "LOST_SECONDS", 0.0)
    application = Application(SETTINGS, cluster, make_view(), Metrics())
    cluster.read_faults.extend([error] * 3)  # type: ignore[list-item]
    cluster.put(make_service())
    listing = asyncio.create_task(application.relister.run())
    application.recorder.has_lost.set()
    await wait_until_async("the service known", lambda: application.cache.service(KEY) is not None)
    assert caplog.text.count(f"relist failed: {error}; again in") == 3
    assert not application.recorder.has_lost.is_set()
    await cancel(listing)


async def test_an_object_that_nobody_can_read_keeps_no_leader_from_the_services_of_others(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.put(make_pod("an-odd-one", initContainerStatuses=["x"]))
    cluster.put(make_service())
    application = Application(SETTINGS, cluster, make_view(), Metrics())
    await application.election.campaign()
    leading = asyncio.create_task(application._lead())
    await wait_until_async("a disruption budget", has(cluster, "PodDisruptionBudget"))
    assert not leading.done()
    assert caplog.text.count("an-odd-one cannot be read") == 1
    await cancel(leading)


async def test_a_replica_that_lost_the_lease_does_not_name_itself_as_the_leader(cluster: FakeCluster) -> None:
    view = make_view()
    application = Application(SETTINGS, cluster, view, Metrics())
    await application.election.campaign()
    health = application._read_health()
    assert (health.is_leader, health.leader) == (True, SETTINGS.identity)
    view.renewed_at = time.monotonic() - DEADLINE_SECONDS
    health = application._read_health()
    assert (health.is_leader, health.leader) == (False, "")


async def test_stopping_lets_the_lease_go(cluster: FakeCluster) -> None:
    application = Application(SETTINGS, cluster, make_view(), Metrics())
    running = asyncio.create_task(application.election.run(application.priors.leave))
    await wait_until_async("it leads", application.election.is_leader)
    await cancel(running)
    lease = cluster.objects[("Lease", "millrace-system", "millrace-operator")]
    assert lease["spec"]["holderIdentity"] == ""
    assert not application.election.is_leader()


def find_degraded(service: Obj) -> dict[str, str]:
    return find_condition(service.get("status", {}), "Degraded") or {}


async def test_who_leads_again_knows_nothing_of_what_was_refused_before(cluster: FakeCluster) -> None:
    """Another one has led meanwhile, and has told that nothing is refused any more."""
    application = Application(SETTINGS, cluster, make_view(), Metrics())
    cluster.put(make_service(scaling={"mode": "External"}, replicas=1))
    cluster.refuse = lambda obj: "a quota" if obj["kind"] == "PodDisruptionBudget" else None
    await application.election.campaign()
    leading = asyncio.create_task(application._lead())
    key = ObjectKey(INFERENCE_SERVICE.kind, *KEY)
    await wait_until_async(
        "the refusal told", lambda: find_degraded(cluster.objects[key]).get("reason") == "ChildRefused"
    )
    await application.election.release()
    await wait_until_async("it leads no longer", lambda: not application.queue._is_open)
    cluster.refuse = lambda _: None
    old = cluster.objects[key]
    find_degraded(old).update(status="False", reason="Healthy", message="nothing fails")
    application.cache.put(cluster.put({**old, "status": {**old["status"], "readyReplicas": 3}}))
    told: list[str] = []
    apply_status = cluster.apply_status

    async def record(obj: Obj) -> Obj:
        told.append(find_degraded(obj)["reason"])
        return await apply_status(obj)

    cluster.apply_status = record  # type: ignore[method-assign]
    await application.election.campaign()
    await wait_until_async("a disruption budget", has(cluster, "PodDisruptionBudget"))
    assert told
    assert set(told) == {"Healthy"}
    await cancel(leading)


class WithoutBudgets(FakeCluster):
    """It lets nobody read the PodDisruptionBudgets of a namespace, or of all."""

    def __init__(self, namespace: str | None) -> None:
        super().__init__()
        self._refused = Scope(POD_DISRUPTION_BUDGET, namespace)
        self.num_refused = 0

    async def fetch_all(self, scope: Scope, label_selector: str | None = None) -> Listing:
        if scope == self._refused:
            self.num_refused += 1
            raise RefusedError("poddisruptionbudgets is forbidden")
        return await super().fetch_all(scope, label_selector)


async def test_a_namespace_that_cannot_be_read_whole_keeps_no_other_from_being_looked_after(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = WithoutBudgets("b")
    settings = dataclasses.replace(SETTINGS, namespaces=(KEY.namespace, "b"))
    application = Application(settings, cluster, make_view(), Metrics())
    cluster.put(make_service())
    other = make_service()
    cluster.put({**other, "metadata": {**other["metadata"], "namespace": "b"}})
    await application.election.campaign()
    leading = asyncio.create_task(application._lead())
    await wait_until_async("a disruption budget", has(cluster, "PodDisruptionBudget"))
    for _ in range(3):
        await application.relister.list_unlisted()
    await asyncio.sleep(0.05)
    assert {key.namespace for key in cluster.objects if key.kind == "Deployment"} == {KEY.namespace}
    assert caplog.text.count("namespace b is left out: poddisruptionbudgets is forbidden") == 1
    await cancel(leading)


async def test_a_cluster_that_cannot_be_read_is_asked_ever_more_slowly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "VIEW_RETRY_SECONDS", 0.01)
    cluster = WithoutBudgets(None)
    application = Application(SETTINGS, cluster, make_view(), Metrics())
    await application.election.campaign()
    leading = asyncio.create_task(application._lead())
    await asyncio.sleep(0.4)
    assert 2 <= cluster.num_refused <= 7
    await cancel(leading)


async def test_a_worker_that_ends_all_the_same_ends_the_operator(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes starts it again. Without a worker it would lead, and do nothing."""
    application = Application(SETTINGS, cluster, make_view(), Metrics())

    async def fail(*_: object) -> str:
        raise KeyError("metadata")

    monkeypatch.setattr(application, "_reconcile", fail)
    cluster.put(make_service())
    await application.election.campaign()
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(application._lead(), 5)
    assert caught.group_contains(KeyError)


class Probe:
    """Stands in for the Application, and writes without the Lease and with it."""

    num_runs = 0

    def __init__(
        self, _settings: OperatorSettings, cluster: Cluster, view: LeaseView, _: Metrics, *, token: str
    ) -> None:
        assert token
        self._cluster = cluster
        self._view = view

    async def run(self, _connection: Connection) -> None:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": "p"}}
        with pytest.raises(NotLeaderError):
            await self._cluster.apply_new(pod)
        self._view.renewed_at = time.monotonic()
        with pytest.raises(TransientError, match="PATCH"):  # it was sent, to where nobody listens
            await self._cluster.apply_new(pod)
        self._view.renewed_at -= DEADLINE_SECONDS
        with pytest.raises(NotLeaderError):
            await self._cluster.apply_new(pod)
        Probe.num_runs += 1


async def test_the_running_operator_writes_only_while_it_holds_the_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def load_access() -> FakeAccess:
        return FakeAccess("http://127.0.0.1:9")

    monkeypatch.setattr(module, "load_access", load_access)
    monkeypatch.setattr(module, "Application", Probe)
    monkeypatch.setattr(Probe, "num_runs", 0)
    await module.run_operator(SETTINGS)
    assert Probe.num_runs == 1
