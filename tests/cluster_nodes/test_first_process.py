"""A pod of the product's images that is deleted at the very start of its process ends at once.

The kernel drops a signal to a PID namespace's first process that has no handler for it, and Python has none
for its first 0.1 to 0.25 s: without an init the pod would load on until its grace is over.
"""

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.reads(
    "e2e/cluster", "images", "requirements.lock", "testing/polling.py", "operator/millrace_kubernetes"
)

DELAYS_SECONDS = [number / 15 for number in range(16)]
"""From the start of a process to its deletion: before, during and after Python's own start."""


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port of a server that never answers: a fetch from it runs until a signal ends it."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield server.getsockname()[1]


@pytest.fixture
def kubeconfig() -> Iterator[str]:
    """Names an API server that refuses connections: operator and gateway retry until a signal ends them."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{closed.getsockname()[1]}"}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        users = [{"name": "u", "user": {}}]
        yield json.dumps(
            {"clusters": [cluster], "contexts": [context], "users": users, "current-context": "c"}
        )


@pytest.mark.parametrize(
    ("image", "arguments"),
    [
        ("millrace/runtime:0.1.0", "serve --model /models/stories"),
        ("millrace/operator:0.1.0", "fetch http://127.0.0.1:{port}/never --to /tmp/model"),
        ("millrace/operator:0.1.0", "gateway"),
        ("millrace/operator:0.1.0", "operator"),
    ],
)
async def test_a_pod_deleted_as_its_process_starts_ends(
    bench: Any, silent_port: int, kubeconfig: str, image: str, arguments: str
) -> None:
    bench.api.objects["/api/v1/namespaces/prod/configmaps/kube"] = {"data": {"config": kubeconfig}}
    container = {
        "image": image,
        "args": arguments.format(port=silent_port).split(),
        "env": [
            {"name": "KUBECONFIG", "value": "/etc/kube/config"},
            {"name": "KUBERNETES_SERVICE_HOST", "value": ""},  # the pod has no service account
        ],
        "volumeMounts": [{"name": "kube", "mountPath": "/etc/kube"}],
    }
    spec = {"volumes": [{"name": "kube", "configMap": {"name": "kube"}}]}

    async def start_and_delete(delay: float) -> None:
        worker = bench.start(spec=spec, **container)
        await bench.wait(worker, lambda status: status["phase"] == "Running")
        await asyncio.sleep(delay)
        bench.delete(worker, grace_seconds=600)

    await asyncio.gather(*map(start_and_delete, DELAYS_SECONDS))
    await bench.until(lambda: len(bench.api.deleted) == len(DELAYS_SECONDS))
