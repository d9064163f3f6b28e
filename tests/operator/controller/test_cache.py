import itertools
from collections.abc import Callable

import kopf
import pytest

from millrace_operator.controller.cache import Cache
from millrace_operator.controller.queue import WorkQueue
from millrace_operator.controller.relister import relist
from millrace_operator.controller.watch_recorder import WatchRecorder
from millrace_operator.controller.watches import _at_service_address, build_registry, build_settings
from millrace_operator.kube.fake import FakeCluster
from millrace_operator.kube.kinds import (
    CHILDREN,
    INFERENCE_SERVICE,
    POD,
    Listing,
    Obj,
    Scope,
    kind_of,
)
from millrace_runtime.contract import COMPONENT_FILLER, COMPONENT_RESOLVER, LABEL_COMPONENT, LABEL_REVISION
from testing.world import KEY, make_pod, make_service
from tests.operator.status.test_causes import fetching


def make_child() -> Obj:
    return {**make_pod("svc"), "kind": "Service"}


def versioned(obj: Obj, version: int, uid: str = "u") -> Obj:
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(version), "uid": uid}}


def test_an_older_view_does_not_replace_a_newer_one() -> None:
    cache = Cache()
    cache.put(versioned(make_service(replicas=2), 10))
    cache.put(versioned(make_service(replicas=1), 9))
    assert cache.service(KEY)["spec"]["replicas"] == 2


def test_an_object_made_anew_replaces_the_old_one_whatever_its_version() -> None:
    cache = Cache()
    cache.put(versioned(make_service(replicas=2), 10))
    cache.put(versioned(make_service(replicas=1), 9, uid="other"))
    assert cache.service(KEY)["spec"]["replicas"] == 1


@pytest.mark.parametrize(
    ("before", "held", "stored"),
    [
        (None, None, "u"),
        (None, "u", "u"),
        (None, "anew", "anew"),
        ("u", "u", "u"),
        ("u", None, None),
        ("u", "anew", "anew"),
        ("former", "former", "u"),
        ("former", "u", "u"),
        ("former", None, None),
        ("former", "anew", "anew"),
    ],
)
def test_what_a_look_found_is_stored_unless_a_watch_has_told_an_end_meanwhile(
    before: str | None, held: str | None, stored: str | None
) -> None:
    cache, found = Cache(), versioned(make_pod(), 7, uid="u")
    if held is not None:
        cache.put(versioned(make_pod(), 6, uid=held))
    cache.renew(found, None if before is None else versioned(make_pod(), 5, uid=before))
    left = cache.find(found)
    assert (None if left is None else left["metadata"]["uid"]) == stored
    assert stored != "u" or left == found, "in its newest version"


def test_children_and_pods_are_found_by_label() -> None:
    cache = Cache()
    cache.put(versioned(make_pod(), 1))
    cache.put(versioned({**make_pod("svc"), "kind": "Service"}, 1))
    assert [pod["metadata"]["name"] for pod in cache.pods(KEY)] == ["chat-1"]
    assert [child["kind"] for child in cache.children(KEY)] == ["Service"]
    cache.drop(POD, KEY.namespace, "chat-1")
    assert cache.pods(KEY) == ()


def test_services_whose_counts_the_operator_decides_are_known_without_a_look_at_all_of_them() -> None:
    cache, found = Cache(), []
    external = {"scaling": {"mode": "External"}}
    for version, spec in enumerate(({}, external, {"scaling": {"mode": "DryRun"}}, {"scaling": []}), start=1):
        service = make_service(**spec)
        cache.put({**service, "metadata": {**service["metadata"], "resourceVersion": str(version)}})
        found.append(cache.scaled_keys())
    cache.forget(service)
    assert [*found, cache.scaled_keys()] == [[KEY], [], [KEY], [KEY], []]


