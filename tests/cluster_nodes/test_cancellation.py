"""What loses a cancellation gets another."""

import asyncio

import pytest

from e2e.cluster.nodes import cancellation
from e2e.cluster.nodes.cancellation import end_tasks


async def lose(times: int) -> None:
    """Lose so many cancellations."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not times:
                raise
            times -= 1


@pytest.fixture(autouse=True)
def _again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation, "_AGAIN_SECONDS", 0.01)


async def test_tasks_end_although_cancellations_are_lost() -> None:
    tasks = [asyncio.create_task(lose(times)) for times in range(3)]
    await asyncio.sleep(0)
    await asyncio.wait_for(end_tasks(tasks), 5)
    assert all(task.cancelled() for task in tasks)


async def test_who_is_cancelled_meanwhile_still_waits_for_the_ends_and_then_ends() -> None:
    slow = asyncio.create_task(lose(3))
    ending = asyncio.create_task(end_tasks([slow]))
    await asyncio.sleep(0.001)
    ending.cancel()
    await asyncio.wait({ending}, timeout=5)
    assert slow.cancelled()
    assert ending.cancelled()
