"""An upgrade of the release and its rollback, under load: no replica restarts, no stream is cut."""

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.product import install_chart, roll_back_chart, wait_for_product
from e2e.earlier_version import EarlierVersion, unpack
from e2e.load import NUM_AT_TWO, assert_unharmed, long_streams_beside
from e2e.service import Service, service_in
from e2e.watch import Watch

EARLIER = "27dab7f8"
"""The gateways' metrics were on the clients' port, and the fields had their first names."""
SETTLE_SECONDS = 75.0
"""A window of the autoscaler's and the deadlines of what an operator may find missing."""
OBJECTIVES = [
    {"metric": "TimeToFirstToken", "percentile": 95, "target": "2s"},
    {"metric": "TimePerOutputToken", "percentile": 95, "target": "60ms"},
]
"""A replica of 0.3 cores misses them beside NUM_AT_TWO streams, and two keep them."""
SPREAD = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "ScheduleAnyway",
}
"""A field with defaults of the API server's, by which no revision may change."""
REMOVED = {"nodeTaintsPolicy": "Honor"}
"""What only the earlier version's schema has."""
COUNTS = "{.metadata.name} {.status.scaling.desiredReplicas}"


@pytest.fixture
def earlier(make_state_folder: Callable[[str], Path]) -> EarlierVersion:
    """The version that is upgraded."""
    return unpack(EARLIER, make_state_folder("earlier"))


@pytest.fixture
def upgraded_cluster(
    make_state_folder: Callable[[str], Path], earlier: EarlierVersion
) -> Iterator[LocalCluster]:
    """A cluster with that version alone."""
    local = LocalCluster(make_state_folder("upgrade"), images=(earlier.images,))
    try:
        local.start()
        earlier.install(local)
        wait_for_product(local, print)
        yield local
    finally:
        local.stop()


def apply_services(service: Service) -> list[Service]:
    """Apply one that scales itself, one scaled by hand, one with a field that went; return them serving."""
    by_hand, of_former_field = (
        Service(service.cluster, service.namespace, name) for name in ("by-hand", "of-former-field")
    )
    service.spec["resources"]["limits"] = {"cpu": "300m", "memory": "2Gi"}
    service.spec["scaling"] |= {"maxReplicas": 2, "objectives": OBJECTIVES}
    for one, constraint in ((by_hand, SPREAD), (of_former_field, SPREAD | REMOVED)):
        pod = {"topologySpreadConstraints": [constraint]}
        one.spec.update(replicas=1, scaling={"mode": "External"}, pod=pod)
    services = [service, by_hand, of_former_field]
    for one in services:
        one.apply()
    for one in services:
        one.wait_ready()
    return services


def list_runs(services: Iterable[Service]) -> dict[str, int]:
    """Return each pod's uid and how often its containers restarted."""
    pods = [pod for service in services for pod in service.pods()]
    return {
        pod["metadata"]["uid"]: sum(one["restartCount"] for one in pod["status"]["containerStatuses"])
        for pod in pods
    }


def settle(cluster: LocalCluster) -> None:
    """Wait until the release's pods are those of its version, and for SETTLE_SECONDS."""
    wait_for_product(cluster, print)
    time.sleep(SETTLE_SECONDS)


@pytest.mark.long
def test_an_upgrade_and_its_rollback_harm_nothing(upgraded_cluster: LocalCluster) -> None:
    cluster = upgraded_cluster
    with service_in(cluster, "upgrade") as service:
        *unchanged, of_former_field = services = apply_services(service)
        with long_streams_beside(service, NUM_AT_TWO) as load:
            service.wait_for("two replicas", lambda: service.status()["readyReplicas"] == 2, 180)
            time.sleep(SETTLE_SECONDS)
            runs = list_runs(unchanged)
            with Watch(cluster, "infsvc", "-n", service.namespace, jsonpath=COUNTS) as counts:
                install_chart(cluster)
                settle(cluster)
                assert list_runs(unchanged) == runs
                assert of_former_field.condition("SpecCurrent")["reason"] == "FieldsRemoved"
                roll_back_chart(cluster)
                settle(cluster)
                assert list_runs(unchanged) == runs
        wanted = {one.name: 2 if one is service else 1 for one in services}
        assert {line.text for line in counts.lines} == {f"{name} {count}" for name, count in wanted.items()}
        assert_unharmed(load)
