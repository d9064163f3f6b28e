"""Events are courtesy: whatever becomes of them, what serves comes first."""

import asyncio

import pytest

from millrace_operator.controller import event_writer
from millrace_operator.kube.errors import TransientError
from millrace_operator.kube.kinds import Obj
from testing.world import World

EXTERNAL = {"mode": "External"}


async def make_world_with_news() -> World:
    """A service that is to grow, which an Event will tell."""
    world = World(scaling=EXTERNAL, replicas=1)
    await world.settle()
    world.edit(replicas=3)
    return world


async def test_events_are_told_after_all_that_is_written() -> None:
    world = await make_world_with_news()
    counts: list[dict[str, int]] = []
    create_event = world.cluster.create_event

    async def record(event: Obj) -> Obj:
        counts.append(world.deployments())
        return await create_event(event)

    world.cluster.create_event = record  # type: ignore[method-assign]
    await world.reconcile()
    assert counts
    assert [sum(count.values()) for count in counts] == [3] * len(counts)


async def test_events_that_hang_hold_a_service_up_for_some_seconds_at_most(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = await make_world_with_news()
    monkeypatch.setattr(event_writer, "MOST_SECONDS", 0.05)

    async def hang(_: Obj) -> Obj:
        await asyncio.sleep(60)
        raise AssertionError

    world.cluster.create_event = hang  # type: ignore[method-assign]
    await asyncio.wait_for(world.reconcile(), 5)
    assert sum(world.deployments().values()) == 3
    assert "events not recorded" in caplog.text


async def test_events_are_told_also_where_a_write_fails() -> None:
    """Status has what they tell already, so no later plan tells it."""
    world = await make_world_with_news()
    num_events = len(world.cluster.events)
    world.cluster.faults.extend([None, TransientError("away")])
    with pytest.raises(TransientError):
        await world.reconcile()
    assert len(world.cluster.events) > num_events
