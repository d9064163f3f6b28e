"""One InferenceService on the cluster as a test's user handles it: apply, look, wait, delete."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import yaml

from e2e.api_client import delete
from e2e.cluster.api_reader import find_condition, has_condition, is_observed
from e2e.cluster.errors import PartFailedError
from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.product import EXAMPLE, find_gateway
from e2e.namespaces import create_namespace, path_of
from testing.polling import wait_until
from testing.traffic import Target

COLLECTIONS = {
    "deployment": ("/apis/apps/v1", "deployments"),
    "infsvc": ("/apis/millrace.dev/v1alpha1", "inferenceservices"),
    "poddisruptionbudget": ("/apis/policy/v1", "poddisruptionbudgets"),
    "resourcequota": ("/api/v1", "resourcequotas"),
    "service": ("/api/v1", "services"),
}
"""Where the API server has the kinds that tests read."""
EXAMPLE_MANIFEST: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())


@dataclass
class Service:
    """The example's InferenceService under a namespace and a name of its own."""

    cluster: LocalCluster
    namespace: str
    name: str = "stories"
    manifest: dict[str, Any] = field(default_factory=lambda: deepcopy(EXAMPLE_MANIFEST))

    def __post_init__(self) -> None:
        self.manifest["metadata"] = {"name": self.name, "namespace": self.namespace}

    @property
    def spec(self) -> dict[str, Any]:
        """The spec that the next `apply` asks for."""
        spec: dict[str, Any] = self.manifest["spec"]
        return spec

    @property
    def path(self) -> str:
        """Where the API server has it."""
        return f"/apis/millrace.dev/v1alpha1/namespaces/{self.namespace}/inferenceservices/{self.name}"

    def apply(self) -> str:
        """Apply the manifest as a user does; return what kubectl says."""
        return self.kubectl("apply", "-f", "-", stdin=json.dumps(self.manifest))

    def diff(self) -> str:
        """Return what `kubectl diff` prints of the manifest. Raises PartFailedError at a difference."""
        return self.kubectl("diff", "-f", "-", stdin=json.dumps(self.manifest))

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl in the service's namespace."""
        return self.cluster.kubectl("-n", self.namespace, *arguments, stdin=stdin)

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """Return one object of the namespace. Raises PartFailedError when it is not there."""
        group, collection = COLLECTIONS[kind]
        return self.cluster.api.get(f"{group}/namespaces/{self.namespace}/{collection}/{name}")

    def read(self) -> dict[str, Any]:
        """Return the service as it is now. Raises PartFailedError when it is not there."""
        return self.cluster.api.get(self.path)

    def status(self) -> dict[str, Any]:
        """Return the service's status; empty before the operator has seen it."""
        found: dict[str, Any] = self.read().get("status", {})
        return found

    def condition(self, name: str) -> dict[str, Any]:
        """Return one condition; empty when it is not there."""
        found = [c for c in self.status().get("conditions", []) if c["type"] == name]
        return found[0] if found else {}

    def pods(self) -> list[dict[str, Any]]:
        """Return the service's pods, those that end left out."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        found = self.cluster.api.list(path, f"millrace.dev/service={self.name}")
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def is_at_rest(self) -> bool:
        """Whether it has no replica, as nobody asks."""
        return self.condition("Ready").get("reason") == "ScaledToZero" and not self.pods()

    def wait_ready(self, seconds: float = 180.0) -> None:
        """Wait until the newest spec is served: Ready, and nothing in progress."""

        def is_served() -> bool:
            found = self.read()
            is_done = find_condition(found, "Progressing").get("status") == "False"
            return is_observed(found) and has_condition(found, "Ready") and is_done

        self.wait_for("Ready", is_served, seconds)

    def wait_for(self, what: str, is_so: Callable[[], bool], seconds: float = 120.0) -> float:
        """Wait until something is so and return how long that took. Fails with the conditions."""
        began = time.monotonic()
        try:
            wait_until(what, is_so, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.explain()}") from None
        return time.monotonic() - began

    def explain(self) -> str:
        """Return the conditions, the scaling and the pods in words, for a failing test."""
        try:
            status = self.status()
        except PartFailedError as error:
            return str(error)
        found = status.get("conditions", [])
        conditions = [f"{c['type']}={c['status']} {c['reason']}: {c['message']}" for c in found]
        scaling = f"scaling: {status.get('scaling')}"
        return "\n".join([*conditions, scaling, self.kubectl("get", "pods", "-o", "wide")])

    def target(self, **options: Any) -> Target:
        """Return where a load for this service goes: the gateway, with the service's Host."""
        gateway = find_gateway(self.cluster)
        return Target(gateway.url, host=f"{self.name}.{self.namespace}.svc", model=self.name, **options)

    def discard(self) -> None:
        """Delete the service, if it is there, and wait for nothing."""
        delete(self.cluster, self.path)

    def delete(self) -> None:
        """Delete the service and wait until garbage collection has taken its pods."""
        self.kubectl("delete", "infsvc", self.name, "--ignore-not-found")
        self.wait_for("rid of its pods", lambda: not self.pods(), 90)


@contextmanager
def service_in(cluster: LocalCluster, namespace: str, name: str = "stories") -> Iterator[Service]:
    """Yield the example's service in a new namespace, not yet applied. Both are deleted in the end."""
    create_namespace(cluster, namespace)
    found = Service(cluster, namespace, name)
    yield found
    found.discard()
    delete(cluster, path_of(namespace))


def is_absent(cluster: LocalCluster, *words: str) -> bool:
    """Whether `kubectl get` of these words finds nothing."""
    try:
        return cluster.kubectl("get", *words, "--ignore-not-found", "-o", "name").strip() == ""
    except PartFailedError as error:
        return "NotFound" in str(error)