def test_the_pods_that_fetch_are_known_without_a_look_at_all_of_them() -> None:
    cache, running, version = Cache(), {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, itertools.count(1)
    cache.put(versioned(make_service(), next(version)))
    for state, is_fetching in [
        ({"waiting": {"reason": "PodInitializing"}}, True),
        (running, True),
        ({"terminated": {"exitCode": 1}}, True),
        ({"waiting": {"reason": "CrashLoopBackOff"}}, True),
        (running, True),
        ({"terminated": {"exitCode": 0}}, False),
    ]:
        cache.put(versioned(make_pod(**fetching(state)), next(version)))
        assert cache.fetching() == ({KEY: cache.pods(KEY)} if is_fetching else {}), state
    cache.put(versioned(make_pod(**fetching(running)), next(version)))
    cache.drop(INFERENCE_SERVICE, *KEY)
    assert cache.fetching() == {}, "the service is gone"
    cache.put(versioned(make_service(), next(version)))
    cache.drop(POD, KEY.namespace, "chat-1")
    assert cache.fetching() == {}


@pytest.mark.parametrize(("part", "expected"), [(COMPONENT_FILLER, [KEY]), (COMPONENT_RESOLVER, [])])
def test_of_the_jobs_only_the_one_that_fetches_is_asked_how_far_it_is(part: str, expected: object) -> None:
    cache, running = Cache(), {"name": "fetch", "state": {"running": {}}}
    cache.put(versioned(make_service(), 1))
    pod = make_pod("chat-f", containerStatuses=[running])
    pod["metadata"]["labels"][LABEL_COMPONENT] = part
    cache.put(versioned(pod, 2))
    assert list(cache.fetching()) == expected


async def test_a_relist_sweeps_what_was_deleted_unseen_and_wakes_its_owner() -> None:
    cache, queue, cluster = Cache(), WorkQueue(), FakeCluster()
    cache.put(versioned(make_pod("ghost"), 1))
    cluster.put(make_service())
    with queue.opened():
        assert (await relist(cluster, cache, queue)).num_ghosts == 1
        assert cache.pods(KEY) == ()
        assert cache.service_keys() == [KEY]
        assert await queue.get() == KEY


def strip(pod: Obj, **owner: object) -> Obj:
    """Return a pod as older operators made them, or as somebody's own: without the label of a component."""
    labels = {name: text for name, text in pod["metadata"]["labels"].items() if name != LABEL_COMPONENT}
    owners = {"ownerReferences": [owner]} if owner else {}
    return {**pod, "metadata": {**pod["metadata"], "labels": labels, **owners}}


def test_a_pod_with_our_label_that_we_did_not_make_is_no_replica() -> None:
    cache = Cache()
    stranger = strip(make_pod("load-tester"))
    of_job = strip(make_pod("job"), kind="Job", controller=True)
    without_revision = strip(make_pod("web"), kind="ReplicaSet", controller=True)
    del without_revision["metadata"]["labels"][LABEL_REVISION]
    for pod in (stranger, of_job, without_revision):
        cache.put(versioned(pod, 5))
    assert cache.pods(KEY) == ()
    for pod in (make_pod("new"), strip(make_pod("old"), kind="ReplicaSet", controller=True)):
        cache.put(versioned(pod, 5))
    assert [pod["metadata"]["name"] for pod in cache.pods(KEY)] == ["new", "old"]
    for pod in (stranger, make_pod("new")):
        cache.forget(versioned(pod, 6))
    assert [pod["metadata"]["name"] for pod in cache.pods(KEY)] == ["old"]


def test_events_reach_the_cache_and_their_owner_the_queue() -> None:
    cache, queue = Cache(), WorkQueue()
    recorder = WatchRecorder(cache, queue)
    with queue.opened():
        recorder.record_event(INFERENCE_SERVICE, None, versioned(make_service(), 1))
        recorder.record_event(POD, "ADDED", versioned(make_pod(), 2))
        assert len(cache) == 2
        assert len(queue) == 1
    recorder.record_event(POD, "DELETED", versioned(make_pod(), 3))
    assert len(cache) == 1


def test_a_late_delete_of_an_old_object_spares_its_successor() -> None:
    cache = Cache()
    recorder = WatchRecorder(cache, WorkQueue())
    cache.put(versioned(make_pod(), 5, uid="new"))
    recorder.record_event(POD, "DELETED", versioned(make_pod(), 6, uid="old"))
    assert len(cache.pods(KEY)) == 1


@pytest.mark.parametrize("make", [make_service, make_pod])
def test_the_late_answer_to_a_write_brings_back_nothing_that_is_gone(make: Callable[[], Obj]) -> None:
    """Services and pods are made by others, so what is not there was deleted meanwhile."""
    now = [0.0]
    cache = Cache()
    recorder = WatchRecorder(cache, WorkQueue(), lambda: now[0])
    recorder.record_event(kind_of(make()), "ADDED", versioned(make(), 1))
    recorder.record_event(kind_of(make()), "DELETED", versioned(make(), 3))
    assert not recorder.put_written(versioned(make(), 2))
    now[0] = 90
    assert (len(cache), recorder.health.overdue_seconds()) == (0, 0)


@pytest.mark.parametrize("make", [make_service, make_pod, make_child])
def test_the_late_answer_to_a_write_does_not_replace_what_was_made_anew(make: Callable[[], Obj]) -> None:
    cache = Cache()
    recorder = WatchRecorder(cache, WorkQueue())
    cache.put(versioned(make(), 3, uid="new"))
    assert not recorder.put_written(versioned(make(), 2, uid="old"))
    found = cache.find(make())
    assert found is not None
    assert found["metadata"]["uid"] == "new"


def test_what_is_created_is_known_at_once_also_where_the_end_of_another_one_is_late() -> None:
    cache = Cache()
    recorder = WatchRecorder(cache, WorkQueue())
    assert recorder.put_written(versioned(make_child(), 2, uid="old"))
    assert recorder.put_written(versioned(make_child(), 5, uid="new"))
    assert cache.children(KEY)[0]["metadata"]["uid"] == "new"


def hold(obj: Obj) -> Cache:
    """Return a cache that has the object in an early version."""
    cache = Cache()
    cache.put(versioned(obj, 1))
    return cache


def test_a_write_makes_an_event_due_and_a_quiet_cluster_does_not() -> None:
    now = [0.0]
    recorder = WatchRecorder(hold(make_pod()), WorkQueue(), lambda: now[0])
    now[0] = 1000
    assert recorder.health.overdue_seconds() == 0
    recorder.put_written(versioned(make_pod(), 5))
    now[0] = 1030
    assert recorder.health.overdue_seconds() == 30
    recorder.record_event(POD, "ADDED", versioned(make_pod(), 5))
    recorder.put_written(versioned(make_pod(), 5))
    now[0] = 2000
    assert recorder.health.overdue_seconds() == 0


def test_a_dead_watch_of_one_namespace_is_seen_without_any_write_of_ours() -> None:
    now = [0.0]
    recorder = WatchRecorder(Cache(), WorkQueue(), lambda: now[0])
    assert recorder.health.silent_seconds() == 0
    scopes = [Scope(POD, "a"), Scope(POD, "b")]
    for scope in scopes:
        recorder.expect_list(scope)
    for _ in range(100):
        now[0] += 60
        recorder.health.note_life(scopes[0])
        recorder.health.note_life(scopes[1])
    assert recorder.health.silent_seconds() == 0
    now[0] += 60
    recorder.health.note_life(scopes[0])
    assert recorder.health.silent_seconds() == 60
    recorder.record_event(POD, "ADDED", versioned(make_pod(), 5))  # it may be of the other one
    assert recorder.health.silent_seconds() == 60


def test_while_all_watches_try_and_fail_no_event_is_overdue() -> None:
    """The API server is away: another start of ours would bring it back no sooner."""
    now = [0.0]
    recorder = WatchRecorder(hold(make_pod()), WorkQueue(), lambda: now[0])
    scopes = [Scope(kind) for kind in CHILDREN]
    for scope in scopes:
        recorder.expect_list(scope)
    recorder.put_written(versioned(make_pod(), 5))
    for _ in range(12):
        now[0] += 10
        for scope in scopes:
            recorder.health.note_failure(scope)
    assert (recorder.health.overdue_seconds(), recorder.health.silent_seconds()) == (0, 0)
    now[0] += 10
    recorder.health.note_life(scopes[0])  # it is back, and the event is due from now on
    now[0] += 70
    assert recorder.health.overdue_seconds() == 70
    recorder.record_event(POD, "ADDED", versioned(make_pod(), 5))
    assert recorder.health.overdue_seconds() == 0


def test_a_watch_that_fails_among_those_that_live_leaves_its_event_overdue() -> None:
    now = [0.0]
    recorder = WatchRecorder(hold(make_pod()), WorkQueue(), lambda: now[0])
    scopes = [Scope(kind) for kind in CHILDREN]
    for scope in scopes:
        recorder.expect_list(scope)
    recorder.put_written(versioned(make_pod(), 5))
    for scope in scopes[1:]:
        recorder.health.note_failure(scope)
    now[0] = 90
    assert recorder.health.overdue_seconds() == 90


def test_kopfs_watch_of_services_ends_by_itself_when_it_is_silent() -> None:
    """With bookmarks, which come each minute; build_settings must not turn that off."""
    assert 60 < build_settings().watching.inactivity_timeout <= 90


def test_events_of_one_kind_hide_no_dead_watch_of_another() -> None:
    now = [0.0]
    recorder = WatchRecorder(hold(make_service()), WorkQueue(), lambda: now[0])
    recorder.put_written(versioned(make_service(), 5))
    now[0] = 90
    recorder.record_event(POD, "ADDED", versioned(make_pod(), 6))
    assert recorder.health.overdue_seconds() == 90
    recorder.record_event(INFERENCE_SERVICE, "MODIFIED", versioned(make_service(), 5))
    assert recorder.health.overdue_seconds() == 0


def test_a_spec_is_parsed_once_and_again_when_it_changes_or_its_service_is_another() -> None:
    cache = Cache()
    with pytest.raises(ValueError, match="Spec"):
        cache.spec(KEY)
    cache.put(versioned(make_service(), 1))
    first = cache.spec(KEY)
    cache.put(versioned(make_service(), 2))
    assert cache.spec(KEY) is first
    cache.put(versioned(make_service(engine={"maxSequences": 7}), 3))
    assert cache.spec(KEY).engine.max_sequences == 7
    cache.drop(INFERENCE_SERVICE, *KEY)
    with pytest.raises(ValueError, match="Spec"):
        cache.spec(KEY)
    assert cache.service_keys() == []


class Busy(FakeCluster):
    """Things happen between the moment of a list and its arrival."""

    def __init__(self, happen: Callable[[], None]) -> None:
        super().__init__()
        self._happen = happen

    async def fetch_all(self, scope: Scope, label_selector: str | None = None) -> Listing:
        found = await super().fetch_all(scope, label_selector)
        if scope.kind is POD:
            self._happen()
        return found


async def test_what_comes_while_a_list_is_under_way_is_no_ghost() -> None:
    cache = Cache()
    cluster = Busy(lambda: cache.put(cluster.put(make_pod("new"))) and None)
    assert (await relist(cluster, cache, WorkQueue())).num_ghosts == 0
    assert [pod["metadata"]["name"] for pod in cache.pods(KEY)] == ["new"]


async def test_what_goes_while_a_list_is_under_way_does_not_come_back() -> None:
    cache = Cache()
    recorder = WatchRecorder(cache, WorkQueue())

    def delete() -> None:
        recorder.record_event(POD, "DELETED", pod)

    cluster = Busy(delete)
    pod = cluster.put(make_pod("gone"))
    recorder.record_event(POD, "ADDED", cluster.put(pod))
    await relist(cluster, cache, WorkQueue())
    assert cache.pods(KEY) == ()


def test_watches_go_to_the_address_of_the_api_server(monkeypatch: pytest.MonkeyPatch) -> None:
    found = kopf.ConnectionInfo(server="https://kubernetes.default.svc")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    for host, server in (("10.96.0.1", "https://10.96.0.1:6443"), ("fd00::1", "https://[fd00::1]:6443")):
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        assert _at_service_address(found).server == server


def test_kopf_only_watches() -> None:
    settings = build_settings()
    assert settings.scanning.disabled
    assert not settings.posting.enabled
    waits = iter(settings.networking.error_backoffs)
    assert max(next(waits) for _ in range(1000)) < 10
    registry = build_registry(WatchRecorder(Cache(), WorkQueue()).record_event)
    assert len(list(registry._watching.get_all_handlers())) == 1
    assert not list(registry._changing.get_all_handlers())


def test_what_nobody_of_ours_controls_is_kept_by_its_head_alone() -> None:
    """Anybody may give an object the label of a service, and any size."""
    cache = Cache()
    child = make_child()
    large = {**child, "metadata": {**child["metadata"], "annotations": {"x": "y" * 1000}}, "spec": {"x": "y"}}
    cache.put(large)
    assert cache.children(KEY) == ({"apiVersion": "v1", "kind": "Service", "metadata": child["metadata"]},)
    pod = make_pod("stranger")
    del pod["metadata"]["labels"][LABEL_COMPONENT]
    cache.put(pod)
    assert cache.find(pod) == {"apiVersion": "v1", "kind": "Pod", "metadata": pod["metadata"]}
