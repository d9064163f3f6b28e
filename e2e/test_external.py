"""Mode External: the count is what an HPA on an outer metric writes, or KEDA, and never the operator."""

import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from e2e.cluster.controlplane import client_context
from e2e.cluster.local_cluster import LocalCluster
from e2e.external_metrics import Subject, serving
from e2e.hpa import apply_adapter, apply_hpa, delete_adapter, render_hpa
from e2e.managed_fields import OPERATOR, find_writers, find_written
from e2e.service import Service

TARGET = 4
"""What each replica is to have of the metric."""
MOST = 3
SYNC_SECONDS = 10.0
NUM_ROUNDS = 100
"""In each of them KEDA writes 0 and then 1."""


@dataclass
class Gauge:
    """The metric, as the test sets it."""

    value: float = TARGET


@pytest.fixture
def gauge(product: LocalCluster) -> Iterator[Gauge]:
    """A metric that the API server serves to HPAs while the test runs."""
    found, keys = Gauge(), product.layout.keys
    with serving(lambda _: found.value, keys / "server.crt", keys / "server.key") as port:
        try:
            apply_adapter(product, port)
            yield found
        finally:
            delete_adapter(product)


@pytest.fixture
def external(service: Service) -> Service:
    """A service whose count others write, and whose manifest has none."""
    service.spec["scaling"] = {"mode": "External"}
    service.apply()
    service.wait_ready()
    return service


def sync(service: Service) -> None:
    """Apply the manifest, as Git has it, as a client and on the server."""
    service.apply()
    service.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(service.manifest))


def while_syncing(service: Service, is_done: Callable[[], bool]) -> Callable[[], bool]:
    """Return `is_done` for a poll that also applies the manifest every ten seconds, as Argo CD may."""
    synced_at = time.monotonic()

    def look() -> bool:
        nonlocal synced_at
        if time.monotonic() - synced_at >= SYNC_SECONDS:
            sync(service)
            synced_at = time.monotonic()
        return is_done()

    return look


def test_an_hpa_alone_writes_the_count_while_the_manifest_is_applied(external: Service, gauge: Gauge) -> None:
    found = external.read()
    assert found["spec"]["replicas"] == 1  # which the operator wrote, so that the HPA begins
    generation = found["metadata"]["generation"]
    apply_hpa(external, render_hpa(Subject(external.namespace, external.name), TARGET, MOST, 0))
    sync(external)
    gauge.value = MOST * TARGET
    is_three = while_syncing(external, lambda: external.status().get("readyReplicas") == MOST)
    external.wait_for("three", is_three, 120)
    sync(external)
    assert external.read()["spec"]["replicas"] == MOST
    gauge.value = TARGET
    external.wait_for("one", while_syncing(external, lambda: len(external.pods()) == 1), 120)
    sync(external)
    found = external.read()
    assert found["spec"]["replicas"] == 1
    assert find_writers(found, "replicas") <= {
        "kube-controller-manager"
    }  # no writer of a first count is kept
    assert find_written(found, OPERATOR) == {"status"}
    assert found["metadata"]["generation"] == generation + 2  # so nobody else wrote its spec


@pytest.mark.parametrize("flags", [(), ("--server-side", "--force-conflicts")], ids=["client", "server"])
def test_a_count_that_a_manifest_takes_back_stays(external: Service, flags: tuple[str, ...]) -> None:
    def apply() -> None:
        external.kubectl("apply", *flags, "-f", "-", stdin=json.dumps(external.manifest))

    external.spec["replicas"] = 2
    apply()
    external.wait_for("two", lambda: external.status().get("replicas") == 2)
    del external.spec["replicas"]
    apply()
    external.wait_for("two again", lambda: external.read()["spec"].get("replicas") == 2)
    assert external.status()["replicas"] == 2


def test_the_last_of_many_writes_of_kedas_is_the_count(external: Service, gauge: Gauge) -> None:
    external.spec["replicas"] = 1
    external.apply()
    assert gauge.value == TARGET  # with which the HPA wants one
    apply_hpa(external, render_kedas_hpa(external))
    before = external.read()["metadata"]["generation"]
    context = client_context(external.cluster.layout.keys, "ca", "admin")
    port = external.cluster.ports.api
    with closing(http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=30)) as connection:
        for _ in range(NUM_ROUNDS):
            for count in (0, 1):
                write_scale(connection, external, count)
    external.wait_ready()
    external.wait_for("one", lambda: len(external.pods()) == 1)
    found = external.read()
    assert found["spec"]["replicas"] == 1
    assert find_writers(found, "replicas") == set()  # the API server keeps no writer of a count that was 0
    assert find_written(found, OPERATOR) == {"status"}
    assert found["metadata"]["generation"] == before + 2 * NUM_ROUNDS  # so nobody else wrote its spec


def render_kedas_hpa(service: Service) -> dict[str, Any]:
    """Return the HPA that KEDA makes of a ScaledObject of the service's name."""
    hpa = render_hpa(Subject(service.namespace, service.name), TARGET, MOST, 0)
    name = f"keda-hpa-{service.name}"
    labels = {"app.kubernetes.io/managed-by": "keda-operator", "scaledobject.keda.sh/name": service.name}
    hpa["metadata"] |= {"name": name, "labels": labels | {"app.kubernetes.io/name": name}}
    return hpa


def write_scale(connection: http.client.HTTPSConnection, service: Service, count: int) -> None:
    """Read the scale and write it back with another count, as KEDA does; again where somebody was quicker."""
    path = (
        f"/apis/millrace.dev/v1alpha1/namespaces/{service.namespace}/inferenceservices/{service.name}/scale"
    )
    headers = {"Content-Type": "application/json", "User-Agent": "keda/2.18.0"}
    status = 409
    while status == 409:
        connection.request("GET", path, headers=headers)
        scale = json.loads(connection.getresponse().read())
        scale["spec"]["replicas"] = count
        connection.request("PUT", path, json.dumps(scale), headers)
        response = connection.getresponse()
        status, answer = response.status, response.read()
    assert status == 200, answer
