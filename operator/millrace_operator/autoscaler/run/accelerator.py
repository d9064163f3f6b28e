"""What a service's replicas compute on, as far as their pods say. Pure."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from millrace_operator.kube.kinds import Obj
from millrace_operator.observed.pods import read_pod
from millrace_runtime import contract

HARDWARE_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "node.kubernetes.io/instance-type",
    "kubernetes.azure.com/accelerator",
)
"""Labels of nodes that name hardware; known where a service asks for one in its nodeSelector."""
LONGEST = 512


class Serving(NamedTuple):
    """Who serves: None where nobody does, or not all do alike."""

    revision: str | None
    accelerator: str | None


def find_serving(pods: Iterable[Obj]) -> Serving:
    """Return revision and accelerator of the pods that are Ready, or of all that stay where none is."""
    staying = [(read_pod(pod), pod) for pod in pods]
    staying = [(facts, pod) for facts, pod in staying if facts.is_staying]
    ready = [(facts, pod) for facts, pod in staying if facts.is_ready] or staying
    revisions = {facts.revision for facts, _ in ready}
    accelerators = {describe_accelerator(pod) for _, pod in ready}
    return Serving(
        revisions.pop() if len(revisions) == 1 else None,
        accelerators.pop() if len(accelerators) == 1 else None,
    )


def find_accelerator(pods: Iterable[Obj], revision: str | None) -> str | None:
    """Return what the pods of a revision compute on; None where there are none."""
    return find_serving(pod for pod in pods if read_pod(pod).revision == revision).accelerator


def describe_accelerator(pod: Obj) -> str:
    """Return a pod's devices and how many, or its other limits without any, and the hardware it asks for."""
    spec: dict[str, Any] = pod.get("spec") or {}
    limits = _find_limits(spec)
    devices = {name: amount for name, amount in limits.items() if "/" in name} or limits
    selector = spec.get("nodeSelector") or {}
    asked = {label: selector[label] for label in HARDWARE_LABELS if label in selector}
    return ", ".join(f"{name}={value}" for name, value in sorted((devices | asked).items()))[:LONGEST]


def _find_limits(spec: dict[str, Any]) -> dict[str, Any]:
    for container in spec.get("containers") or ():
        if container.get("name") == contract.CONTAINER_REPLICA:
            return (container.get("resources") or {}).get("limits") or {}
    return {}
