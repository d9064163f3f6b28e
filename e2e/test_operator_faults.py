"""The operator on a real API server that fails, and under hands that stop and kill it at bad moments."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from e2e.api_proxy import ApiProxy, Moment
from e2e.cluster.api_reader import is_observed
from e2e.cluster.controlplane import client_context
from e2e.cluster.errors import PartFailedError
from e2e.cluster.etcd import compact
from e2e.cluster.local_cluster import LocalCluster
from e2e.namespaces import create_namespace
from e2e.operator_process import OperatorProcess
from e2e.write_faults import LEASE_SECONDS, run_side_by_side
from testing.polling import wait_until

ROOT = Path(__file__).resolve().parents[1]
CHILDREN = {
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "ControllerRevision": "/apis/apps/v1/namespaces/{}/controllerrevisions",
    "Service": "/api/v1/namespaces/{}/services",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
}
NUM_WRITES = 7
"""Of a new service: its status, and its six children."""
NUM_EDIT_WRITES = 3
"""Of another revision: status, ControllerRevision, Deployment."""
LOOK_SECONDS = 5
"""Between two probes of the operator while the API server is away."""
QUIET_SECONDS = 3.0
"""Longer than one write waits for the next."""


@dataclass(frozen=True)
class Place:
    """A namespace with services in it."""

    cluster: LocalCluster
    namespace: str

    def apply(self, *services: dict[str, Any]) -> None:
        """Apply services as a user does."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(services)}
        words = ("-n", self.namespace, "apply", "--server-side", "--force-conflicts", "-f", "-")
        self.cluster.kubectl(*words, stdin=json.dumps(listed))

    def read(self, name: str) -> dict[str, Any]:
        path = f"/apis/millrace.dev/v1alpha1/namespaces/{self.namespace}/inferenceservices/{name}"
        return self.cluster.api.get(path)

    def read_status(self, name: str) -> Any:
        return self.read(name)["status"]

    def list_children(self, name: str) -> list[str]:
        """Return the kinds of a service's children, each as often as it is there; Deployments by name."""
        return sorted(
            f"{kind} {found['metadata']['name']}" if kind == "Deployment" else kind
            for kind, path in CHILDREN.items()
            for found in self.cluster.api.list(path.format(self.namespace), f"millrace.dev/service={name}")
        )

    def is_whole(self, name: str, num_revisions: int = 1) -> bool:
        """Whether a service has its status and exactly its children.

        An old revision that never served has no Deployment any more.
        """
        found = self.read(name)
        if not is_observed(found):
            return False
        newest = f"{name}-{found['status']['updateRevision']}"
        return self.list_children(name) == sorted(
            [
                *["ControllerRevision"] * num_revisions,
                *[f"Deployment {newest}", "PodDisruptionBudget", "Service", "Service", "ServiceAccount"],
            ]
        )

    def wait_whole(self, name: str, num_revisions: int = 1, seconds: float = 60.0) -> None:
        try:
            wait_until(f"{name} is whole", lambda: self.is_whole(name, num_revisions), seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.list_children(name)}") from None

    def delete_child(self, name: str) -> None:
        """Delete a Service of a service's."""
        self.cluster.kubectl("-n", self.namespace, "delete", "service", name)


@pytest.fixture(scope="module")
def cluster(make_state_folder: Callable[[str], Path]) -> Iterator[LocalCluster]:
    """A control plane of this file's own: it is killed, and its garbage collection must not help."""
    local = LocalCluster(make_state_folder("faults"), nodes=())
    try:
        local.start()
        local.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
        established = ("wait", "--for=condition=Established", "crd/inferenceservices.millrace.dev")
        wait_until("the definition", lambda: local.kubectl(*established), 60, outlives=(PartFailedError,))
        create_namespace(local, "faults")
        local.kill_part("kube-controller-manager")
        yield local
    finally:
        local.kill_part("kube-apiserver")  # it would wait for those who watch
        local.stop()


@pytest.fixture
def place(cluster: LocalCluster) -> Place:
    """The namespace that all but the services of killed operators are in."""
    return Place(cluster, "faults")


@pytest.fixture
def proxy(cluster: LocalCluster) -> Iterator[ApiProxy]:
    with open_proxy(cluster) as found:
        yield found


