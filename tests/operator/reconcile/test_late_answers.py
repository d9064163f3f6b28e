"""Answers to writes that come after the watch has told what happened since."""

import pytest

from millrace_operator.cluster.kinds import DEPLOYMENT, Obj
from tests.operator.watched import Watched
from tests.operator.world import KEY, World


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
                watched.ingest.record_event(DEPLOYMENT, event, written)
        return written

    world.edit(replicas=2)
    with monkeypatch.context() as patch:
        patch.setattr(world.cluster, "apply_owned", apply_and_lose)
        outcome = await world.reconcile()
    assert (world.deployments(), outcome.has_moved) == ({}, True)
    assert DEPLOYMENT.kind not in {child["kind"] for child in world.cache.children(KEY)}
    watched.watch()  # what else was written
    world.now += 90
    assert watched.ingest.overdue_seconds() == 0
    await world.reconciler.reconcile(KEY)
    assert world.deployments() == {revision: 2}
