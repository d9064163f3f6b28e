"""The operator on a real API server that fails, and under hands that stop and kill it at bad moments."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.api_proxy import ApiProxy, Moment
from e2e.cluster.api_reader import is_observed
from e2e.cluster.controlplane import client_context
from e2e.cluster.errors import PartFailedError
from e2e.cluster.etcd import compact
from e2e.cluster.local_cluster import LocalCluster
from e2e.namespaces import create_namespace
from e2e.operator_process import OperatorProcess
from testing.polling import wait_until

ROOT = Path(__file__).resolve().parents[1]
NAMESPACE = "faults"
SERVICES = f"/apis/millrace.dev/v1alpha1/namespaces/{NAMESPACE}/inferenceservices"
CHILDREN = {
    "Deployment": f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments",
    "ControllerRevision": f"/apis/apps/v1/namespaces/{NAMESPACE}/controllerrevisions",
    "Service": f"/api/v1/namespaces/{NAMESPACE}/services",
    "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
    "PodDisruptionBudget": f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets",
}
NUM_WRITES = 7
"""Of a new service: its status, and its six children."""
NUM_EDIT_WRITES = 3
"""Of another revision: status, ControllerRevision, Deployment."""
LEASE_SECONDS = 17.0
OUTAGE_SECONDS, LOOK_SECONDS = 125, 5
"""How long the API server is away, and between two probes of the operator meanwhile."""


@pytest.fixture(scope="module")
def cluster(make_state_folder: Callable[[str], Path]) -> Iterator[LocalCluster]:
    """A control plane of this file's own: it is killed, and its garbage collection must not help."""
    local = LocalCluster(make_state_folder("faults"), nodes=())
    try:
        local.start()
        local.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
        established = ("wait", "--for=condition=Established", "crd/inferenceservices.millrace.dev")
        wait_until("the definition", lambda: local.kubectl(*established), 60, outlives=(PartFailedError,))
        create_namespace(local, NAMESPACE)
        local.kill_part("kube-controller-manager")
        yield local
    finally:
        local.kill_part("kube-apiserver")  # it would wait for those who watch
        local.stop()


@pytest.fixture
def proxy(cluster: LocalCluster) -> Iterator[ApiProxy]:
    with ApiProxy(cluster.api_url, client_context(cluster.layout.keys, "ca", "admin")) as found:
        yield found


def start(proxy: ApiProxy, folder: Path, cluster: LocalCluster, lease: str, name: str) -> OperatorProcess:
    """Start an operator whose Lease is in a namespace `lease` of its own, unless it shares it."""
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(render_namespace(lease)))
    flags = ("--writes-per-second", "1000")
    log = folder / f"{name}.log"
    return OperatorProcess(proxy.render_kubeconfig(), lease, log, identity=name, flags=flags)


def render_namespace(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def render_service(name: str, max_sequences: int = 16) -> dict[str, Any]:
    """Return a service in mode External: its status moves by events alone."""
    spec: dict[str, Any] = {
        "model": {"uri": "file:///models/stories"},
        "engine": {"maxSequences": max_sequences},
    }
    return {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {**spec, "scaling": {"mode": "External"}, "replicas": 1},
    }


def apply(cluster: LocalCluster, *services: dict[str, Any]) -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": list(services)}
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(listed))


def list_children(cluster: LocalCluster, name: str) -> list[str]:
    """Return the kinds of a service's children, each as often as it is there, and names of Deployments."""
    return sorted(
        f"{kind} {found['metadata']['name']}" if kind == "Deployment" else kind
        for kind, path in CHILDREN.items()
        for found in cluster.api.list(path, f"millrace.dev/service={name}")
    )


def is_whole(cluster: LocalCluster, name: str, num_revisions: int = 1) -> bool:
    """Whether a service has its status and exactly its children.

    An old revision that never served has no Deployment any more.
    """
    found = cluster.api.get(f"{SERVICES}/{name}")
    if not is_observed(found):
        return False
    newest = f"{name}-{found['status']['updateRevision']}"
    return list_children(cluster, name) == sorted(
        [
            *["ControllerRevision"] * num_revisions,
            *[f"Deployment {newest}", "PodDisruptionBudget", "Service", "Service", "ServiceAccount"],
        ]
    )


def read_status(cluster: LocalCluster, name: str) -> Any:
    return cluster.api.get(f"{SERVICES}/{name}")["status"]


def wait_whole(cluster: LocalCluster, name: str, num_revisions: int = 1, seconds: float = 30.0) -> None:
    try:
        wait_until(f"{name} is whole", lambda: is_whole(cluster, name, num_revisions), seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}: {list_children(cluster, name)}") from None


@pytest.mark.parametrize("moment", [Moment.LOST, Moment.LANDED])
def test_a_kill_at_any_write_is_made_up_for_by_the_next_operator(
    cluster: LocalCluster, proxy: ApiProxy, tmp_path: Path, moment: Moment
) -> None:
    names = [f"{moment}-{number}" for number in range(1, NUM_WRITES + 1)]
    for number, name in enumerate(names, 1):
        kill_at(number, name, render_service(name), (cluster, proxy, tmp_path, moment))
    for number in range(1, NUM_EDIT_WRITES + 1):
        edited = render_service(names[number], max_sequences=8)
        kill_at(number, names[number], edited, (cluster, proxy, tmp_path, moment))
    with start(proxy, tmp_path, cluster, f"{moment}-last", "last"):
        for number, name in enumerate(names):
            wait_whole(cluster, name, 2 if 0 < number <= NUM_EDIT_WRITES else 1)


