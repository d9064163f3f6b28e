"""The kinds that services have children of, followed over real HTTP."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from millrace_kubernetes import watch
from millrace_kubernetes.access import ClusterAccess
from millrace_kubernetes.connection import Connection
from millrace_operator.controller.cache import Cache
from millrace_operator.controller.queue import WorkQueue
from millrace_operator.controller.watch_recorder import WatchRecorder
from millrace_operator.controller.watches import follow_children
from millrace_operator.kube.kinds import (
    CHILDREN,
    DEPLOYMENT,
    EVERYWHERE,
    INFERENCE_SERVICE,
    NODE,
    NODES,
    POD,
    Obj,
    ObjectKey,
    Scope,
    ServiceKey,
)
from millrace_runtime import contract
from testing.api_server import FakeApiServer
from testing.polling import wait_until_async
from testing.world import KEY


def make_child(name: str, service: str = KEY.name) -> dict[str, Any]:
    """Return an object as a list or a watch has it: without its kind."""
    labels = {contract.LABEL_SERVICE: service, contract.LABEL_COMPONENT: contract.COMPONENT_REPLICA}
    return {"metadata": {"name": name, "namespace": KEY.namespace, "uid": f"uid-{name}", "labels": labels}}


@dataclass
class Followed:
    """A cache and a queue behind the watches of an API server."""

    api: FakeApiServer = field(default_factory=FakeApiServer)
    cache: Cache = field(default_factory=Cache)
    queue: WorkQueue = field(default_factory=WorkQueue)

    def __post_init__(self) -> None:
        self.recorder = WatchRecorder(self.cache, self.queue)

    def names(self) -> list[str]:
        found: tuple[Obj, ...] = (*self.cache.children(KEY), *self.cache.pods(KEY))
        return sorted(obj["metadata"]["name"] for obj in found)

    def node(self) -> Obj:
        return self.cache._objects[ObjectKey("Node", "", "gpu-1")]

    async def until(self, *names: str) -> None:
        await wait_until_async(f"{names}", lambda: self.names() == sorted(names))

    async def until_streaming(self) -> None:
        kinds = (*CHILDREN, POD)
        await wait_until_async(
            "streams", lambda: all(self.api.num_streams(kind.path(None)) for kind in kinds)
        )


@pytest.fixture
async def followed() -> AsyncIterator[Followed]:
    found = Followed()
    app = web.Application()
    app.router.add_get("/{path:.*}", found.api.handle)
    server = TestServer(app, handler_cancellation=True, shutdown_timeout=0.1)
    async with server, aiohttp.ClientSession() as session:
        connection = Connection(session, ClusterAccess(str(server.make_url("")).rstrip("/"), None))
        with found.queue.opened():
            task = asyncio.create_task(follow_children(found.recorder, connection))
            yield found
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def put(api: FakeApiServer, kind: Any, name: str, **fields: Any) -> dict[str, Any]:
    item = {**make_child(name), **fields}
    item["metadata"]["resourceVersion"] = str(api.version)
    api.put(kind.path(None), item)
    return item


async def test_each_kind_is_listed_and_watched_by_our_label(followed: Followed) -> None:
    for kind in CHILDREN:
        put(followed.api, kind, f"child-{kind.plural}")
    await followed.until_streaming()
    put(followed.api, POD, "pod")
    await followed.until(*(f"child-{kind.plural}" for kind in CHILDREN), "pod")
    selectors = {
        request.get("labelSelector")
        for request in followed.api.requests
        if request["path"] != NODE.path(None)
    }
    assert selectors == {contract.LABEL_SERVICE}
    assert {obj["kind"] for obj in followed.cache.children(KEY)} == {kind.kind for kind in CHILDREN}
    assert {obj["apiVersion"] for obj in followed.cache.pods(KEY)} == {"v1"}


async def test_a_list_waits_behind_what_happens(followed: Followed) -> None:
    put(followed.api, DEPLOYMENT, "listed")
    await followed.until_streaming()
    item = make_child("pod", "other")
    followed.api.put(POD.path(None), item)
    await wait_until_async("both", lambda: len(followed.queue) == 2)
    assert await followed.queue.get() == ServiceKey(KEY.namespace, "other")


async def test_what_is_deleted_is_forgotten_also_where_no_event_told_of_it(followed: Followed) -> None:
    kept, gone, unseen = (put(followed.api, DEPLOYMENT, name) for name in ("kept", "gone", "unseen"))
    await followed.until("kept", "gone", "unseen")
    await followed.until_streaming()
    path = DEPLOYMENT.path(None)
    followed.api.remove(path, gone)
    await followed.until("kept", "unseen")
    assert await followed.queue.get() == KEY
    followed.queue.done(KEY)
    del followed.api.objects[path][unseen["metadata"]["uid"]]
    followed.api.expire(path)
    await followed.until("kept")
    assert await followed.queue.get() == KEY
    assert kept["metadata"]["name"] == "kept"


async def test_a_leader_waits_for_the_lists_that_are_on_their_way(followed: Followed) -> None:
    assert followed.recorder.lists.find_unlisted() == list(EVERYWHERE)
    await followed.recorder.lists.wait(10)
    assert followed.recorder.lists.find_unlisted() == [Scope(INFERENCE_SERVICE)]
    followed.recorder.expect_list(Scope(INFERENCE_SERVICE))
    await followed.recorder.lists.wait(0.01)  # no longer than that
    assert followed.recorder.lists.find_unlisted() == [Scope(INFERENCE_SERVICE)]


async def test_a_write_of_ours_that_a_list_does_not_have_yet_stays(followed: Followed) -> None:
    await followed.until_streaming()
    written = {**make_child("new"), "apiVersion": "apps/v1", "kind": "Deployment"}
    written["metadata"]["resourceVersion"] = str(followed.api.version + 5)
    followed.cache.put(written)
    followed.api.expire(DEPLOYMENT.path(None))
    await asyncio.sleep(0.5)
    assert followed.names() == ["new"]


@pytest.mark.parametrize("status", [403, 404])
async def test_a_kind_that_need_not_be_there_is_waited_for_by_nobody_and_picked_up_when_it_comes(
    followed: Followed, status: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("millrace_operator.controller.watches.OPTIONAL_BACKOFF_SECONDS", 0.01)
    caplog.set_level("INFO")
    followed.api.refused[NODE.path(None)] = status
    followed.recorder.expect_list(NODES)
    await asyncio.wait_for(followed.recorder.lists.wait(60), 10)
    num_tries = len([one for one in followed.api.requests if one["path"] == NODE.path(None)])
    await wait_until_async(
        "more tries",
        lambda: sum(one["path"] == NODE.path(None) for one in followed.api.requests) > num_tries + 3,
    )
    told = [one for one in caplog.records if one.name == watch.__name__ and NODE.path(None) in one.message]
    assert [one.levelname for one in told] == ["INFO"]
    put_node(followed.api, "gpu-1", unschedulable=True)
    del followed.api.refused[NODE.path(None)]
    await wait_until_async("the node", lambda: followed.cache.departures() == {"gpu-1": "it is cordoned"})
    await followed.until_streaming()


def put_node(api: FakeApiServer, name: str, **spec: Any) -> None:
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(api.version)}
    status = {"images": [{"names": ["a"] * 9}], "conditions": [{"lastHeartbeatTime": str(api.version)}]}
    api.put(
        NODE.path(None), {"metadata": metadata, "spec": {"podCIDR": "10.0.0.0/24", **spec}, "status": status}
    )


async def test_a_node_that_is_emptied_queues_the_services_on_it_and_its_heartbeat_queues_nothing(
    followed: Followed,
) -> None:
    put(followed.api, POD, "pod", spec={"nodeName": "gpu-1"})
    put_node(followed.api, "gpu-1")
    await followed.until("pod")
    await followed.until_streaming()
    await wait_until_async("a stream", lambda: followed.api.num_streams(NODE.path(None)))
    assert await followed.queue.get() == KEY
    followed.queue.done(KEY)

    async def settle() -> None:
        """Wait until the node's last version is known."""
        version = str(followed.api.version)
        await wait_until_async("the node", lambda: followed.node()["metadata"]["resourceVersion"] == version)

    put_node(followed.api, "gpu-1")
    await settle()
    assert followed.queue.seconds_to_next() is None
    put_node(followed.api, "gpu-1", unschedulable=True)
    await settle()
    assert followed.queue.seconds_to_next() is not None
    assert followed.node().keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert followed.node()["spec"] == {"unschedulable": True}
