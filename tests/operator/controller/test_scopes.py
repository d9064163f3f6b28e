"""Some namespaces alone: each is listed for itself, and a list of one says nothing of another."""

import asyncio
from typing import Any

import pytest

from millrace_kubernetes.flags import parse_namespaces
from millrace_operator.app.command import build_parser
from millrace_operator.controller.cache import Cache
from millrace_operator.controller.queue import WorkQueue
from millrace_operator.controller.relister import relist
from millrace_operator.controller.watch_recorder import WatchRecorder
from millrace_operator.kube.errors import AbsentError, RefusedError
from millrace_operator.kube.fake import FakeCluster
from millrace_operator.kube.kinds import (
    DEPLOYMENT,
    EVERYWHERE,
    INFERENCE_SERVICE,
    NODE,
    POD_DISRUPTION_BUDGET,
    Listing,
    Scope,
    ServiceKey,
    find_scopes,
)
from testing.world import make_service


def service(namespace: str) -> dict[str, Any]:
    obj = make_service()
    return {**obj, "metadata": {**obj["metadata"], "namespace": namespace, "uid": namespace}}


def keys(cache: Cache) -> set[str]:
    return {key.namespace for key in cache.service_keys()}


async def test_a_relist_knows_these_namespaces_alone() -> None:
    cluster, cache = FakeCluster(), Cache()
    for name in ("a", "b", "c"):
        cluster.put(service(name))
    await relist(cluster, cache, WorkQueue(), find_scopes(["a", "b"]))
    assert keys(cache) == {"a", "b"}
    cluster.remove(INFERENCE_SERVICE, "a", "chat")
    assert (await relist(cluster, cache, WorkQueue(), [Scope(INFERENCE_SERVICE, "b")])).num_ghosts == 0
    assert keys(cache) == {"a", "b"}
    assert (await relist(cluster, cache, WorkQueue(), find_scopes(["a", "b"]))).num_ghosts == 1
    assert keys(cache) == {"b"}


def test_a_list_of_one_namespace_says_nothing_of_another() -> None:
    cache = Cache()
    scopes = find_scopes(["a", "b"])
    recorder = WatchRecorder(cache, WorkQueue(), scopes=scopes)
    for name in ("a", "b"):
        cache.put(service(name))
    recorder.record_list(Scope(INFERENCE_SERVICE, "a"), Listing([], 10**9))
    assert cache.service_keys() == [ServiceKey("b", "chat")]
    assert recorder.lists.find_unlisted() == [
        scope for scope in scopes if scope != Scope(INFERENCE_SERVICE, "a")
    ]


async def test_a_leader_waits_for_the_list_of_each_namespace() -> None:
    scopes = [Scope(DEPLOYMENT, name) for name in ("a", "b")]
    recorder = WatchRecorder(Cache(), WorkQueue(), scopes=scopes)
    for scope in scopes:
        recorder.expect_list(scope)
    recorder.record_list(scopes[0], Listing([], 1))
    await recorder.lists.wait(0.01)
    assert recorder.lists.find_unlisted() == [scopes[1]]


class WithoutNodes(FakeCluster):
    """It lets nobody read nodes, while told so."""

    refusal: RefusedError | None = None

    async def fetch_all(self, scope: Scope, label_selector: str | None = None) -> Listing:
        if self.refusal and scope.kind is NODE:
            raise self.refusal
        return await super().fetch_all(scope, label_selector)


@pytest.mark.parametrize("error", [RefusedError("nodes is forbidden"), AbsentError("not found")])
@pytest.mark.parametrize("namespaces", [[], ["a"]])
async def test_a_relist_goes_on_without_a_kind_that_need_not_be_there(
    error: RefusedError, namespaces: list[str]
) -> None:
    cluster, cache, scopes = WithoutNodes(), Cache(), find_scopes(namespaces)
    cluster.put(service("a"))
    cluster.put(node := {"kind": "Node", "metadata": {"name": "gpu-1"}, "spec": {"unschedulable": True}})
    cluster.refusal = error
    assert (await relist(cluster, cache, WorkQueue(), scopes)).missing == {}
    assert (keys(cache), dict(cache.departures())) == ({"a"}, {})
    cluster.refusal = None
    await relist(cluster, cache, WorkQueue(), scopes)
    assert cache.departures() == {node["metadata"]["name"]: "it is cordoned"}
    cluster.refusal = error
    await relist(cluster, cache, WorkQueue(), scopes)
    assert dict(cache.departures()) == {}


