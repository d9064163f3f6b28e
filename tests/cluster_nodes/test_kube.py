"""The client, watches, registration and claims against a small HTTP server that speaks as an API server."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from e2e.cluster.nodes.agent import open_agent
from e2e.cluster.nodes.claims import ClaimProvisioner, needs_volume
from e2e.cluster.nodes.errors import SettingsError
from e2e.cluster.nodes.kube import KubeClient, Watched
from e2e.cluster.nodes.registration import Registration
from e2e.cluster.nodes.settings import NodeSpec, Settings
from millrace_kubernetes.access import ClusterAccess
from millrace_kubernetes.connection import Connection
from millrace_kubernetes.errors import ApiError
from testing.polling import wait_until_async

pytestmark = pytest.mark.reads("e2e/cluster", "testing/polling.py", "operator/millrace_kubernetes")

Object = dict[str, Any]


class Server:
    """Answers what it is told; keeps what it was asked."""

    def __init__(self) -> None:
        self.lists: list[Object] = []
        self.watches: list[list[Object]] = []
        self.requests: list[tuple[str, str, Any]] = []
        self.missing: set[str] = set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch"):
            return await self._watch(request)
        body = json.loads(await request.text() or "null")
        self.requests.append((request.method, request.path, body))
        if request.method == "GET":
            return web.json_response(self.lists.pop(0))
        if request.path in self.missing:
            self.missing.remove(request.path)
            return web.json_response({"message": "not here"}, status=404)
        return web.json_response(body)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        if not self.watches:
            await asyncio.sleep(60)
        for event in self.watches.pop(0):
            await response.write(json.dumps(event).encode() + b"\n")
        return response


@pytest.fixture
async def server() -> AsyncIterator[tuple[Server, KubeClient]]:
    fake = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", fake.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield fake, KubeClient(Connection(session, ClusterAccess(url, None, "t")))
    await runner.cleanup()


def item(uid: str, version: int, **more: Any) -> Object:
    return {
        "metadata": {"uid": uid, "name": uid, "namespace": "prod", "resourceVersion": str(version)},
        **more,
    }


def event(kind: str, thing: Object) -> Object:
    return {"type": kind, "object": thing}


async def test_a_watch_survives_its_ends_and_a_lost_history(server: tuple[Server, KubeClient]) -> None:
    fake, client = server
    listing = {"metadata": {"resourceVersion": "5"}}
    fake.lists = [{**listing, "items": [item("a", 1), item("b", 2)]}, {**listing, "items": [item("a", 9)]}]
    fake.watches = [
        [event("MODIFIED", item("a", 6)), event("ADDED", item("c", 7)), event("BOOKMARK", item("", 8))],
        [event("DELETED", item("c", 9))],
        [event("ERROR", {"code": 410, "message": "gone"})],
    ]
    seen: list[tuple[str, bool, bool]] = []
    done = asyncio.Event()

    def on_change(old: Object | None, new: Object | None) -> None:
        name = (new or old or {})["metadata"]["name"]
        seen.append((name, old is not None, new is not None))
        if len(seen) == 7:
            done.set()

    watched = Watched(client.connection, "/api/v1/pods", on_change)
    task = asyncio.create_task(watched.run())
    await asyncio.wait_for(done.wait(), 5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    new, changed, gone = (False, True), (True, True), (True, False)
    assert seen == [
        ("a", *new), ("b", *new), ("a", *changed), ("c", *new), ("c", *gone), ("b", *gone), ("a", *changed),
    ]  # fmt: skip
    assert list(watched.objects) == ["a"]


async def test_an_error_carries_the_servers_words(server: tuple[Server, KubeClient]) -> None:
    fake, client = server
    fake.missing.add("/x")
    with pytest.raises(ApiError, match="404: not here"):
        await client.create("/x", {})


async def test_a_node_registers_with_its_gpus_and_lease(
    server: tuple[Server, KubeClient], tmp_path: Path
) -> None:
    fake, client = server
    spec = NodeSpec("gpu-0", gpus=8)
    settings = Settings(tmp_path / "k", tmp_path, (spec,), ())
    leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
    fake.missing.add(f"{leases}/gpu-0")
    await Registration(client, spec, settings, 1234).register()
    paths = [(method, path) for method, path, _ in fake.requests]
    assert paths == [
        ("POST", "/api/v1/nodes"),
        ("PATCH", "/api/v1/nodes/gpu-0/status"),
        ("PATCH", f"{leases}/gpu-0"),
        ("POST", leases),
    ]
    status = fake.requests[1][2]["status"]
    assert status["allocatable"]["nvidia.com/gpu"] == "8"
    assert status["daemonEndpoints"]["kubeletEndpoint"]["Port"] == 1234
    assert {each["type"]: each["status"] for each in status["conditions"]}["Ready"] == "True"


async def test_a_claim_without_class_is_given_a_folder(
    server: tuple[Server, KubeClient], tmp_path: Path
) -> None:
    fake, client = server
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = item("u1", 1, spec=spec, status={"phase": "Pending"})
    provisioner = ClaimProvisioner(client, tmp_path)
    task = asyncio.create_task(provisioner.run())
    provisioner.note_change(None, claim)
    provisioner.note_change(None, item("u2", 1, spec={**spec, "storageClassName": "fast"}))
    await wait_until_async("a volume", lambda: fake.requests)
    provisioner.note_change(claim, None)
    await wait_until_async("two requests", lambda: len(fake.requests) >= 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    volume = fake.requests[0][2]
    assert volume["spec"]["claimRef"]["uid"] == "u1"
    assert volume["spec"]["hostPath"]["path"] == str(tmp_path / "pvc-u1")
    assert fake.requests[1][:2] == ("DELETE", "/api/v1/persistentvolumes/pvc-u1")
    assert not needs_volume({**claim, "spec": {**spec, "volumeName": "x"}})


async def test_an_absent_kubeconfig_is_said_by_its_flag(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "absent", tmp_path, (NodeSpec("n"),), ())
    with pytest.raises(SettingsError, match=r"--kubeconfig: the kubeconfig .*absent can't be read"):
        async with open_agent(settings):
            pass
