"""Scale to zero and back: nobody asks and nothing runs; the next request is answered by a new replica."""

import json
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from e2e.service import Service
from e2e.traffic import Target

AFTER = "5s"
NUM_CLIENTS = 40


@pytest.fixture
def resting(service: Service) -> Service:
    """A service that had a replica, and has none as nobody asks."""
    service.spec["scaling"] = {"minReplicas": 0, "maxReplicas": 2, "scaleToZeroAfter": AFTER}
    service.apply()
    service.wait_for("at rest", lambda: is_at_rest(service), 90)
    return service


def is_at_rest(service: Service) -> bool:
    return service.condition("Ready").get("reason") == "ScaledToZero" and not service.pods()


def ask(target: Target, seconds: float = 60.0) -> float:
    """Ask for a token and return how long it took."""
    body = {"model": target.model, "prompt": "Once", "max_tokens": 1}
    request = urllib.request.Request(
        f"{target.url}/v1/completions",
        json.dumps(body).encode(),
        {**target.headers, "Content-Type": "application/json"},
    )
    began = time.monotonic()
    with urllib.request.urlopen(request, timeout=seconds) as answer:
        assert json.loads(answer.read())["usage"]["completion_tokens"] == 1
    return time.monotonic() - began


def test_many_first_requests_wake_a_service_once_and_it_rests_again(resting: Service) -> None:
    assert resting.condition("Ready")["status"] == "True"
    generation = resting.get("deployment", find_deployment(resting))["metadata"]["generation"]
    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        times = list(clients.map(ask, [resting.target()] * NUM_CLIENTS))
    assert len(times) == NUM_CLIENTS
    woken = resting.get("deployment", find_deployment(resting))["metadata"]["generation"]
    assert woken == generation + 1
    assert len(resting.pods()) == 1
    resting.wait_for("at rest again", lambda: is_at_rest(resting), 60)


def find_deployment(service: Service) -> str:
    names = service.kubectl("get", "deployment", "-l", f"millrace.dev/service={service.name}", "-o", "name")
    return names.strip().partition("/")[2]
