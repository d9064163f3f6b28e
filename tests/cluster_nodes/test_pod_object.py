"""A pod's status and deletion where the API server fails, or knows another pod of the name."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from e2e.cluster.nodes.pod_object import PodObject
from testing.polling import wait_until_async
from tests.cluster_nodes.memory_api import MemoryApi

pytestmark = pytest.mark.reads("e2e/cluster", "testing/polling.py", "operator/millrace_kubernetes")

Object = dict[str, Any]
PATH = "/api/v1/namespaces/prod/pods/chat"
OTHER = {"metadata": {"name": "chat", "namespace": "prod", "uid": "other"}, "status": {"phase": "Pending"}}


class Kept:
    """A pod's object on its API server, and the phase that its status is to have."""

    def __init__(self) -> None:
        self.api = MemoryApi()
        pod = {"metadata": {"name": "chat", "namespace": "prod", "uid": "own"}}
        self.api.objects[PATH] = pod
        self.phase = "Running"
        self.object = PodObject(self.api, pod, lambda _: {"phase": self.phase})  # type: ignore[arg-type]
        self.writing = asyncio.create_task(self.object.write_changes())

    def phase_at_server(self) -> Any:
        return self.api.objects[PATH].get("status", {}).get("phase")

    async def until_written(self, phase: str) -> None:
        self.phase = phase
        self.object.note_change()
        await wait_until_async(phase, lambda: self.phase_at_server() == phase)


@pytest.fixture
async def kept(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kept]:
    monkeypatch.setattr("e2e.cluster.nodes.pod_object.RETRY_SECONDS", 0.01)
    found = Kept()
    yield found
    found.writing.cancel()
    await asyncio.gather(found.writing, return_exceptions=True)


async def test_a_status_that_was_not_taken_is_written_again(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    kept.api.failures["PATCH"] = [500, 503]
    await kept.until_written("Running")
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [text.partition(": told")[0] for text in warned] == [
        f"status of {PATH}: the API server answered {status}" for status in (500, 503)
    ]


@pytest.mark.parametrize("there", [{}, {PATH: OTHER}], ids=["none", "another"])
async def test_the_status_of_a_pod_that_is_gone_is_written_nowhere(
    kept: Kept, there: dict[str, Object], caplog: pytest.LogCaptureFixture
) -> None:
    kept.api.objects = dict(there)
    kept.object.note_change()
    await asyncio.sleep(0.1)
    assert kept.api.objects == there
    assert not kept.writing.done()
    assert caplog.text == ""
    kept.api.objects[PATH] = {"metadata": {"uid": "own"}}
    await kept.until_written("Running")


async def test_a_deletion_that_was_not_taken_is_tried_again(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    kept.api.failures["DELETE"] = [500, 500]
    kept.phase = "Succeeded"
    await kept.object.delete(with_status=True)
    assert kept.api.deleted[PATH]["status"]["phase"] == "Succeeded"
    assert caplog.text.count(f"deleting {PATH}") == 2


@pytest.mark.parametrize("with_status", [True, False])
@pytest.mark.parametrize("there", [{}, {PATH: OTHER}], ids=["none", "another"])
async def test_what_is_gone_is_not_deleted(
    kept: Kept, there: dict[str, Object], *, with_status: bool
) -> None:
    kept.api.objects = dict(there)
    await asyncio.wait_for(kept.object.delete(with_status=with_status), 5)
    assert kept.api.objects == there
    assert kept.api.deleted == {}


async def test_a_last_status_that_is_refused_does_not_keep_the_pod(kept: Kept) -> None:
    kept.api.failures["PATCH"] = [422]
    await kept.object.delete(with_status=True)
    assert "status" not in kept.api.deleted[PATH]
