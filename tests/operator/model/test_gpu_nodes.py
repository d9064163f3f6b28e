"""Changes of nodes' GPUs: looked at for the services that have no room, and for no other."""

from typing import Any

import pytest

from millrace_operator.controller.cache import Cache
from millrace_operator.controller.queue import WorkQueue
from millrace_operator.controller.watch_recorder import WatchRecorder
from millrace_operator.kube.kinds import NODE, Listing, Obj, Scope
from millrace_operator.kube.node import find_gpus
from testing.world import make_service

PRODUCT = "nvidia.com/gpu.product"
GPUS = {"nvidia.com/gpu": "8"}


def make_node(
    version: int, labels: dict[str, str] | None = None, gpus: Any = GPUS, **status: Any
) -> dict[str, Any]:
    labels = {PRODUCT: "NVIDIA-L4", "pool": "a", **(labels or {})}
    metadata = {"name": "gpu-1", "uid": "gpu-1", "resourceVersion": str(version), "labels": labels}
    return NODE.trim({"metadata": metadata, "status": {"allocatable": {"cpu": "8", **gpus}, **status}})


def refused_service(**pod: Any) -> Obj:
    service = make_service(resources={"limits": {"nvidia.com/gpu": 1}}, pod=pod)
    condition = {"type": "ModelReady", "status": "False", "reason": "DoesNotFit"}
    return {**service, "status": {"conditions": [condition]}}


def count_news(service: Obj, before: Obj | None, after: Obj | None, event: str = "MODIFIED") -> int:
    cache, queue = Cache(), WorkQueue()
    recorder = WatchRecorder(cache, queue)
    cache.put(service)
    if before is not None:
        recorder.record_event(NODE, None, before)
    with queue.opened():
        recorder.record_event(NODE, event, after or before or {})
        return len(queue)


CHANGES: list[dict[str, Any]] = [
    {"labels": {PRODUCT: "NVIDIA-H100-80GB-HBM3"}},
    {"labels": {"nvidia.com/gpu.memory": "81559"}},
    {"gpus": {"nvidia.com/mig-1g.10gb": "8"}},
]
SILENCE: list[dict[str, Any]] = [
    {"conditions": [{"type": "Ready", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]},
    {"labels": {"team": "search"}},
    {"labels": {"nvidia.com/gfd.timestamp": "7"}},
    {"labels": {"pool": "b"}},
    {"gpus": {"nvidia.com/gpu": "7"}},
    {"gpus": {}},
    {"gpus": {"nvidia.com/gpu": "0"}},
]


@pytest.mark.parametrize("change", CHANGES)
def test_another_gpu_is_news_to_a_service_without_room(change: dict[str, Any]) -> None:
    assert count_news(refused_service(), make_node(1), make_node(2, **change)) == 1


@pytest.mark.parametrize("change", CHANGES)
def test_another_gpu_is_no_news_to_any_other_service(change: dict[str, Any]) -> None:
    service = make_service(resources={"limits": {"nvidia.com/gpu": 1}})
    assert count_news(service, make_node(1), make_node(2, **change)) == 0


@pytest.mark.parametrize("change", SILENCE)
def test_what_tells_nothing_of_gpus_is_no_news(change: dict[str, Any]) -> None:
    assert count_news(refused_service(), make_node(1), make_node(2, **change)) == 0


def test_a_label_that_a_node_selector_names_is_news() -> None:
    service = refused_service(nodeSelector={"pool": "b"})
    assert count_news(service, make_node(1), make_node(2, {"pool": "b"})) == 1
    assert count_news(service, make_node(1), make_node(2, {"pool": "c"})) == 0


def test_a_node_that_comes_or_goes_is_news() -> None:
    assert count_news(refused_service(), None, make_node(1), "ADDED") == 1
    assert count_news(refused_service(), make_node(1), make_node(2), "DELETED") == 1
    assert count_news(refused_service(nodeSelector={"pool": "b"}), make_node(1), make_node(2), "DELETED") == 0


def test_a_spec_that_nobody_can_read_stops_no_watch() -> None:
    service = refused_service() | {"spec": {"model": 7}}
    assert count_news(service, make_node(1), make_node(2, {PRODUCT: "Tesla-T4"})) == 0


def test_a_list_of_nodes_tells_what_came_and_went() -> None:
    cache, queue = Cache(), WorkQueue()
    recorder, kind = WatchRecorder(cache, queue), {"apiVersion": NODE.api_version, "kind": NODE.kind}
    cache.put(refused_service())
    with queue.opened():
        recorder.record_list(Scope(NODE), Listing([{**kind, **make_node(1)}], 1))
        assert (len(queue), list(cache.gpu_nodes())) == (1, ["gpu-1"])
    with queue.opened():
        recorder.record_list(Scope(NODE), Listing([{**kind, **make_node(2, status="x")}], 2))
        assert len(queue) == 0
        recorder.record_list(Scope(NODE), Listing([], 3))
        assert (len(queue), list(cache.gpu_nodes())) == (1, [])


def test_little_of_a_node_is_kept() -> None:
    metadata = {
        "name": "a",
        "labels": {"pool": "a", PRODUCT: "NVIDIA-L4", "feature.node.kubernetes.io/x": "1"},
    }
    node = {"metadata": metadata, "status": {"allocatable": {"cpu": "8", **GPUS}, "images": ["much"]}}
    assert NODE.trim(node) == {
        "metadata": {"name": "a", "labels": {"pool": "a", PRODUCT: "NVIDIA-L4"}},
        "spec": {},
        "status": {"allocatable": GPUS},
    }
    without = {"metadata": {"name": "a", "labels": {"pool": "a"}}, "status": {"allocatable": {"cpu": "8"}}}
    assert NODE.trim(without) == {"metadata": {"name": "a"}, "spec": {}}
    assert find_gpus(NODE.trim(without)) is None
