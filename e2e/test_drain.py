"""A scale-down under load: the leaving replica gets nothing new, ends what it has, and only then goes."""

import time
from typing import Any
from urllib.error import URLError

import pytest

from e2e.load import assert_unharmed, load_beside
from e2e.replica_metrics import read_running
from e2e.service import Service
from millrace_runtime.contract import ANNOTATION_LEAVING

pytestmark = pytest.mark.alone
RATE = 3.0
LONG = 600
"""Tokens of a stream that is still under way when something happens."""


def scale(service: Service, replicas: int) -> None:
    service.spec["replicas"] = replicas
    service.apply()


def start_two(service: Service) -> set[str]:
    """Serve with two replicas, and return their pods' uids."""
    service.spec["scaling"] = {"mode": "External"}
    scale(service, 2)
    service.wait_ready()
    service.wait_for("two", lambda: service.status().get("readyReplicas") == 2, 60)
    return {pod["metadata"]["uid"] for pod in service.pods()}


def find_leavers(service: Service) -> list[dict[str, Any]]:
    return [pod for pod in service.pods() if ANNOTATION_LEAVING in pod["metadata"].get("annotations", {})]


def test_a_leaving_replica_goes_when_its_last_stream_has_ended(service: Service) -> None:
    before = start_two(service)
    with load_beside(service, RATE, LONG) as load:
        time.sleep(25.0)  # both have their full share of the requests
        scale(service, 1)
        service.wait_for("a mark", lambda: bool(find_leavers(service)), 20)
        (leaver,) = find_leavers(service)
        running = [read_running(leaver)]
        began = time.monotonic()
        while find_leavers(service):
            assert time.monotonic() < began + 120.0, service.explain()
            try:
                running.append(read_running(leaver))
            except (URLError, OSError):
                break
            time.sleep(0.05)
        service.wait_for("one", lambda: len(service.pods()) == 1, 30)
    assert running[0] > 0, "no stream was under way at the replica that left"
    assert running[-1] == 0, running
    assert {pod["metadata"]["uid"] for pod in service.pods()} < before
    assert_unharmed(load)


def test_a_replica_that_is_needed_again_stays(service: Service) -> None:
    before = start_two(service)
    with load_beside(service, RATE, LONG) as load:
        time.sleep(25.0)
        scale(service, 1)
        service.wait_for("a mark", lambda: bool(find_leavers(service)), 20)
        scale(service, 2)
        service.wait_for("no mark", lambda: not find_leavers(service), 20)
        time.sleep(2.0)
    assert {pod["metadata"]["uid"] for pod in service.pods()} == before
    assert_unharmed(load)
