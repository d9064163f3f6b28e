"""Events: the same one again raises its count, and one that has expired is posted anew."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from e2e.cluster.nodes.events import EventRecorder
from testing.polling import wait_until_async
from tests.cluster_nodes.memory_api import MemoryApi

pytestmark = pytest.mark.reads("e2e/cluster", "testing/polling.py", "operator/millrace_kubernetes")

POD = {"kind": "Pod", "metadata": {"name": "chat", "namespace": "prod", "uid": "u"}}


class Recorder:
    """A recorder that posts to an API server in memory."""

    def __init__(self) -> None:
        self.api = MemoryApi()
        self.events = EventRecorder(self.api)  # type: ignore[arg-type]
        self.posting = asyncio.create_task(self.events.run())

    async def until_counted(self, *counts: int) -> None:
        """Emit the event once more, and wait until the API server has these counts of it."""
        self.events.emit(POD, "BackOff", "again", node="n")

        def have() -> list[int]:
            return [event["count"] for event in self.api.objects.values()]

        await wait_until_async(f"events counted {counts}", lambda: have() == list(counts))


@pytest.fixture
async def recorder() -> AsyncIterator[Recorder]:
    found = Recorder()
    yield found
    found.posting.cancel()
    await asyncio.gather(found.posting, return_exceptions=True)


async def test_the_same_event_again_is_counted(recorder: Recorder) -> None:
    for count in (1, 2, 3):
        await recorder.until_counted(count)
    assert len(recorder.api.events) == 1


async def test_an_event_that_has_expired_is_posted_anew(recorder: Recorder) -> None:
    await recorder.until_counted(1)
    recorder.api.objects.clear()
    await recorder.until_counted(1)
    await recorder.until_counted(2)
    assert len(recorder.api.events) == 2


async def test_a_count_that_was_not_taken_is_made_up_by_the_next(recorder: Recorder) -> None:
    await recorder.until_counted(1)
    recorder.api.failures["PATCH"] = [500]
    recorder.events.emit(POD, "BackOff", "again", node="n")
    await recorder.until_counted(3)


async def test_an_event_that_is_refused_is_not_posted_and_the_next_one_is(recorder: Recorder) -> None:
    recorder.api.failures["POST"] = [500]
    recorder.events.emit(POD, "Killing", "once", node="n")
    await recorder.until_counted(1)
    assert [event["reason"] for event in recorder.api.events] == ["BackOff"]
