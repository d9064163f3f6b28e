"""Lists that repair what watches have missed."""

import logging

import pytest

from millrace_operator.controller.cache import Cache
from millrace_operator.controller.queue import WorkQueue
from millrace_operator.controller.relister import relist, relist_changes
from millrace_operator.controller.watch_recorder import WatchRecorder
from millrace_operator.kube.fake import FakeCluster
from millrace_operator.kube.kinds import EVERYWHERE, INFERENCE_SERVICE, POD, Kind, Listing, Obj, Scope
from testing.world import KEY, make_pod, make_service


def make_odd(version: int) -> Obj:
    """Return a pod whose status nobody can read. It comes before all others in a list."""
    pod = make_pod()
    metadata = {**pod["metadata"], "name": "an-odd-one", "uid": "odd", "resourceVersion": str(version)}
    return {**pod, "metadata": metadata, "status": {"initContainerStatuses": ["x"]}}


class Recording(FakeCluster):
    """It remembers which kinds were listed."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: list[Kind] = []

    async def fetch_all(self, scope: Scope, label_selector: str | None = None) -> Listing:
        self.listed.append(scope.kind)
        return await super().fetch_all(scope, label_selector)


async def test_an_odd_object_is_named_once_and_all_others_are_listed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster, cache, queue = Recording(), Cache(), WorkQueue()
    cluster.put(make_odd(1))
    cache.put(cluster.put(make_service(replicas=1)))
    cluster.put({**cluster.objects[(INFERENCE_SERVICE.kind, *KEY)], "spec": {"replicas": 5}})
    cluster.put(make_pod())
    for _ in range(3):
        await relist(cluster, cache, queue)
    service = cache.service(KEY)
    assert service is not None
    assert service["spec"] == {"replicas": 5}
    assert (cache.service_keys(), len(cache.pods(KEY))) == ([KEY], 1)
    assert cluster.listed == 3 * [scope.kind for scope in EVERYWHERE]
    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert f"Pod {KEY.namespace}/an-odd-one" in record.getMessage()
    assert record.exc_info


def test_one_that_is_odd_again_is_named_again(caplog: pytest.LogCaptureFixture) -> None:
    cache = Cache()
    recorder, scope = WatchRecorder(cache, WorkQueue()), Scope(POD)
    mended = {**make_odd(6), "status": {}}
    for version, pod in ((5, make_odd(5)), (6, mended), (7, make_odd(7)), (8, make_odd(8))):
        recorder.record_list(scope, Listing([pod], version))
    assert caplog.text.count("an-odd-one cannot be read") == 2
    held = cache.find(mended)
    assert held is not None
    assert held["metadata"]["resourceVersion"] == "6"


@pytest.mark.parametrize(
    "odd",
    [
        {"metadata": {"namespace": "shop", "resourceVersion": "3"}},
        {"metadata": {"namespace": "shop", "name": "odd", "resourceVersion": "new"}},
        {"metadata": {"namespace": "shop", "name": "odd", "resourceVersion": "3", "labels": ["x"]}},
    ],
)
async def test_a_watchs_list_brings_all_but_what_nobody_can_read(odd: Obj) -> None:
    cache, queue = Cache(), WorkQueue()
    recorder = WatchRecorder(cache, queue)
    pod = make_pod()
    good = {**pod, "metadata": {**pod["metadata"], "uid": "u", "resourceVersion": "2"}}
    with queue.opened():
        for version in (9, 10):
            recorder.record_list(Scope(POD), Listing([{**odd, "kind": POD.kind}, good], version))
        assert await queue.get() == KEY
    assert (len(cache), len(cache.pods(KEY))) == (1, 1)


def test_an_odd_version_of_an_object_leaves_the_one_before_whole() -> None:
    cache = Cache()
    good = {**make_odd(1), "status": {}}
    cache.put(good)
    with pytest.raises(AttributeError):
        cache.put(make_odd(2))
    held = cache.find(good)
    assert held is not None
    assert held["metadata"]["resourceVersion"] == "1"
    cache.put({**make_odd(3), "status": {}})
    cache.forget(make_odd(4))
    assert (len(cache), cache.pods(KEY), cache.fetching()) == (0, (), {})


async def test_a_list_after_a_loss_queues_those_alone_that_it_changes() -> None:
    cluster, cache, queue = FakeCluster(), Cache(), WorkQueue()

    def make(name: str, replicas: int) -> Obj:
        service = make_service(replicas=replicas)
        return {**service, "metadata": {**service["metadata"], "name": name, "uid": name}}

    for name in ("same", "edited", "gone"):
        cache.put(cluster.put(make(name, 1)))
    cluster.put(make("edited", 2))
    cluster.put(make("new", 1))
    cluster.remove(INFERENCE_SERVICE, KEY.namespace, "gone")
    with queue.opened():
        found = await relist_changes(cluster, cache, queue, [Scope(INFERENCE_SERVICE)])
        queued = {(await queue.get()).name for _ in range(len(queue))}
    assert (queued, found.num_ghosts) == ({"edited", "gone", "new"}, 1)
