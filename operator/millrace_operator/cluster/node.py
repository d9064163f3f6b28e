"""What of a node matters here: whether it is being emptied. Pure."""

from typing import Any

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
"""Taints of those that empty a node, and what each says of it.

Not every taint with the effect NoExecute: what does not tolerate one is deleted at once, so that nothing
can be done before, and what tolerates it stays.
"""


def trim_node(node: dict[str, Any]) -> dict[str, Any]:
    """Return a node without all that changes every few seconds: there are thousands, of 15 kB and more."""
    metadata, spec = node["metadata"], node.get("spec") or {}
    return {
        "metadata": {name: metadata[name] for name in _KEPT_METADATA if name in metadata},
        "spec": {name: spec[name] for name in _KEPT_SPEC if name in spec},
    }


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
    """Whether a pod tolerates that a node is being emptied: its replacement could land there as well."""
    keys = {UNSCHEDULABLE_TAINT, *DEPARTURE_TAINTS, ""}
    return any(one.get("key", "") in keys for one in pod.get("spec", {}).get("tolerations") or [])
