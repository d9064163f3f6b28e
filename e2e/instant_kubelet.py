"""A Node whose pods are Ready as soon as they are bound, and gone as soon as they are deleted. Nothing runs.

For tests of writes alone: Kubernetes' own controllers make the pods, and its scheduler binds them. The pod of
a Job has ended at once, and has told of a model whatever is asked for.
"""

import http.client
import json
import threading
from typing import Any, Self

from e2e.cluster.controlplane import client_context
from e2e.cluster.local_cluster import LocalCluster
from millrace_fit.facts import find_facts
from millrace_runtime.contract import (
    COMPONENT_FILLER,
    COMPONENT_RESOLVER,
    CONTAINER_REPLICA,
    LABEL_COMPONENT,
)
from tests.fit.models import LLAMA_8B, stored_of

NODE = "instant"
CAPACITY = {"cpu": "1000", "memory": "4Ti", "pods": "1000"}
PODS = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{NODE}"
FACTS = json.loads(find_facts(LLAMA_8B, stored_of(LLAMA_8B)).to_json())
REVISION = "1" * 40
LOOK_SECONDS = 0.05
GONE = (404, 409)
Object = dict[str, Any]


class InstantKubelet:
    """The Node and who speaks for its pods, while entered."""

    def __init__(self, cluster: LocalCluster) -> None:
        context = client_context(cluster.layout.keys, "ca", "admin")
        self._api = http.client.HTTPSConnection("127.0.0.1", cluster.ports.api, context=context, timeout=30)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._register()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._api.close()

    def _register(self) -> None:
        """Make the Node. The API server taints a new one as not ready; who would take that away is us."""
        path = f"/api/v1/nodes/{NODE}"
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
        self._ask("POST", "/api/v1/nodes", node)
        ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
        status = {"capacity": CAPACITY, "allocatable": CAPACITY, "conditions": ready}
        self._ask("PATCH", f"{path}/status", {"status": status})
        self._ask("PATCH", path, {"spec": {"taints": None}})

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
            status = render_ended(pod) if is_of_job else render_ready(pod)
            self._ask("PATCH", f"{path}/status", {"metadata": {"uid": metadata["uid"]}, "status": status})

    def _ask(self, method: str, path: str, body: Object | None = None) -> Object:
        kind = "strategic-merge-patch+json" if method == "PATCH" else "json"
        text = None if body is None else json.dumps(body)
        self._api.request(method, path, text, {"Content-Type": f"application/{kind}"})
        response = self._api.getresponse()
        answer: Object = json.loads(response.read())
        assert response.status < 400 or response.status in GONE, answer
        return answer


def render_ready(pod: Object) -> Object:
    """Return the status of a pod whose replica serves."""
    replica = {"name": CONTAINER_REPLICA, "image": "replica", "imageID": "", "restartCount": 0}
    since = pod["metadata"]["creationTimestamp"]
    return {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": since}],
        "containerStatuses": [
            {**replica, "ready": True, "started": True, "state": {"running": {"startedAt": since}}}
        ],
    }


def render_ended(pod: Object) -> Object:
    """Return the status of a Job's pod that has done its work, and has told what it found."""
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
