"""A service whose clients need keys: from the making of a key to its end, with a real gateway and replica."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.product import NAMESPACE, find_gateway
from e2e.plugin import ask_cluster
from e2e.ramp import desired_replicas
from e2e.service import Service
from testing.traffic import Load

SECRET = "closed-keys"
CLIENTS, SECONDS_OF_LOAD = 48, 120.0


@pytest.fixture
def closed(product: LocalCluster) -> Iterator[Service]:
    """A service in the gateways' own namespace, whose Secrets they may read; not yet applied."""
    found = Service(product, NAMESPACE, "closed")
    found.spec["access"] = {
        "authentication": {"mode": "APIKey", "secretName": SECRET},
        "rateLimits": [{"per": "Key", "requestsPerMinute": 20, "tokensPerMinute": 100_000}],
    }
    yield found
    found.discard()
    found.kubectl("delete", "secret", SECRET, "--ignore-not-found")


def make_key(service: Service, client: str) -> str:
    return ask_cluster(service.cluster, NAMESPACE, "key", "create", SECRET, client).strip()


def connect(service: Service, key: str) -> openai.OpenAI:
    host = {"Host": f"closed.{NAMESPACE}.svc.cluster.local"}
    url = f"{find_gateway(service.cluster).url}/v1"
    return openai.OpenAI(base_url=url, api_key=key, default_headers=host, max_retries=0)


def complete(client: openai.OpenAI, **fields: object) -> object:
    return client.completions.create(model="closed", prompt="Once", max_tokens=4, **fields)  # type: ignore[call-overload]


def read_use(client: openai.OpenAI) -> dict[str, Any]:
    (use,) = client.get("/usage", cast_to=httpx.Response).json()["data"]
    found: dict[str, Any] = use
    return found


def exhaust(client: openai.OpenAI) -> None:
    for _ in range(25):
        complete(client)


def is_open(client: openai.OpenAI) -> bool:
    try:
        complete(client)
    except openai.AuthenticationError:
        return False
    return True


def test_a_key_opens_a_service_until_it_is_revoked_and_its_use_is_told(closed: Service) -> None:
    closed.spec["model"]["servedName"] = "closed"
    ann, bob = (make_key(closed, client) for client in ("ann", "bob"))
    closed.apply()
    closed.wait_ready()
    assert closed.condition("AccessReady")["reason"] == "KeysReadable"
    with connect(closed, ann) as first, connect(closed, bob) as second, connect(closed, "mr-eve") as stranger:
        closed.wait_for("open to the key", lambda: is_open(first))
        for client in (first, second):
            chunks = list(complete(client, stream=True))  # type: ignore[call-overload]
            assert len(chunks) >= 4
        with pytest.raises(openai.AuthenticationError):
            complete(stranger)
        # Another gateway may answer, which learns of the use within seconds.
        closed.wait_for("told of its use", lambda: read_use(first)["tokens"]["completion"] >= 4)
        assert read_use(first)["client"] == "ann"
        [pod] = closed.pods()
        replica = f"http://{pod['status']['podIP']}:8000"
        refused = httpx.post(f"{replica}/v1/completions", json={"model": "closed", "prompt": "Once"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "gateway_token_required")
        assert httpx.get(f"{replica}/metrics").status_code == 200
        with pytest.raises(openai.RateLimitError):
            exhaust(second)
        ask_cluster(closed.cluster, NAMESPACE, "key", "revoke", SECRET, "ann")
        closed.wait_for("closed to the revoked key", lambda: not is_open(first))


def count_waiting(service: Service) -> int:
    return int(service.status()["scaling"].get("evidence", {}).get("waiting", 0))


def test_requests_that_wait_for_their_turns_are_load_for_the_autoscaler(closed: Service) -> None:
    """They wait in the gateway, so that no replica has more than it computes."""
    closed.spec["access"]["rateLimits"] = []
    closed.spec["engine"]["maxSequences"] = 4
    closed.spec["scaling"] |= {"maxReplicas": 3}
    key = make_key(closed, "ann")
    closed.apply()
    closed.wait_ready()
    load = Load(closed.target(key=key))
    sending = threading.Thread(target=lambda: asyncio.run(load.run_in_turn(CLIENTS, SECONDS_OF_LOAD)))
    sending.start()
    try:
        closed.wait_for("told how many wait", lambda: count_waiting(closed) >= CLIENTS - 16, SECONDS_OF_LOAD)
        closed.wait_for("at its maximum", lambda: desired_replicas(closed) == 3, SECONDS_OF_LOAD)
    finally:
        load.end()
        sending.join()
    assert not [stream for stream in load.streams if stream.is_refused or stream.is_truncated]
