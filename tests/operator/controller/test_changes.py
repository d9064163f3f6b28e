"""Which changes of watched objects are worth a look."""

from typing import Any

import pytest

from millrace_operator.controller.cache import Cache
from millrace_operator.controller.queue import WorkQueue
from millrace_operator.controller.relevant_changes import is_news
from millrace_operator.controller.relister import relist
from millrace_operator.controller.watch_recorder import WatchRecorder
from millrace_operator.kube.errors import TransientError
from millrace_operator.kube.fake import FakeCluster
from millrace_operator.kube.kinds import INFERENCE_SERVICE, POD, SERVICE, Kind, Obj
from testing.world import KEY, make_pod, make_service


def change(obj: Obj, version: int, **metadata: Any) -> Obj:
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(version), "uid": "u", **metadata}}


def make_child() -> Obj:
    return {**make_pod("chat"), "kind": SERVICE.kind}


UNREAD: list[dict[str, Any]] = [
    {"annotations": {"argocd.argoproj.io/tracking-id": "x"}},
    {"labels": {"team": "search"}},
    {"managedFields": [{"manager": "kubectl"}]},
]
READ: list[dict[str, Any]] = [
    {"generation": 7},
    {"deletionTimestamp": "2026-01-01T00:00:00Z"},
    {"uid": "another"},
    {"annotations": {"millrace.dev/pin": "3 until 2027-01-01T00:00:00Z"}},
    {"annotations": {"millrace.dev/rollout": "promote x"}},
]


@pytest.mark.parametrize("metadata", UNREAD)
def test_what_others_write_on_a_service_is_no_news(metadata: dict[str, Any]) -> None:
    assert not is_news(change(make_service(), 1), change(make_service(), 2, **metadata))


@pytest.mark.parametrize("metadata", READ)
def test_what_a_plan_reads_of_a_service_is_news(metadata: dict[str, Any]) -> None:
    before, after = change(make_service(), 1), change(make_service(), 2, **metadata)
    assert is_news(before, after)
    assert is_news(after, before)


@pytest.mark.parametrize("part", ["spec", "status"])
def test_a_changed_part_is_news(part: str) -> None:
    assert is_news(change(make_service(), 1), {**change(make_service(), 2), part: {"model": "x"}})
    assert is_news(change(make_pod(), 1), {**change(make_pod(), 2), part: {"nodeName": "x"}})


@pytest.mark.parametrize("metadata", [{"labels": {}}, {"annotations": {"a": "b"}}, {"ownerReferences": []}])
def test_all_that_somebody_changes_on_a_child_is_news(metadata: dict[str, Any]) -> None:
    assert is_news(change(make_child(), 1), change(make_child(), 2, **metadata))


def test_coming_and_going_is_news() -> None:
    assert is_news(None, make_pod())
    assert is_news(make_pod(), None)
    assert not is_news(None, None)


def make_own_child() -> Obj:
    service, child = make_service(), make_child()
    owner = {
        "apiVersion": service["apiVersion"],
        "kind": service["kind"],
        "name": KEY.name,
        "controller": True,
    }
    return {**child, "metadata": {**child["metadata"], "ownerReferences": [owner]}}


@pytest.mark.parametrize(("kind", "obj"), [(INFERENCE_SERVICE, make_service()), (SERVICE, make_own_child())])
def test_the_echo_of_a_write_queues_nothing(kind: Kind, obj: Obj) -> None:
    cache, queue = Cache(), WorkQueue()
    recorder = WatchRecorder(cache, queue)
    with queue.opened():
        cache.put(change(obj, 3))
        assert recorder.put_written(change(obj, 5))
        recorder.record_event(kind, "MODIFIED", change(obj, 5))
        recorder.record_event(kind, "MODIFIED", change(obj, 4))  # late, and older
        assert (len(queue), recorder.health.overdue_seconds()) == (0, 0)
        recorder.record_event(kind, "MODIFIED", {**change(obj, 6), "spec": {"changed": "by somebody"}})
        assert len(queue) == 1


def test_what_we_deleted_is_no_news_when_the_watch_tells() -> None:
    cache, queue = Cache(), WorkQueue()
    recorder = WatchRecorder(cache, queue)
    with queue.opened():
        cache.put(change(make_pod(), 5))
        cache.drop(POD, KEY.namespace, "chat-1")
        recorder.record_event(POD, "DELETED", change(make_pod(), 6))
        assert len(queue) == 0


def test_kopfs_first_list_is_looked_at_whether_it_is_news_or_not() -> None:
    cache, queue = Cache(), WorkQueue()
    recorder = WatchRecorder(cache, queue)
    with queue.opened():
        cache.put(change(make_service(), 5))
        recorder.record_event(INFERENCE_SERVICE, None, change(make_service(), 5))
        assert len(queue) == 1


@pytest.mark.parametrize("fails", [True, False])
async def test_what_a_relist_brings_before_its_watch_is_looked_at_also_where_the_relist_fails(
    *, fails: bool
) -> None:
    cluster, cache, queue = FakeCluster(), Cache(), WorkQueue()
    recorder = WatchRecorder(cache, queue)
    with queue.opened():
        old = cluster.put(make_service(replicas=1))
        cache.put(old)
        edited = cluster.put({**old, "spec": {**old["spec"], "replicas": 5}})
        if fails:
            cluster.read_faults.extend([None, None, TransientError("HTTP 500")])
            with pytest.raises(TransientError):
                await relist(cluster, cache, queue)
        else:
            await relist(cluster, cache, queue)
        recorder.record_event(INFERENCE_SERVICE, "MODIFIED", edited)
        assert len(queue) == 1


async def test_what_a_relist_finds_changed_goes_before_all_that_is_listed() -> None:
    cluster, cache, queue = FakeCluster(), Cache(), WorkQueue()
    names = [f"other-{number}" for number in range(20)]
    for name in names:
        other = make_service()
        cache.put(cluster.put({**other, "metadata": {**other["metadata"], "name": name}}))
    old = cluster.put(make_service(replicas=1))
    cache.put(old)
    cluster.put({**old, "spec": {**old["spec"], "replicas": 5}})
    with queue.opened():
        await relist(cluster, cache, queue)
        assert await queue.get() == KEY
