"""A node without an API server: the client is replaced, everything behind it is real."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from e2e.cluster.nodes.api_objects import ApiObjects
from e2e.cluster.nodes.events import EventRecorder
from e2e.cluster.nodes.logs import find_logs
from e2e.cluster.nodes.network.addresses import AddressBlock
from e2e.cluster.nodes.network.endpoints import Endpoint
from e2e.cluster.nodes.node import Node
from e2e.cluster.nodes.pod_worker import PodWorker
from e2e.cluster.nodes.settings import SOURCE_ROOT, NodeSpec, Settings, Timing
from testing.polling import PATIENCE_SECONDS, wait_until_async
from tests.cluster_nodes.memory_api import MemoryApi

Object = dict[str, Any]


class Bench:
    """Starts pods on a node and waits for what their status comes to."""

    def __init__(self, node: Node, api: MemoryApi) -> None:
        self.node = node
        self.api = api
        self.workers: list[PodWorker] = []
        self._names = (f"p{number}" for number in itertools.count())

    def start(self, line: str = "sleep 60", *, spec: Object | None = None, **container: Any) -> PodWorker:
        """A pod of one shell container."""
        name = next(self._names)
        box = {"name": "main", "image": "shell:1", "args": [line], **container}
        metadata = {"name": name, "namespace": "prod", "uid": f"uid-{name}", "labels": {"app": name}}
        pod = {
            "kind": "Pod",
            "metadata": metadata,
            "spec": {"containers": [box], "nodeName": "n", **(spec or {})},
        }
        self.api.objects[f"/api/v1/namespaces/prod/pods/{name}"] = pod
        self.workers.append(PodWorker(self.node, pod))
        return self.workers[-1]

    def delete(self, worker: PodWorker, grace_seconds: float) -> None:
        """Have the node see the pod as one that is being deleted."""
        fields = {"deletionTimestamp": "now", "deletionGracePeriodSeconds": grace_seconds}
        worker.update({**worker.pod, "metadata": worker.pod["metadata"] | fields})

    def status(self, worker: PodWorker) -> Object:
        """What the API server was told, last where the pod is deleted."""
        path = f"/api/v1/namespaces/prod/pods/{worker.pod['metadata']['name']}"
        found: Object = {**self.api.deleted, **self.api.objects}[path].get("status", {})
        return found

    async def wait(self, worker: PodWorker, is_there: Callable[[Object], Any]) -> Object:
        """The status, once it is as wanted."""
        try:
            await self.until(lambda: self.status(worker) and is_there(self.status(worker)))
        except AssertionError:
            pytest.fail(f"after {PATIENCE_SECONDS} s the status is {self.status(worker)}")
        return self.status(worker)

    async def until(self, is_true: Callable[[], Any]) -> None:
        await wait_until_async("the pod as awaited", is_true)

    def reasons(self) -> list[str]:
        """Of the events so far."""
        return [event["reason"] for event in self.api.events]

    def log(self, worker: PodWorker) -> str:
        """What the container wrote last, without times."""
        logs = find_logs(self.node.log_folder(worker.uid, "main"), None)
        text = logs.paths[-1].read_text()
        return "".join(line.partition(" ")[2] for line in text.splitlines(keepends=True))


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    api = MemoryApi()
    timing = Timing(backoff_first=0.05, backoff_most=0.2, volume_refresh_period=0.1)
    images = (SOURCE_ROOT / "e2e" / "images", SOURCE_ROOT / "images")
    settings = Settings(tmp_path / "kubeconfig", tmp_path, (NodeSpec("n"),), images, timing=timing)
    events = EventRecorder(api)  # type: ignore[arg-type]
    posting = asyncio.create_task(events.run())
    async with aiohttp.ClientSession() as session:
        node = Node(
            name="n",
            settings=settings,
            client=api,  # type: ignore[arg-type]
            session=session,
            events=events,
            api_objects=ApiObjects(api, settings.disk_of("n")),  # type: ignore[arg-type]
            addresses=AddressBlock(95),
            services=SimpleNamespace(objects={}),
            api_address=Endpoint("127.0.0.1", 6443),
        )
        bench = Bench(node, api)
        yield bench
        await asyncio.gather(*(worker.kill() for worker in bench.workers))
    posting.cancel()
    await asyncio.gather(posting, return_exceptions=True)
