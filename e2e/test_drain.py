"""A scale-down under load: the leaving replica gets nothing new, ends what it has, and only then goes."""

import time
from collections.abc import Iterator
from typing import Any
from urllib.error import URLError

import pytest

from e2e.cluster.local_cluster import LocalCluster
from e2e.load import NUM_AT_TWO, assert_unharmed, long_streams_beside
from e2e.replica_metrics import read_running
from e2e.service import Service, service_in
from millrace_runtime.contract import ANNOTATION_LEAVING


@pytest.fixture(scope="module")
def pair(product: LocalCluster) -> Iterator[Service]:
    """A service of two replicas that serve, the number of which its user sets."""
    with service_in(product, "drain") as found:
        found.spec["scaling"] = {"mode": "External"}
        scale(found, 2)
        found.wait_ready()
        found.wait_for("two", lambda: found.status().get("readyReplicas") == 2)
        yield found


def scale(service: Service, replicas: int) -> None:
    service.spec["replicas"] = replicas
    service.apply()


def wait_until_both_are_busy(service: Service) -> None:
    service.wait_for("streams at both", lambda: all(read_running(pod) > 1 for pod in service.pods()), 60)


def find_leavers(service: Service) -> list[dict[str, Any]]:
    return [pod for pod in service.pods() if ANNOTATION_LEAVING in pod["metadata"].get("annotations", {})]


def start_leaving(service: Service) -> dict[str, Any]:
    """Want one replica less while both have streams, and return the one that the operator has marked."""
    wait_until_both_are_busy(service)
    scale(service, 1)
    service.wait_for("a mark", lambda: bool(find_leavers(service)), 20)
    (leaver,) = find_leavers(service)
    return leaver


def uids(service: Service) -> set[str]:
    return {pod["metadata"]["uid"] for pod in service.pods()}


def test_a_replica_that_is_needed_again_stays(pair: Service) -> None:
    before = uids(pair)
    with long_streams_beside(pair, NUM_AT_TWO) as load:
        start_leaving(pair)
        scale(pair, 2)
        pair.wait_for("no mark", lambda: not find_leavers(pair), 20)
        wait_until_both_are_busy(pair)
    assert uids(pair) == before
    assert_unharmed(load)


def test_a_leaving_replica_goes_when_its_last_stream_has_ended(pair: Service) -> None:
    before = uids(pair)
    with long_streams_beside(pair, NUM_AT_TWO) as load:
        leaver = start_leaving(pair)
        running = [read_running(leaver)]
        began = time.monotonic()
        while find_leavers(pair):
            assert time.monotonic() < began + 120.0, pair.explain()
            try:
                running.append(read_running(leaver))
            except (URLError, OSError):
                break
            time.sleep(0.05)
        pair.wait_for("one", lambda: len(pair.pods()) == 1, 30)
    assert running[0] > 0, "no stream was under way at the replica that left"
    assert running[-1] == 0, running
    assert uids(pair) < before
    assert_unharmed(load)