class Strict(FakeCluster):
    """It lets nobody read a namespace."""

    async def fetch_all(self, scope: Scope, label_selector: str | None = None) -> Listing:
        if scope.namespace == "b":
            raise RefusedError("inferenceservices is forbidden")
        return await super().fetch_all(scope, label_selector)


async def test_a_namespace_that_may_not_be_read_is_left_out_until_each_kind_of_it_was_listed() -> None:
    cluster, cache = Strict(), Cache()
    scopes = find_scopes(["a", "b"])
    recorder = WatchRecorder(cache, WorkQueue(), scopes=scopes)
    for name in ("a", "b"):
        cluster.put(service(name))
    found = await relist(cluster, cache, WorkQueue(), scopes)
    recorder.lists.note_missing(found.missing)
    assert keys(cache) == {"a"}
    assert (recorder.lists.is_known("a"), recorder.lists.is_known("b")) == (True, False)
    recorder.record_event(INFERENCE_SERVICE, None, service("b"))  # its Role has come
    children = [scope for scope in scopes if scope.namespace == "b" and scope.kind is not INFERENCE_SERVICE]
    for scope in children:
        assert not recorder.lists.is_known("b")
        recorder.record_list(scope, Listing([], 1))
    assert recorder.lists.is_known("b")


class WithoutBudgets(FakeCluster):
    """It lets nobody read the PodDisruptionBudgets of a namespace."""

    async def fetch_all(self, scope: Scope, label_selector: str | None = None) -> Listing:
        if scope == Scope(POD_DISRUPTION_BUDGET, "b"):
            raise RefusedError("poddisruptionbudgets is forbidden")
        return await super().fetch_all(scope, label_selector)


async def test_a_namespace_of_which_one_kind_may_not_be_read_is_left_out_alone() -> None:
    cluster, cache = WithoutBudgets(), Cache()
    scopes = find_scopes(["a", "b"])
    recorder = WatchRecorder(cache, WorkQueue(), scopes=scopes)
    for name in ("a", "b"):
        cluster.put(service(name))
    found = await relist(cluster, cache, WorkQueue(), scopes)
    recorder.lists.note_missing(found.missing)
    refused = Scope(POD_DISRUPTION_BUDGET, "b")
    assert found.missing == {refused: "poddisruptionbudgets is forbidden"}
    assert (recorder.lists.is_known("a"), recorder.lists.is_known("b")) == (True, False)
    recorder.record_list(refused, Listing([], 1))
    assert recorder.lists.is_known("b")


async def test_a_cluster_that_may_not_be_read_is_an_error() -> None:
    cluster = FakeCluster()
    cluster.read_faults.append(RefusedError("inferenceservices is forbidden"))
    with pytest.raises(RefusedError):
        await relist(cluster, Cache(), WorkQueue())


async def test_nobody_waits_for_the_list_of_a_namespace_that_may_not_be_read() -> None:
    scopes = [Scope(DEPLOYMENT, name) for name in ("a", "b")]
    recorder = WatchRecorder(Cache(), WorkQueue(), scopes=scopes)
    for scope in scopes:
        recorder.expect_list(scope)
    recorder.record_list(scopes[0], Listing([], 1))
    recorder.lists.give_up(scopes[1])
    await asyncio.wait_for(recorder.lists.wait(60), 5)


def test_no_name_means_all() -> None:
    assert find_scopes(parse_namespaces("")) == EVERYWHERE
    assert parse_namespaces("shop, search,shop") == ("shop", "search")


@pytest.mark.parametrize("text", ["Shop", "shop;search", "*", "a-", "a" * 64])
def test_what_names_no_namespace_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["--namespaces", text])
    assert "names no namespace; write for example shop,search" in capsys.readouterr().err
