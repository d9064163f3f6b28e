"""The parts of a node that matter here: whether it is being emptied, and which GPUs it offers. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from millrace_runtime import contract

_KEPT_METADATA = ("name", "uid", "resourceVersion", "deletionTimestamp")
_KEPT_SPEC = ("unschedulable", "taints")

CORDONED = "it is cordoned"
UNSCHEDULABLE_TAINT = "node.kubernetes.io/unschedulable"
DEPARTURE_TAINTS = {
    "ToBeDeletedByClusterAutoscaler": "the cluster autoscaler removes it",
    "karpenter.sh/disrupted": "Karpenter removes it",
    "karpenter.sh/disruption": "Karpenter removes it",
    "cloud.google.com/impending-node-termination": "its machine is about to be stopped",
}
"""Taints that show that a node is being emptied, and why.

Not every taint with the effect NoExecute: a pod that does not tolerate one is deleted at once, so that
nothing can be done before, and a pod that tolerates it stays.
"""
GPUS = "nvidia.com/"
"""The prefix of the resources whose nodes have labels with their memory."""
LABEL = f"{GPUS}gpu.product"
"""A node with this label has GPUs, even while it offers none, as when their device plugin restarts."""
HARDWARE_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "node.kubernetes.io/instance-type",
    "kubernetes.azure.com/accelerator",
)
"""Labels of nodes that name hardware. The operator sees them only if a service's nodeSelector asks for
one."""
UNKEPT_LABELS = ("feature.node.kubernetes.io/", "nvidia.com/gfd.", contract.LABEL_KEPT_ON_NODE)
"""Prefixes of labels of which a node has a hundred, or that change with each start of their writer."""


class GpuNode(NamedTuple):
    """A node that has GPUs."""

    labels: Mapping[str, str]
    offers: Mapping[str, str]
    """The amounts that pods may have, by resource; empty while the node offers none."""


def trim_node(node: dict[str, Any]) -> dict[str, Any]:
    """Return a node without the parts that change every few seconds: there are thousands, of 15 kB and more.

    A node with GPUs keeps its labels, because a nodeSelector may name any of them.
    """
    metadata, spec = node["metadata"], node.get("spec") or {}
    trimmed: dict[str, Any] = {
        "metadata": {name: metadata[name] for name in _KEPT_METADATA if name in metadata},
        "spec": {name: spec[name] for name in _KEPT_SPEC if name in spec},
    }
    if gpus := find_gpus(node):
        labels = {name: text for name, text in gpus.labels.items() if not name.startswith(UNKEPT_LABELS)}
        trimmed["metadata"]["labels"] = labels
        trimmed["status"] = {"allocatable": dict(gpus.offers)}
    return trimmed


def find_gpus(node: dict[str, Any]) -> GpuNode | None:
    """Return the GPUs of a node; None where it has none."""
    amounts = (node.get("status") or {}).get("allocatable") or {}
    offers = {name: str(amount) for name, amount in amounts.items() if name.startswith(GPUS)}
    offers = {name: amount for name, amount in offers.items() if amount != "0"}
    labels = node["metadata"].get("labels") or {}
    return GpuNode(labels, offers) if offers or LABEL in labels else None


def find_departure(node: dict[str, Any]) -> str | None:
    """Return why a node is being emptied; None where it stays."""
    spec = node.get("spec", {})
    found = (DEPARTURE_TAINTS.get(taint.get("key", "")) for taint in spec.get("taints") or [])
    if taint := next(filter(None, found), None):
        return taint
    if "deletionTimestamp" in node["metadata"]:
        return "it is being deleted"
    return CORDONED if spec.get("unschedulable") else None


def may_stay(pod: dict[str, Any]) -> bool:
    """Whether a pod tolerates a node that is being emptied: its replacement could land there, too."""
    keys = {UNSCHEDULABLE_TAINT, *DEPARTURE_TAINTS, ""}
    return any(one.get("key", "") in keys for one in pod.get("spec", {}).get("tolerations") or [])
