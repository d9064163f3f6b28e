"""An order is obeyed once: what it brought is not undone, nor brought again, by an annotation that stays."""

from millrace_operator.api.annotations import ROLLOUT_ANNOTATION
from testing.world import World
from tests.operator.rollout.test_rollback import BAD, GOOD, rolled_out_badly, wait_for_deadline

FIRST, SECOND = "2026-01-01T01:00:00Z", "2026-01-01T02:00:00Z"


async def write(world: World, text: str | None) -> None:
    annotations = {} if text is None else {ROLLOUT_ANNOTATION: text}
    world.cluster.put(
        {**world.service, "metadata": {**world.service["metadata"], "annotations": annotations}}
    )
    await world.settle()


async def given_up_again() -> tuple[World, str]:
    """A bad revision that was rolled back, promoted, and rolled back again."""
    world = await rolled_out_badly()
    bad = world.status["updateRevision"]
    await wait_for_deadline(world)
    await write(world, f"promote {bad} at {FIRST}")
    assert world.deployments()[bad] == 1
    await wait_for_deadline(world)
    return world, bad


def running(world: World) -> dict[str, int]:
    return {revision: count for revision, count in world.deployments().items() if count}


async def test_what_was_given_up_again_waits_for_another_order() -> None:
    world, bad = await given_up_again()
    stable = world.status["currentRevision"]
    assert running(world) == {stable: 2}
    world.restart_operator()
    await wait_for_deadline(world)
    assert running(world) == {stable: 2}
    await write(world, f"promote {bad} at {SECOND}")
    assert running(world) == {stable: 2, bad: 1}
    assert "spentOrder" not in world.status


async def test_an_annotation_that_is_removed_starts_nothing_and_may_be_written_again() -> None:
    world, bad = await given_up_again()
    stable = world.status["currentRevision"]
    assert world.status["spentOrder"] == f"promote {bad} at {FIRST}"
    await write(world, None)
    assert running(world) == {stable: 2}
    assert "spentOrder" not in world.status
    await write(world, f"promote {bad} at {FIRST}")
    assert running(world) == {stable: 2, bad: 1}


async def test_an_order_without_a_time_is_obeyed_and_spent_as_well() -> None:
    world = await rolled_out_badly()
    bad = world.status["updateRevision"]
    await write(world, f"abort {bad}")
    assert world.status["rejectedRevision"]["reason"] == "Aborted"
    await write(world, f"promote {bad}")
    assert running(world)[bad] == 1


async def test_an_abort_of_long_ago_says_nothing_of_a_revision_that_comes_back() -> None:
    world = await rolled_out_badly()
    bad = world.status["updateRevision"]
    await write(world, f"abort {bad}")
    world.edit(**GOOD)
    await world.settle()
    world.now += 30 * 86400
    world.restart_operator()
    await world.settle()
    world.broken.clear()
    world.edit(**BAD)
    await world.settle()
    assert world.status["currentRevision"] == bad
    assert world.condition("Degraded")["status"] == "False"


async def test_a_promotion_of_long_ago_ends_no_canary() -> None:
    manual = {"canary": {"promotion": "Manual"}}
    world = World(scaling={"mode": "External"}, replicas=3, rollout=manual)
    await world.settle()
    world.edit(**BAD)
    await world.settle()
    promoted = world.status["updateRevision"]
    await write(world, f"promote {promoted}")
    assert world.status["currentRevision"] == promoted
    world.edit(**GOOD, rollout={})
    await world.settle()
    world.edit(**BAD, rollout=manual)
    await world.settle()
    assert world.condition("Progressing")["reason"] == "AwaitingPromotion"
    await write(world, f"promote {promoted} at {SECOND}")
    assert world.status["currentRevision"] == promoted


async def test_an_abort_is_obeyed_where_nothing_runs() -> None:
    world = World(scaling={"mode": "External"}, replicas=2)
    await world.settle()
    stable = world.status["currentRevision"]
    world.edit(replicas=0)
    await world.settle()
    world.edit(**BAD)
    await world.settle()
    await write(world, f"abort {world.status['updateRevision']} at {FIRST}")
    world.edit(replicas=2)
    await world.settle()
    assert running(world) == {stable: 2}


async def test_nothing_is_written_for_an_order_that_is_over() -> None:
    world, _ = await given_up_again()
    num_writes = len(world.cluster.writes)
    world.now += 3600
    world.restart_operator()
    await world.settle()
    assert len(world.cluster.writes) == num_writes
