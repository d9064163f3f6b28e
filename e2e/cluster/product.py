"""Installs Millrace on a local cluster as a user would, and shows that it answers."""

import http.client
import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from e2e.cluster.errors import PartFailedError
from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.progress import Say
from e2e.cluster.settings import REPOSITORY

NAMESPACE = "millrace-system"
CHART = REPOSITORY / "charts" / "millrace"
VALUES = REPOSITORY / "e2e" / "cluster" / "values.yaml"
EXAMPLE = REPOSITORY / "examples" / "stories.yaml"
SERVICE = "stories"
READY_SECONDS = 180.0
PROMPT = "Once upon a time"


@dataclass(frozen=True)
class Gateway:
    """Where the gateway answers on this machine."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """Its address without a path."""
        return f"http://{self.host}:{self.port}"


def install_chart(cluster: LocalCluster, *settings: str) -> None:
    """Apply the chart's manifests and wait until operator and gateway serve.

    `settings` are further `--set` words for helm. Raises PartFailedError.
    """
    manifests = render_chart(cluster, *settings)
    if not cluster.kubectl("get", "namespace", NAMESPACE, "--ignore-not-found"):
        cluster.kubectl("create", "namespace", NAMESPACE)
    apply = ("apply", "--server-side", "--force-conflicts", "-n", NAMESPACE, "-f", "-")
    cluster.kubectl(*apply, stdin=manifests)
    cluster.kubectl(
        "wait", "--for=condition=Established", "--timeout=30s", "crd/inferenceservices.millrace.dev"
    )


def render_chart(cluster: LocalCluster, *settings: str) -> str:
    """Return the chart's manifests with the local cluster's values."""
    helm = [
        str(cluster.layout.programs / "helm"),
        "template",
        "millrace",
        str(CHART),
        "--namespace",
        NAMESPACE,
    ]
    helm += ["--values", str(VALUES), "--set", f"prometheus.url={cluster.prometheus_url}"]
    for setting in settings:
        helm += ["--set", setting]
    done = subprocess.run(helm, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PartFailedError("chart", f"helm template failed: {done.stderr.strip()}")
    return done.stdout


def wait_for_product(cluster: LocalCluster, say: Say, seconds: float = READY_SECONDS) -> None:
    """Wait until operator and gateway are rolled out, saying what they wait for. Raises PartFailedError."""
    deadline = time.monotonic() + seconds
    said = ""
    while True:
        waiting = [line for name in ("operator", "gateway") if (line := waiting_for(cluster, name))]
        if not waiting:
            return
        line = "; ".join(waiting)
        if line != said:
            say(line)
            said = line
        if time.monotonic() > deadline:
            raise PartFailedError("chart", f"{line}; see: kubectl -n {NAMESPACE} describe pods")
        time.sleep(0.5)


def waiting_for(cluster: LocalCluster, component: str) -> str:
    """Say what a component's pods wait for; empty when all of them are ready."""
    text = cluster.kubectl("-n", NAMESPACE, "get", "deployment", f"millrace-{component}", "-o", "json")
    deployment = json.loads(text)
    wanted = deployment["spec"]["replicas"]
    ready = deployment.get("status", {}).get("readyReplicas", 0)
    if ready >= wanted:
        return ""
    selector = f"millrace.dev/component={component}"
    pods = json.loads(cluster.kubectl("-n", NAMESPACE, "get", "pods", "-l", selector, "-o", "json"))["items"]
    reasons = sorted({reason for pod in pods if (reason := pod_reason(pod))})
    return f"{component}: {ready} of {wanted} pods ready" + (f" ({', '.join(reasons)})" if reasons else "")


def pod_reason(pod: dict[str, Any]) -> str:
    """Say why a pod is not ready, as far as its status tells."""
    status = pod.get("status", {})
    for container in status.get("containerStatuses", []):
        waiting = container.get("state", {}).get("waiting")
        if waiting and waiting.get("reason"):
            return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message", condition.get("reason", "")))
    return ""


def apply_example(cluster: LocalCluster, say: Say, seconds: float = READY_SECONDS) -> None:
    """Apply the example and wait until it is Ready, saying each reason. Raises PartFailedError."""
    say(cluster.kubectl("apply", "-f", str(EXAMPLE)).strip())
    deadline = time.monotonic() + seconds
    said = ""
    while True:
        is_ready, reason = readiness(cluster)
        if reason != said:
            say(f"{SERVICE}: {reason}")
            said = reason
        if is_ready:
            return
        if time.monotonic() > deadline:
            raise PartFailedError(
                SERVICE, f"not Ready after {seconds:.0f} s: {reason}; see: kubectl describe"
            )
        time.sleep(0.25)


def readiness(cluster: LocalCluster) -> tuple[bool, str]:
    """Return whether the example is Ready, and its condition in words."""
    status = json.loads(cluster.kubectl("get", "infsvc", SERVICE, "-o", "json")).get("status", {})
    for condition in status.get("conditions", []):
        if condition["type"] == "Ready":
            text = f"Ready={condition['status']} {condition['reason']}: {condition['message']}"
            return condition["status"] == "True", text
    return False, "the operator has not seen it yet"


def find_gateway(cluster: LocalCluster) -> Gateway:
    """Return the address of the gateway's Service."""
    text = cluster.kubectl("-n", NAMESPACE, "get", "service", "millrace-gateway", "-o", "json")
    spec = json.loads(text)["spec"]
    return Gateway(spec["clusterIP"], spec["ports"][0]["port"])


def completion_request(prompt: str = PROMPT) -> dict[str, Any]:
    """The body of the request that `up` shows."""
    return {"model": SERVICE, "prompt": prompt, "max_tokens": 48, "stream": True}


def stream_completion(gateway: Gateway, prompt: str = PROMPT) -> Iterator[str]:
    """Yield the pieces of one streamed completion. Raises PartFailedError when it is cut or refused."""
    connection = http.client.HTTPConnection(gateway.host, gateway.port, timeout=60)
    finish = None
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(completion_request(prompt)), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise PartFailedError(
                "gateway", f"{response.status}: {response.read(2000).decode(errors='replace')}"
            )
        for choice in _choices(response):
            finish = choice.get("finish_reason") or finish
            yield choice.get("text", "")
    except (OSError, http.client.HTTPException) as error:
        raise PartFailedError("gateway", f"no completion from {gateway.url}: {error}") from error
    finally:
        connection.close()
    if finish is None:
        raise PartFailedError("gateway", "the stream ended without a finish reason")


def _choices(lines: Iterator[bytes] | http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
            yield from json.loads(line[6:]).get("choices", [])