def open_proxy(cluster: LocalCluster) -> ApiProxy:
    return ApiProxy(cluster.api_url, client_context(cluster.layout.keys, "ca", "admin"))


def start(proxy: ApiProxy, folder: Path, lease: str, name: str, *flags: str) -> OperatorProcess:
    """Start an operator whose Lease is in the namespace `lease`."""
    log = folder / f"{lease}-{name}.log"
    flags = ("--writes-per-second", "1000", *flags)
    return OperatorProcess(proxy.render_kubeconfig(), lease, log, identity=name, flags=flags)


def make_namespaces(cluster: LocalCluster, *names: str) -> None:
    """Make namespaces without a quota, for nobody counts here what it bounds."""
    items = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in names]
    listed = {"apiVersion": "v1", "kind": "List", "items": items}
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(listed))


def render_service(name: str, max_sequences: int = 16) -> dict[str, Any]:
    """Return a service in mode External: its status moves by events alone."""
    spec: dict[str, Any] = {
        "model": {"uri": "file:///models/stories"},
        "engine": {"maxSequences": max_sequences},
    }
    return {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {**spec, "scaling": {"mode": "External"}, "replicas": 1},
    }


class Kill(NamedTuple):
    """The death of an operator at one of its writes, in a namespace and with a service of its own."""

    moment: Moment
    number: int
    """Of the write, from 1 on."""
    is_of_edit: bool
    """Whether the service is whole before that, and another revision is asked for."""

    @property
    def name(self) -> str:
        return f"{self.moment}-{'edit' if self.is_of_edit else 'new'}-{self.number}"

    @property
    def num_revisions(self) -> int:
        return 2 if self.is_of_edit else 1


@pytest.mark.parametrize("moment", [Moment.LOST, Moment.LANDED])
def test_a_kill_at_any_write_is_made_up_for_by_the_next_operator(
    cluster: LocalCluster, proxy: ApiProxy, tmp_path: Path, moment: Moment
) -> None:
    kills = [Kill(moment, number, is_of_edit=False) for number in range(1, NUM_WRITES + 1)]
    kills += [Kill(moment, number, is_of_edit=True) for number in range(1, NUM_EDIT_WRITES + 1)]
    make_namespaces(cluster, *(kill.name for kill in kills), f"{moment}-last")
    run_side_by_side(partial(kill_at, kill, cluster, tmp_path) for kill in kills)
    with start(proxy, tmp_path, f"{moment}-last", "last"):
        for kill in kills:
            Place(cluster, kill.name).wait_whole(kill.name, kill.num_revisions)


def kill_at(kill: Kill, cluster: LocalCluster, folder: Path) -> None:
    """Have an operator die at that write of what applying this service asks for."""
    place = Place(cluster, kill.name)
    with (
        open_proxy(cluster) as proxy,
        start(proxy, folder, kill.name, "killed", "--namespaces", kill.name) as operator,
    ):
        operator.wait_leading()
        if kill.is_of_edit:
            place.apply(render_service(kill.name))
            place.wait_whole(kill.name)
            proxy.wait_until_quiet(QUIET_SECONDS)
        proxy.strike(kill.name, kill.number, kill.moment, operator.kill)
        place.apply(render_service(kill.name, 8 if kill.is_of_edit else 16))
        operator.wait_ended()
        assert proxy.has_struck


def test_a_leader_that_stood_still_writes_nothing_more(place: Place, proxy: ApiProxy, tmp_path: Path) -> None:
    """Its clock stops while a write of its is under way. Another leads, and the write arrives after that."""
    make_namespaces(place.cluster, "clock")
    with open_proxy(place.cluster) as others, start(proxy, tmp_path, "clock", "a") as first:
        first.wait_leading()
        with start(others, tmp_path, "clock", "b") as second:
            place.apply(render_service("clock"))
            place.wait_whole("clock")
            proxy.strike("clock", 1, Moment.HELD, first.pause)
            place.apply(render_service("clock", 8))
            wait_until("the write under way", lambda: proxy.has_struck)
            second.wait_leading()
            place.wait_whole("clock", 2)
            place.apply(render_service("clock", 4))
            place.wait_whole("clock", 3)
            before, status = len(proxy.writes), place.read_status("clock")
            proxy.release()
            first.resume()
            wait_until("its end of leading", lambda: "no longer leading" in first.text)
            time.sleep(QUIET_SECONDS)
            assert proxy.answers[before:] in ([409], [])
            assert place.read_status("clock") == status
            assert place.is_whole("clock", 3)
            assert first.is_running


