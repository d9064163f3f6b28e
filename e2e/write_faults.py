"""One namespace whose operators are killed and stopped at writes, and what of a service must be as it was."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e.api_proxy import ApiProxy
from e2e.cluster.api_reader import find_condition, has_condition, is_observed
from e2e.cluster.controlplane import client_context
from e2e.cluster.local_cluster import LocalCluster
from e2e.namespaces import create_namespace
from e2e.operator_process import OperatorProcess
from millrace_runtime.contract import (
    ANNOTATION_LEAVING,
    LABEL_COMPONENT,
    LABEL_REVISION,
    LABEL_SERVICE,
    LEASE_OPERATOR,
)

Object = dict[str, Any]
COLLECTIONS = (
    "apis/apps/v1/{}/deployments",
    "apis/apps/v1/{}/controllerrevisions",
    "api/v1/{}/services",
    "api/v1/{}/serviceaccounts",
    "api/v1/{}/configmaps",
    "apis/policy/v1/{}/poddisruptionbudgets",
    "apis/batch/v1/{}/jobs",
)
NUM_WORKERS = "16"
"""So that no service waits for another one whose write does not end."""
COUNTS = ("replicas", "readyReplicas", "currentRevision", "updateRevision")


class Stage:
    """A namespace of its own, with services in it, and operators that look after it alone."""

    def __init__(self, cluster: LocalCluster, namespace: str, folder: Path) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self._folder = folder
        create_namespace(cluster, namespace)

    @contextmanager
    def open_proxy(self) -> Iterator[ApiProxy]:
        """Yield a way to the API server, for one operator at a time."""
        context = client_context(self.cluster.layout.keys, "ca", "admin")
        with ApiProxy(self.cluster.api_url, context) as proxy:
            yield proxy

    def start(self, proxy: ApiProxy, name: str) -> OperatorProcess:
        """Start an operator that calls itself so."""
        flags = ("--writes-per-second", "1000", "--workers", NUM_WORKERS, "--namespaces", self.namespace)
        log = self._folder / f"{self.namespace}-{name}.log"
        return OperatorProcess(proxy.render_kubeconfig(), self.namespace, log, identity=name, flags=flags)

    def free_lease(self) -> None:
        """Take the Lease from an operator that is dead, so that nobody waits until it has run out."""
        self.kubectl("delete", "lease", LEASE_OPERATOR, "--ignore-not-found")

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Run kubectl in the namespace."""
        return self.cluster.kubectl("-n", self.namespace, *words, stdin=stdin)

    def apply(self, *services: Object) -> None:
        """Apply services as a user does."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(services)}
        self.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(listed))

    def read(self, name: str) -> Object:
        """Return a service."""
        return self.cluster.api.get(
            f"/apis/millrace.dev/v1alpha1/namespaces/{self.namespace}/inferenceservices/{name}"
        )

    def is_served(self, name: str) -> bool:
        """Whether the newest spec is served, and nothing goes on."""
        found = self.read(name)
        is_done = find_condition(found, "Progressing").get("status") == "False"
        return is_observed(found) and has_condition(found, "Ready") and is_done

    def list_children(self, name: str) -> list[Object]:
        """Return whatever has the service's label, its pods left out."""
        paths = (f"/{path.format(f'namespaces/{self.namespace}')}" for path in COLLECTIONS)
        return [
            {**found, "kind": path.rpartition("/")[2]}
            for path in paths
            for found in self.cluster.api.list(path, f"{LABEL_SERVICE}={name}")
        ]

    def list_pods(self, name: str) -> list[Object]:
        """Return a service's pods, those that end too."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        return self.cluster.api.list(path, f"{LABEL_SERVICE}={name}")

    def list_versions(self, name: str) -> list[str]:
        """Return the versions of a service and of its children: each write changes one."""
        objects = (self.read(name), *self.list_children(name), *self.list_pods(name))
        return [found["metadata"]["resourceVersion"] for found in objects]

    def is_leaving(self, name: str) -> bool:
        """Whether a replica of a service is about to go."""
        return any(map(_is_marked, self.list_pods(name)))

    def describe(self, name: str, *, hides_revision: bool = False) -> str:
        """Return what two services have in common that were told the same, whoever was killed meanwhile.

        `hides_revision`: their specs differ by their own names, and so their revisions differ.
        """
        found = self.read(name)
        status = found.get("status", {})
        text = {
            "conditions": [[c["type"], c["status"], c["reason"]] for c in status.get("conditions", [])],
            "counts": [status.get(count) for count in COUNTS],
            "desired": status.get("scaling", {}).get("desiredReplicas"),
            "children": [_describe_child(child, found) for child in self.list_children(name)],
            "pods": sorted(map(_describe_pod, self.list_pods(name))),
        }
        said = json.dumps(text, indent=1, sort_keys=True).replace(name, "NAME")
        return said.replace(status["updateRevision"], "REVISION") if hides_revision else said


def _describe_child(child: Object, service: Object) -> list[Any]:
    """Return kind, name, whose it is, and what the operator says of it."""
    metadata = child["metadata"]
    owners = [owner["uid"] == service["metadata"]["uid"] for owner in metadata.get("ownerReferences", [])]
    said = {name: value for name, value in child.get("spec", {}).items() if not name.startswith("clusterIP")}
    return [child["kind"], metadata["name"], owners, said]


def _describe_pod(pod: Object) -> str:
    labels = pod["metadata"]["labels"]
    whose = labels.get(LABEL_REVISION, labels[LABEL_COMPONENT])  # a Job's pod is of no revision
    return f"{whose} {'marked' if _is_marked(pod) else ''}"


def _is_marked(pod: Object) -> bool:
    return ANNOTATION_LEAVING in pod["metadata"].get("annotations", {})
