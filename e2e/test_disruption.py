"""The release is upgraded and a replica dies in mid-stream: who is served elsewhere notices nothing."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster.errors import PartFailedError
from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.product import NAMESPACE, install_chart
from e2e.host_processes import kill_pod_processes
from e2e.load import NUM_AT_TWO, assert_unharmed, load_beside, long_streams_beside
from e2e.replica_metrics import read_running
from e2e.service import Service, is_absent, service_in
from testing.polling import wait_until
from testing.traffic import Load

RATE = 2.0
"""Requests a second while the API server is gone."""


def find_busiest(service: Service) -> dict[str, Any]:
    """Wait for a replica with two streams or more under way, and return it."""
    found: list[dict[str, Any]] = []

    def find() -> bool:
        found[:] = [pod for pod in service.pods() if read_running(pod) > 1]
        return bool(found)

    service.wait_for("streams under way", find, 60)
    return found[0]


def count_under_way(load: Load) -> int:
    """Return how many streams have their first token and no end."""
    return sum(stream.first_token is not None and stream.ended is None for stream in load.streams)


@pytest.fixture(scope="module")
def pair(product: LocalCluster) -> Iterator[Service]:
    """A service of two replicas that serve."""
    with service_in(product, "disruption") as found:
        found.spec["scaling"] |= {"minReplicas": 2, "maxReplicas": 2}
        found.apply()
        found.wait_ready()
        yield found


def list_containers(service: Service) -> set[str]:
    """The ids of the replicas' containers: a restart changes one."""
    return {each["containerID"] for pod in service.pods() for each in pod["status"]["containerStatuses"]}


def test_an_upgrade_of_the_release_and_the_way_back_cut_no_stream(pair: Service) -> None:
    """Helm replaces gateways and operators, whose flags change, and no replica."""
    replicas = list_containers(pair)
    short_name = f"gateway.shortNames.upgraded={pair.namespace}/{pair.name}"
    with long_streams_beside(pair, NUM_AT_TWO) as load:
        for settings in ((short_name,), ()):
            find_busiest(pair)
            install_chart(pair.cluster, *settings)
            for name in ("millrace-gateway", "millrace-operator"):
                rollout = ("rollout", "status", "deployment", name, "--timeout=110s")
                pair.cluster.kubectl("-n", NAMESPACE, *rollout)
        find_busiest(pair)
    assert_unharmed(load)
    assert list_containers(pair) == replicas


def test_a_killed_replicas_streams_say_so_and_all_others_go_on(pair: Service) -> None:
    pair.wait_ready()
    with long_streams_beside(pair, NUM_AT_TWO) as load:
        busiest = find_busiest(pair)
        # The gateway asks another replica for a stream that has no token yet. All of them begin and end at
        # nearly the same time, so without this wait there may be none to cut.
        wait_until("a token at each client", lambda: count_under_way(load) == NUM_AT_TWO)
        assert kill_pod_processes(busiest) > 0
        killed_at = time.monotonic() - load.began
        pair.wait_for("down to one", lambda: pair.status().get("readyReplicas") == 1, 20)
        pair.wait_for("two again", lambda: pair.status().get("readyReplicas") == 2)
    harmed = [stream for stream in load.streams if stream.is_truncated or stream.is_refused]
    assert any(stream.is_truncated for stream in harmed), "no stream was under way where the replica died"
    assert all(stream.sent < killed_at for stream in harmed), harmed
    assert all(stream.error for stream in harmed), harmed
    assert any("The replica broke off" in str(stream.error) for stream in harmed), harmed
    assert all(stream.ended is not None and stream.ended < killed_at + 30.0 for stream in harmed), harmed


@pytest.mark.parametrize("seconds", [20, pytest.param(600, marks=pytest.mark.long)])
def test_requests_are_answered_while_the_api_server_is_gone(pair: Service, seconds: int) -> None:
    """The operator loses its Lease meanwhile, and repairs what was deleted once the server is back."""
    cluster, child = pair.cluster, ("-n", pair.namespace, "service", pair.name)
    pair.wait_ready()
    with load_beside(pair, RATE, seconds=seconds + 300) as load:
        cluster.kill_part("kube-apiserver")
        num_before = len(load.streams)
        wait_until("requests", lambda: len(load.streams) >= num_before + RATE * seconds, 2 * seconds)
        cluster.start_part("kube-apiserver")
        wait_until("deleted", lambda: cluster.kubectl("delete", *child), outlives=(PartFailedError,))
        pair.wait_for("repaired", lambda: not is_absent(cluster, *child), 90)
    assert_unharmed(load)
