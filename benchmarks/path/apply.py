"""From `kubectl apply` to the first token and what lies between, and from a request at rest to its token."""

import contextlib
import http.client
import json
import statistics
import time
from typing import Any
from urllib.parse import urlsplit

from e2e.cluster.local_cluster import LocalCluster
from e2e.service import Service
from e2e.watch import Watch
from testing.traffic import Target

RUNS = 3
ASK_SECONDS = 0.02
PATIENCE_SECONDS = 120.0
REST_SECONDS = 1
"""After which a service without requests has no replica any more."""
WAKE_MARGIN_SECONDS = 1.0
"""A wake may take so much longer than the first start: gateway and operator have to learn of the request."""


def time_apply(cluster: LocalCluster, namespace: str) -> dict[str, Any]:
    """Return medians over several services, applied one after the other, each deleted in between."""
    runs = [time_one(Service(cluster, namespace, f"apply-{number}")) for number in range(RUNS)]
    figures = {name: round(statistics.median(run[name] for run in runs), 2) for name in runs[0]}
    bound = figures["apply_to_token_seconds"] + WAKE_MARGIN_SECONDS
    return {**figures, "wake_to_token_bound_seconds": round(bound, 2)}


def time_one(service: Service) -> dict[str, float]:
    """Apply one service that may use the whole machine, ask until it answers, take a child, and wake it."""
    service.spec["resources"]["limits"]["cpu"] = "2"
    words = ("-n", service.namespace, "pods", "-l", f"millrace.dev/service={service.name}")
    path = '{.metadata.name}={.status.conditions[?(@.type=="Ready")].status}'
    with Watch(service.cluster, *words, jsonpath=path) as watch:
        time.sleep(1.0)  # the watch is to stand before anything happens
        began = time.monotonic()
        service.apply()
        first_token = await_token(service, began)
    pod, ready = watch.first(), watch.first("=True")
    assert pod is not None
    assert ready is not None
    repair = time_repair(service)
    wake = time_wake(service)
    service.delete()
    return {
        "apply_to_token_seconds": first_token,
        "apply_to_pod_seconds": pod - began,
        "pod_to_ready_seconds": ready - pod,
        "ready_to_token_seconds": began + first_token - ready,
        "drift_repair_seconds": repair,
        "wake_to_token_seconds": wake,
    }


def time_repair(service: Service) -> float:
    """Delete a child by hand; return the seconds from kubectl's start until the child is there again."""
    words = ("-n", service.namespace, "services", "-l", f"millrace.dev/service={service.name}")
    with Watch(service.cluster, *words, jsonpath="{.metadata.uid} {.metadata.name}") as watch:
        time.sleep(1.0)
        known = {line.text for line in watch.lines}
        began = time.monotonic()
        service.kubectl("delete", "service", service.name)
        service.wait_for("repaired", lambda: any(line.text not in known for line in watch.lines), 10)
        back = next(line.at for line in watch.lines if line.text not in known)
    return back - began


def time_wake(service: Service) -> float:
    """Let the service rest; return the seconds from one request to its first token."""
    service.spec["scaling"] |= {"minReplicas": 0, "scaleToZeroAfter": f"{REST_SECONDS}s"}
    service.apply()
    service.wait_for("at rest", service.is_at_rest)
    target = service.target(max_tokens=1)
    began = time.monotonic()
    answered = ask_once(target)
    assert answered is not None, f"the request was refused\n{service.explain()}"
    return answered - began


def await_token(service: Service, began: float) -> float:
    """Ask for a completion until one begins; return the seconds since `began` to its first token."""
    target = service.target(max_tokens=1)
    while True:
        at = ask_once(target)
        if at is not None:
            return at - began
        assert time.monotonic() - began < PATIENCE_SECONDS, service.explain()
        time.sleep(ASK_SECONDS)


def ask_once(target: Target) -> float | None:
    """Return when the first token of an answer came; None where the request is refused."""
    body = json.dumps(target.body(0))
    headers = {"Content-Type": "application/json", **target.headers}
    address = urlsplit(target.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=PATIENCE_SECONDS)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/completions", body, headers)
        response = connection.getresponse()
        if response.status != 200:
            return None
        assert any(line.startswith(b"data: {") for line in response)
        return time.monotonic()