def kill_at(
    number: int, name: str, service: dict[str, Any], stage: tuple[LocalCluster, ApiProxy, Path, Moment]
) -> None:
    """Have an operator die at that write of what applying this service asks for."""
    cluster, proxy, folder, moment = stage
    title = f"{name}-{number}-{service['spec']['engine']['maxSequences']}"
    with start(proxy, folder, cluster, title, title) as operator:
        operator.wait_leading()
        proxy.strike(name, number, moment, operator.kill)
        apply(cluster, service)
        operator.wait_ended()
        assert proxy.has_struck


def test_a_leader_that_stood_still_writes_nothing_more(
    cluster: LocalCluster, proxy: ApiProxy, tmp_path: Path
) -> None:
    """Its clock stops while a write of its is under way. Another leads, and the write arrives after that."""
    context = client_context(cluster.layout.keys, "ca", "admin")
    with ApiProxy(cluster.api_url, context) as others, start(proxy, tmp_path, cluster, "clock", "a") as first:
        first.wait_leading()
        with start(others, tmp_path, cluster, "clock", "b") as second:
            apply(cluster, render_service("clock"))
            wait_whole(cluster, "clock")
            proxy.strike("clock", 1, Moment.HELD, first.pause)
            apply(cluster, render_service("clock", 8))
            wait_until("the write under way", lambda: proxy.has_struck)
            second.wait_leading()
            wait_whole(cluster, "clock", 2)
            apply(cluster, render_service("clock", 4))
            wait_whole(cluster, "clock", 3)
            before, status = len(proxy.writes), read_status(cluster, "clock")
            proxy.release()
            first.resume()
            wait_until("its end of leading", lambda: "no longer leading" in first.text)
            time.sleep(3)
            assert proxy.answers[before:] in ([409], [])
            assert read_status(cluster, "clock") == status
            assert is_whole(cluster, "clock", 3)
            assert first.is_running


def test_what_happened_while_an_operator_stood_still_and_history_went_is_seen(
    cluster: LocalCluster, proxy: ApiProxy, tmp_path: Path
) -> None:
    """Its watches go on from a version that the API server no longer knows."""
    with start(proxy, tmp_path, cluster, "history", "a") as operator:
        operator.wait_leading()
        apply(cluster, render_service("history"))
        wait_whole(cluster, "history")
        operator.pause()
        cluster.kubectl("-n", NAMESPACE, "delete", "service", "history-replicas")
        apply(cluster, render_service("history", 8))
        restart_api_server(cluster)  # its memory of changes begins anew
        operator.resume()
        wait_whole(cluster, "history", 2, LEASE_SECONDS + 15)
        assert operator.is_running


def test_what_happened_before_etcd_forgot_it_is_seen(
    cluster: LocalCluster, proxy: ApiProxy, tmp_path: Path
) -> None:
    """The API server asks etcd for every watch here: with its own memory it could still tell what was."""
    restart_api_server(cluster, "--watch-cache=false")
    try:
        with start(proxy, tmp_path, cluster, "compacted", "a") as operator:
            operator.wait_leading()
            apply(cluster, render_service("compacted"))
            wait_whole(cluster, "compacted")
            proxy.wait_until_quiet()
            operator.pause()
            cluster.kubectl("-n", NAMESPACE, "delete", "service", "compacted-replicas")
            apply(cluster, render_service("compacted", 8))
            restart_api_server(cluster, "--watch-cache=false")  # its watches end, as they do now and then
            compact(cluster.layout, cluster.ports)
            assert "ExpiredError" not in operator.text
            operator.resume()
            wait_whole(cluster, "compacted", 2, LEASE_SECONDS + 15)
            wait_until("the lists anew", lambda: "ExpiredError" in operator.text)
            assert operator.is_running
    finally:
        restart_api_server(cluster)


def restart_api_server(cluster: LocalCluster, *flags: str) -> None:
    cluster.kill_part("kube-apiserver")
    cluster.start_part("kube-apiserver", *flags)


def test_an_outage_of_minutes_at_many_services_ends_no_operator(
    cluster: LocalCluster, proxy: ApiProxy, tmp_path: Path
) -> None:
    names = [f"outage-{number}" for number in range(500)]
    with start(proxy, tmp_path, cluster, "outage", "a") as operator:
        operator.wait_leading()
        apply(cluster, *map(render_service, names))
        for name in names:
            wait_whole(cluster, name, seconds=180)
        proxy.wait_until_quiet()
        before, status = len(proxy.writes), read_status(cluster, "outage-9")
        cluster.kill_part("kube-apiserver")
        for _ in range(OUTAGE_SECONDS // LOOK_SECONDS):
            time.sleep(LOOK_SECONDS)
            assert operator.is_well
        cluster.start_part("kube-apiserver")
        began = time.monotonic()
        cluster.kubectl("-n", NAMESPACE, "delete", "service", "outage-7-replicas")
        apply(cluster, render_service("outage-new"))
        wait_whole(cluster, "outage-new", seconds=15)
        wait_whole(cluster, "outage-7", seconds=max(1.0, 15 - (time.monotonic() - began)))
        assert operator.is_running
        assert "Traceback" not in operator.text
        time.sleep(5)
        assert read_status(cluster, "outage-9") == status
        others = [
            write for write in proxy.writes[before:] if "outage-new" not in write and "outage-7-" not in write
        ]
        assert others == []
