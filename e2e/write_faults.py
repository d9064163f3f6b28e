"""One namespace whose operators are killed and stopped at writes, and what of a service must be as it was."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e.api_client import delete, patch
from e2e.api_proxy import ApiProxy
from e2e.children import list_children
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
NUM_WORKERS = "16"
"""So that no service waits for another one whose write does not end."""
COUNTS = ("replicas", "readyReplicas", "currentRevision", "updateRevision")
LEASE_SECONDS = 17.0
"""After which nobody's Lease is valid that was not renewed meanwhile."""


def run_side_by_side(runs: Iterable[Callable[[], None]]) -> None:
    """Run all at the same time."""
    runs = list(runs)
    with ThreadPoolExecutor(len(runs)) as pool:
        for ended in [pool.submit(run) for run in runs]:
            ended.result()


def free_lease(cluster: LocalCluster, namespace: str) -> None:
    """Take the Lease from an operator that is dead or stands still: another one leads at once.

    One that stands still must not go on within LEASE_SECONDS, for it believes that the Lease is its own.
    """
    delete(cluster, f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{LEASE_OPERATOR}")


def wait_until_lease_is_over(since: float) -> None:
    """Wait until a Lease has run out that was renewed no later than `since`, of the monotonic clock."""
    time.sleep(max(0.0, since + LEASE_SECONDS - time.monotonic()))


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
        """Take the Lease from an operator that is dead or stands still."""
        free_lease(self.cluster, self.namespace)

    def patch(self, name: str, change: Object, sub_resource: str = "") -> None:
        """Send a service a merge patch."""
        patch(self.cluster, f"{self._path(name)}{sub_resource}", change)

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Run kubectl in the namespace."""
        return self.cluster.kubectl("-n", self.namespace, *words, stdin=stdin)

    def apply(self, *services: Object) -> None:
        """Apply services as a user does."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(services)}
        self.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(listed))

    def read(self, name: str) -> Object:
        """Return a service."""
        return self.cluster.api.get(self._path(name))

    def _path(self, name: str) -> str:
        return f"/apis/millrace.dev/v1alpha1/namespaces/{self.namespace}/inferenceservices/{name}"

    def is_served(self, name: str) -> bool:
        """Whether the newest spec is served, and nothing goes on."""
        found = self.read(name)
        is_done = find_condition(found, "Progressing").get("status") == "False"
        return is_observed(found) and has_condition(found, "Ready") and is_done

    def list_children(self, name: str) -> list[Object]:
        """Return whatever has the service's label, its pods left out."""
        return list_children(self.cluster, self.namespace, name)

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
        """Return what two services with the same edits share, whichever process was killed meanwhile.

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
