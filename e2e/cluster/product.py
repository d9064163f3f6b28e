"""Installs Millrace on a local cluster as a user would, and shows that it answers."""

import http.client
import json
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.api_reader import find_condition, has_condition, is_observed
from e2e.cluster.errors import PartFailedError
from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.progress import Say
from e2e.cluster.settings import REPOSITORY

NAMESPACE = "millrace-system"
CHART = REPOSITORY / "charts" / "millrace"
RELEASE = "millrace"
IMAGES = (
    "--set=images.operator=millrace/operator:0.1.0",
    "--set=images.runtime=millrace/runtime:0.1.0",
)
"""The names by which the local cluster's nodes know them."""
EXAMPLE = REPOSITORY / "examples" / "stories.yaml"
SERVICE = "stories"
CRD_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/inferenceservices.millrace.dev"
SERVICE_PATH = f"/apis/millrace.dev/v1alpha1/namespaces/default/inferenceservices/{SERVICE}"
READY_SECONDS = 180.0
POLL_SECONDS = 0.05
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


def install_chart(cluster: LocalCluster, *settings: str, root: Path = REPOSITORY) -> None:
    """Install the chart as a Helm release, or upgrade it, until the API server takes InferenceServices.

    `settings` are further `--set` words for helm; `root` is the checkout whose chart it is.
    Raises PartFailedError.
    """
    of_cluster = ("--kubeconfig", str(cluster.kubeconfig), "--create-namespace", "--take-ownership")
    words = (*of_cluster, *render_settings(settings))
    run_helm(cluster, "upgrade", "--install", *words_of_chart(cluster, root), *words)
    wait_while(lambda: describe_crd(cluster), lambda _: None, "kubectl get crd")


def render_chart(cluster: LocalCluster, *settings: str) -> str:
    """Return the chart's manifests with the local cluster's values."""
    return run_helm(cluster, "template", *words_of_chart(cluster, REPOSITORY), *render_settings(settings))


def roll_back_chart(cluster: LocalCluster) -> None:
    """Return to the release before the last upgrade, as `helm rollback` does. Raises PartFailedError."""
    run_helm(cluster, "rollback", RELEASE, "--kubeconfig", str(cluster.kubeconfig))


def render_settings(settings: Iterable[str]) -> list[str]:
    """Return helm's words for further settings."""
    return [word for setting in settings for word in ("--set", setting)]


def words_of_chart(cluster: LocalCluster, root: Path) -> list[str]:
    """Return helm's words for the release, the chart of a checkout, and the local cluster's values."""
    values = ("--values", str(root / "e2e" / "cluster" / "values.yaml"), *IMAGES)
    chart = str(root / "charts" / "millrace")
    return [RELEASE, chart, *values, "--set", f"prometheus.url={cluster.prometheus_url}"]


def run_helm(cluster: LocalCluster, command: str, *words: str) -> str:
    """Run a command of helm's in Millrace's namespace, and return what it prints. Raises PartFailedError."""
    helm = (str(cluster.layout.programs / "helm"), command, "--namespace", NAMESPACE, *words)
    done = subprocess.run(helm, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PartFailedError("chart", f"helm {command} failed: {done.stderr.strip()}")
    return done.stdout


def wait_while(describe: Callable[[], str], say: Say, advice: str, seconds: float = READY_SECONDS) -> None:
    """Wait while `describe` names something that is awaited, and say each new line of it.

    Raises PartFailedError with the last line and `advice`, a command, when `seconds` have passed.
    """
    deadline = time.monotonic() + seconds
    said = ""
    while line := describe():
        if line != said:
            say(line)
            said = line
        if time.monotonic() > deadline:
            raise PartFailedError("millrace", f"after {seconds:.0f} s: {line}; see: {advice}")
        time.sleep(POLL_SECONDS)


def describe_crd(cluster: LocalCluster) -> str:
    """Say that InferenceServices can't be applied yet; empty once they can."""
    found = cluster.api.get(CRD_PATH)
    return "" if has_condition(found, "Established") else "InferenceServices are not served yet"


def wait_for_product(cluster: LocalCluster, say: Say) -> None:
    """Wait until operator and gateway are rolled out, saying what they wait for. Raises PartFailedError."""
    wait_while(lambda: describe_product(cluster), say, f"kubectl -n {NAMESPACE} describe pods")


def describe_product(cluster: LocalCluster) -> str:
    """Say what operator and gateway wait for; empty once all their pods are ready."""
    lines = [describe_component(cluster, name) for name in ("operator", "gateway")]
    return "; ".join(filter(None, lines))


def describe_component(cluster: LocalCluster, component: str) -> str:
    """Say what a component's pods wait for; empty once all of them are ready, and no older ones are left."""
    deployments = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
    line = describe_rollout(cluster.api.get(f"{deployments}/millrace-{component}"))
    if not line:
        return ""
    pods = cluster.api.list(f"/api/v1/namespaces/{NAMESPACE}/pods", f"millrace.dev/component={component}")
    reasons = sorted({reason for pod in pods if (reason := pod_reason(pod))})
    return f"{component}: {line}" + (f" ({', '.join(reasons)})" if reasons else "")


def describe_rollout(deployment: dict[str, Any]) -> str:
    """Count a Deployment's new pods; empty once `kubectl rollout status` would end.

    A status does not say whose pods are ready. Older ones count as ready, so no new one counts too early.
    """
    wanted, status = deployment["spec"]["replicas"], deployment.get("status", {})
    new = status.get("updatedReplicas", 0) if is_observed(deployment) else 0
    older = status.get("replicas", 0) - new
    ready = max(0, status.get("availableReplicas", 0) - older)
    if older <= 0 and wanted <= new <= ready:
        return ""
    left = f", {older} older {'one' if older == 1 else 'ones'} left" if older > 0 else ""
    return f"{ready} of {wanted} pods ready{left}"


def pod_reason(pod: dict[str, Any]) -> str:
    """Say why a pod is not ready, as far as its status says."""
    status = pod.get("status", {})
    for container in status.get("containerStatuses", []):
        waiting = container.get("state", {}).get("waiting")
        if waiting and waiting.get("reason"):
            return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message", condition.get("reason", "")))
    return ""


def apply_example(cluster: LocalCluster, say: Say) -> None:
    """Apply the example as a user does. Raises PartFailedError."""
    say(cluster.kubectl("apply", "-f", str(EXAMPLE)).strip())


def wait_for_example(cluster: LocalCluster, say: Say) -> None:
    """Wait until the example is Ready, saying each reason why it is not. Raises PartFailedError."""
    wait_while(lambda: describe_example(cluster), say, f"kubectl describe infsvc {SERVICE}")


def describe_example(cluster: LocalCluster) -> str:
    """Say why the example is not Ready; empty once it is."""
    found = cluster.api.get(SERVICE_PATH)
    if not is_observed(found):
        return f"{SERVICE}: the operator has not seen this change yet"
    ready, progressing = find_condition(found, "Ready"), find_condition(found, "Progressing")
    if ready.get("status") == "True" and progressing.get("status") != "True":
        return ""
    if ready.get("status") == "True":
        return f"{SERVICE}: {progressing['reason']}: {progressing['message']}"
    reason = f"{ready['reason']}: {ready['message']}" if ready else "the operator has not seen it yet"
    return f"{SERVICE}: {reason}"


def find_gateway(cluster: LocalCluster) -> Gateway:
    """Return the address of the gateway's Service."""
    spec = cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}/services/millrace-gateway")["spec"]
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
