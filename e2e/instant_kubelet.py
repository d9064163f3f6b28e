"""Nodes whose pods are Ready as soon as they are bound, and gone as soon as they are deleted. Nothing runs.

For tests of writes alone: Kubernetes' own controllers make the pods, and its scheduler binds them. The pod of
a Job ends at once, and has reported what is asked for. A replica of NO_MODEL is never Ready.
"""

import http.client
import json
import threading
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

from e2e.cluster.controlplane import client_context
from e2e.cluster.local_cluster import LocalCluster
from millrace_fit.facts import find_facts
from millrace_runtime.contract import (
    COMPONENT_FILLER,
    COMPONENT_RESOLVER,
    CONTAINER_REPLICA,
    LABEL_COMPONENT,
)
from testing.checkpoints.models import LLAMA_8B, stored_of

OWN = "millrace-test/of"
"""Label and taint of a Node that is one service's own."""
CAPACITY = {"cpu": "1000", "memory": "4Ti", "pods": "1000"}
PODS = "/api/v1/pods?fieldSelector=spec.nodeName%21%3D"
"""Those that are bound."""
NO_MODEL = "/models/no-such-model"
FACTS = json.loads(find_facts(LLAMA_8B, stored_of(LLAMA_8B)).to_json())
REVISION = "1" * 40
LOOK_SECONDS = 0.05
GONE = (404, 409)
Object = dict[str, Any]


class InstantNode(NamedTuple):
    """A Node of any service, or of the one that asks for it by OWN."""

    name: str
    service: str | None = None


class InstantKubelet:
    """Nodes and who speaks for their pods, while entered."""

    def __init__(self, cluster: LocalCluster, nodes: Iterable[InstantNode]) -> None:
        self._nodes = tuple(nodes)
        context = client_context(cluster.layout.keys, "ca", "admin")
        self._api = http.client.HTTPSConnection("127.0.0.1", cluster.ports.api, context=context, timeout=30)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        for node in self._nodes:
            self._register(node)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._api.close()

    def _register(self, node: InstantNode) -> None:
        """Make a Node. The API server taints a new one as not ready; who would take that away is us."""
        path = f"/api/v1/nodes/{node.name}"
        labels = {OWN: node.service} if node.service else {}
        taints = [{"key": OWN, "value": node.service, "effect": "NoSchedule"}] if node.service else None
        metadata = {"name": node.name, "labels": labels}
        self._ask("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
        ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
        status = {"capacity": CAPACITY, "allocatable": CAPACITY, "conditions": ready}
        self._ask("PATCH", f"{path}/status", {"status": status})
        self._ask("PATCH", path, {"spec": {"taints": taints}})

    def _run(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            for pod in self._ask("GET", PODS)["items"]:
                self._look_after(pod)

    def _look_after(self, pod: Object) -> None:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        if "deletionTimestamp" in metadata:
            self._ask("DELETE", path, {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}})
        elif pod["status"].get("phase") == "Pending":
            component = metadata.get("labels", {}).get(LABEL_COMPONENT)
            is_of_job = component in (COMPONENT_RESOLVER, COMPONENT_FILLER)
            status = render_ended(pod) if is_of_job else render_running(pod)
            self._ask("PATCH", f"{path}/status", {"metadata": {"uid": metadata["uid"]}, "status": status})

    def _ask(self, method: str, path: str, body: Object | None = None) -> Object:
        kind = "strategic-merge-patch+json" if method == "PATCH" else "json"
        text = None if body is None else json.dumps(body)
        self._api.request(method, path, text, {"Content-Type": f"application/{kind}"})
        response = self._api.getresponse()
        answer: Object = json.loads(response.read())
        assert response.status < 400 or response.status in GONE, answer
        return answer


def render_running(pod: Object) -> Object:
    """Return the status of a pod whose replica serves, or never does for want of a model."""
    replica = {"name": CONTAINER_REPLICA, "image": "replica", "imageID": "", "restartCount": 0}
    since = pod["metadata"]["creationTimestamp"]
    is_ready = not any(NO_MODEL in one.get("args", []) for one in pod["spec"]["containers"])
    return {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": str(is_ready), "lastTransitionTime": since}],
        "containerStatuses": [
            {**replica, "ready": is_ready, "started": is_ready, "state": {"running": {"startedAt": since}}}
        ],
    }


def render_ended(pod: Object) -> Object:
    """Return the status of a Job's pod that has done its work, and has reported what it found."""
    (container,) = pod["spec"]["containers"]
    told = {"revision": REVISION, "numFiles": 3, "numBytes": 1, "facts": FACTS}
    if "--resolve" not in container["args"]:
        told = {}  # it has filled a claim
    elif container["args"][1].startswith("file://"):
        del told["revision"]  # it has looked at what is in a claim
    since = pod["metadata"]["creationTimestamp"]
    ended = {
        "exitCode": 0,
        "reason": "Completed",
        "message": json.dumps(told) if told else "",
        "startedAt": since,
        "finishedAt": since,
    }
    box = {"name": container["name"], "image": "fetch", "imageID": "", "restartCount": 0, "ready": False}
    return {"phase": "Succeeded", "containerStatuses": [{**box, "state": {"terminated": ended}}]}
