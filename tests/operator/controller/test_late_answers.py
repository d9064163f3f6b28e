"""Answers to reads and writes that come after the watch has told what happened since."""

from collections.abc import Callable

import pytest

from millrace_operator.api.conditions import render_time
from millrace_operator.kube.kinds import DEPLOYMENT, POD, Kind, Obj, kind_of
from millrace_runtime.contract import LABEL_SERVICE
from testing.world import KEY, World
from tests.operator.watched import Watched


async def test_a_child_that_went_before_the_answer_to_its_write_is_made_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(scaling={"mode": "External"}, replicas=1)
    await world.settle()
    watched = Watched(world)
    [revision] = world.deployments()
    apply_owned = world.cluster.apply_owned

    async def apply_and_lose(obj: Obj, uid: str, version: str | None = None) -> Obj:
        written = await apply_owned(obj, uid, version)
        if obj["kind"] == DEPLOYMENT.kind:
            world.cluster.remove(DEPLOYMENT, KEY.namespace, written["metadata"]["name"])
            for event in ("MODIFIED", "DELETED"):
                watched.recorder.record_event(DEPLOYMENT, event, written)
        return written

    world.edit(replicas=2)
    with monkeypatch.context() as patch:
        patch.setattr(world.cluster, "apply_owned", apply_and_lose)
        outcome = await world.reconcile()
    assert (world.deployments(), outcome.has_moved) == ({}, True)
    assert held_deployments(world) == []
    watched.watch()  # what else was written
    world.now += 90
    assert watched.recorder.health.overdue_seconds() == 0
    await world.reconciler.reconcile(KEY)
    assert world.deployments() == {revision: 2}


async def test_a_child_that_went_before_the_answer_to_its_creation_is_made_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(scaling={"mode": "External"}, replicas=1)
    watched = Watched(world)
    apply_new = world.cluster.apply_new

    async def create_and_lose(obj: Obj) -> Obj:
        written = await apply_new(obj)
        if obj["kind"] == DEPLOYMENT.kind:
            world.cluster.remove(DEPLOYMENT, KEY.namespace, written["metadata"]["name"])
            for event in ("ADDED", "DELETED"):
                watched.recorder.record_event(DEPLOYMENT, event, written)
        return written

    watched.watch()
    with monkeypatch.context() as patch:
        patch.setattr(world.cluster, "apply_new", create_and_lose)
        await world.reconciler.reconcile(KEY)
    assert (world.deployments(), held_deployments(world)) == ({}, [])
    watched.watch()  # what else was written
    world.now += 90
    assert watched.recorder.health.overdue_seconds() == 0
    await world.reconciler.reconcile(KEY)
    assert list(world.deployments().values()) == [1]
    assert len(held_deployments(world)) == 1


def act_after_reads(
    world: World, kind: Kind, act: Callable[[Obj], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have something happen to an object of this kind, and be told of, before the answer to a read comes."""
    fetch = world.cluster.fetch

    async def fetch_and_act(asked: Kind, namespace: str, name: str) -> Obj | None:
        found = await fetch(asked, namespace, name)
        if asked is kind and found is not None:
            act(found)
        return found

    monkeypatch.setattr(world.cluster, "fetch", fetch_and_act)


def lose(world: World, obj: Obj) -> None:
    """Delete an object, and have the watch tell it at once."""
    world.cluster.remove(kind_of(obj), KEY.namespace, name_of(obj))
    world.cache.forget(obj)


def name_of(obj: Obj) -> str:
    return str(obj["metadata"]["name"])


def held_deployments(world: World) -> list[Obj]:
    return [child for child in world.cache.children(KEY) if child["kind"] == DEPLOYMENT.kind]


async def test_a_child_that_went_before_the_answer_to_a_look_after_a_conflict_is_made_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(scaling={"mode": "External"}, replicas=1)
    await world.settle()
    [revision], [deployment] = world.deployments(), world.objects(DEPLOYMENT.kind)
    world.edit(replicas=2)
    world.observe()
    world.cluster.put(deployment)  # somebody has written it
    with monkeypatch.context() as patch:
        act_after_reads(world, DEPLOYMENT, lambda found: lose(world, found), patch)
        await world.reconcile(is_stale=True)
    assert held_deployments(world) == []
    await world.reconciler.reconcile(KEY)
    assert world.deployments() == {revision: 2}


async def test_a_pod_that_went_before_the_answer_to_a_look_after_a_conflict_is_no_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(scaling={"mode": "External"}, replicas=2)
    await world.settle()
    world.edit(replicas=1)
    world.observe()
    for pod in world.pods():
        world.cluster.put(pod)

    def end(found: Obj) -> None:
        found["metadata"]["deletionTimestamp"] = render_time(world.now)  # as it was when it was read
        lose(world, found)

    act_after_reads(world, POD, end, monkeypatch)
    await world.reconcile(is_stale=True)
    assert {name_of(pod) for pod in world.cache.pods(KEY)} == {name_of(pod) for pod in world.pods()}
    assert len(world.pods()) < 2


async def test_a_deployment_without_its_label_that_was_made_anew_meanwhile_is_not_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(scaling={"mode": "External"}, replicas=1)
    await world.settle()
    [deployment] = world.objects(DEPLOYMENT.kind)
    labels = {key: text for key, text in deployment["metadata"]["labels"].items() if key != LABEL_SERVICE}
    world.cluster.put({**deployment, "metadata": {**deployment["metadata"], "labels": labels}})
    anew = {**deployment, "metadata": {**deployment["metadata"], "uid": "anew"}}

    def make_anew(_: Obj) -> None:
        if not held_deployments(world):
            world.cache.put(world.cluster.put(anew))

    act_after_reads(world, DEPLOYMENT, make_anew, monkeypatch)
    world.cluster.writes.clear()
    await world.reconcile()
    assert world.cluster.writes == [], "as to the one before, which would be a conflict"
    assert [held["metadata"]["uid"] for held in held_deployments(world)] == ["anew"]