def test_what_happened_while_an_operator_stood_still_and_history_went_is_seen(
    place: Place, proxy: ApiProxy, tmp_path: Path
) -> None:
    """Its watches go on from a version that the API server no longer knows."""
    make_namespaces(place.cluster, "history")
    with start(proxy, tmp_path, "history", "a") as operator:
        operator.wait_leading()
        place.apply(render_service("history"))
        place.wait_whole("history")
        operator.pause()
        place.delete_child("history-replicas")
        place.apply(render_service("history", 8))
        restart_api_server(place.cluster)  # it forgets all changes
        operator.resume()
        place.wait_whole("history", 2, LEASE_SECONDS + 15)
        assert operator.is_running


@pytest.mark.parametrize(
    ("num_services", "seconds"), [(60, 35), pytest.param(500, 125, marks=pytest.mark.long)]
)
def test_an_outage_at_many_services_ends_no_operator(
    place: Place, proxy: ApiProxy, tmp_path: Path, num_services: int, seconds: int
) -> None:
    """Longer than a Lease lasts, and until its watches wait longest before they try again."""
    lease = f"outage-of-{num_services}"
    names = [f"{lease}-{number}" for number in range(num_services)]
    make_namespaces(place.cluster, lease)
    with start(proxy, tmp_path, lease, "a") as operator:
        operator.wait_leading()
        place.apply(*map(render_service, names))
        for name in names:
            place.wait_whole(name, seconds=180)
        proxy.wait_until_quiet(QUIET_SECONDS)
        before, status = len(proxy.writes), place.read_status(names[9])
        place.cluster.kill_part("kube-apiserver")
        for _ in range(seconds // LOOK_SECONDS):
            time.sleep(LOOK_SECONDS)
            assert operator.is_well
        assert "no longer leading" in operator.text
        place.cluster.start_part("kube-apiserver")
        began = time.monotonic()
        place.delete_child(f"{names[7]}-replicas")
        new = f"{lease}-new"
        place.apply(render_service(new))
        place.wait_whole(new, seconds=15)
        place.wait_whole(names[7], seconds=max(1.0, 15 - (time.monotonic() - began)))
        assert operator.is_running
        assert "Traceback" not in operator.text
        time.sleep(5)
        assert place.read_status(names[9]) == status
        others = [
            write for write in proxy.writes[before:] if new not in write and f"{names[7]}-" not in write
        ]
        assert others == []


def test_what_happened_before_etcd_forgot_it_is_seen(place: Place, proxy: ApiProxy, tmp_path: Path) -> None:
    """The API server asks etcd for every watch here: with its own memory it could still report old changes.

    This test is the file's last one, as it leaves such an API server behind.
    """
    make_namespaces(place.cluster, "compacted")
    restart_api_server(place.cluster, "--watch-cache=false")
    with start(proxy, tmp_path, "compacted", "a") as operator:
        operator.wait_leading()
        place.apply(render_service("compacted"))
        place.wait_whole("compacted")
        proxy.wait_until_quiet(QUIET_SECONDS)
        operator.pause()
        place.delete_child("compacted-replicas")
        place.apply(render_service("compacted", 8))
        restart_api_server(place.cluster, "--watch-cache=false")  # its watches end, as they do now and then
        compact(place.cluster.layout, place.cluster.ports)
        assert "the API server answered 410" not in operator.text
        operator.resume()
        place.wait_whole("compacted", 2, LEASE_SECONDS + 15)
        wait_until("the new lists", lambda: "the API server answered 410" in operator.text)
        assert operator.is_running


def restart_api_server(cluster: LocalCluster, *flags: str) -> None:
    cluster.kill_part("kube-apiserver")
    cluster.start_part("kube-apiserver", *flags)
