"""Scale to zero and back: nobody asks and nothing runs; the next request is answered by a new replica."""

import http.client
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime
from urllib.error import HTTPError

import pytest

from e2e.api_client import create, delete
from e2e.cluster.api_reader import is_observed
from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.product import find_gateway
from e2e.leader import find_leader, kill_leader
from e2e.namespaces import path_of
from e2e.service import Service, service_in
from testing.traffic import ask_for_token

AFTER = "5s"
NUM_CLIENTS = 40
WAIT_SECONDS = 2.0
"""`activation.maxWait` where no replica can come."""


@pytest.fixture(scope="module")
def sleeper(product: LocalCluster) -> Iterator[Service]:
    """A service that may rest, not yet applied."""
    with service_in(product, "rest") as found:
        found.spec["resources"]["limits"]["cpu"] = "2"  # its starts are waited for
        found.spec["scaling"] = {"minReplicas": 0, "maxReplicas": 2, "scaleToZeroAfter": AFTER}
        yield found


@pytest.fixture
def resting(sleeper: Service) -> Service:
    """A service that had a replica, and has none as nobody asks."""
    sleeper.apply()
    sleeper.wait_for("at rest", lambda: is_observed(sleeper.read()) and sleeper.is_at_rest())
    return sleeper


@pytest.fixture
def no_replica_can_come(resting: Service) -> Iterator[None]:
    """No room in the namespace, and a request waits no longer than WAIT_SECONDS."""
    quota = {"metadata": {"name": "no-pod"}, "spec": {"hard": {"pods": "0"}}}
    quotas = f"{path_of(resting.namespace)}/resourcequotas"
    create(resting.cluster, quotas, quota)
    resting.spec["scaling"]["activation"] = {"maxWait": f"{WAIT_SECONDS:.0f}s"}
    resting.apply()
    resting.wait_for("seen", lambda: is_observed(resting.read()))
    yield
    del resting.spec["scaling"]["activation"]
    delete(resting.cluster, f"{quotas}/no-pod")


def test_many_first_requests_wake_a_service_once_and_it_rests_again(resting: Service) -> None:
    assert resting.condition("Ready")["status"] == "True"
    generation = read_generation(resting)
    asked_at = time.time()
    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        answers = list(clients.map(ask_for_token, [resting.target()] * NUM_CLIENTS))
    assert len(answers) == NUM_CLIENTS
    assert read_generation(resting) == generation + 1
    (replica,) = resting.pods()
    made_at = datetime.fromisoformat(replica["metadata"]["creationTimestamp"]).timestamp()
    assert made_at >= int(asked_at)  # it has whole seconds
    resting.wait_for("at rest again", resting.is_at_rest)


def read_generation(service: Service) -> int:
    """Return how often the Deployment's spec has changed."""
    path = f"/apis/apps/v1/namespaces/{service.namespace}/deployments"
    (deployment,) = service.cluster.api.list(path, f"millrace.dev/service={service.name}")
    return int(deployment["metadata"]["generation"])


def test_a_request_that_waits_while_nobody_leads_is_answered_under_the_next_leader(resting: Service) -> None:
    leader = kill_leader(resting.cluster)
    with ThreadPoolExecutor(1) as clients:
        answer = clients.submit(ask_for_token, resting.target())
        time.sleep(3.0)
        assert find_leader(resting.cluster) == leader
        assert not answer.done()
        assert resting.pods() == []
        answer.result()
    assert find_leader(resting.cluster) not in {"", leader}
    assert len(resting.pods()) == 1


def test_a_client_that_left_while_it_waited_keeps_nothing_awake(resting: Service) -> None:
    gateway, target = find_gateway(resting.cluster), resting.target()
    with closing(http.client.HTTPConnection(gateway.host, gateway.port)) as client:
        headers = {**target.headers, "Content-Type": "application/json"}
        client.request("POST", "/v1/completions", json.dumps(target.body(0)), headers)
        resting.wait_for("woken", lambda: len(resting.pods()) == 1)
    resting.wait_for("at rest again", resting.is_at_rest)


@pytest.mark.usefixtures("no_replica_can_come")
def test_a_request_waits_no_longer_than_it_may_where_no_replica_can_come(resting: Service) -> None:
    began = time.monotonic()
    with pytest.raises(HTTPError) as refusal:
        ask_for_token(resting.target())
    assert WAIT_SECONDS <= time.monotonic() - began < WAIT_SECONDS + 30.0  # the default is five minutes
    assert refusal.value.code == 503
    assert int(refusal.value.headers["Retry-After"]) > 0
    with refusal.value:
        assert "has no replica that can answer now" in refusal.value.read().decode()
    assert resting.pods() == []
