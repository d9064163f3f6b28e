"""Kopf in a thread of its own."""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import kopf
import pytest

from millrace_operator.controller import watches
from millrace_operator.controller.cache import Cache
from millrace_operator.controller.queue import WorkQueue
from millrace_operator.controller.watch_recorder import WatchRecorder
from millrace_operator.controller.watches import run_watches
from millrace_operator.kube.kinds import INFERENCE_SERVICE, Obj, ServiceKey
from testing.world import KEY, make_service

LONGEST_SECONDS = 5.0


async def test_a_watch_layer_that_fails_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*, stop_flag: threading.Event, **_: Any) -> None:
        """As Kopf does: one of its tasks waits in a thread for the flag while another one fails."""
        asyncio.get_running_loop().run_in_executor(None, stop_flag.wait)
        raise RuntimeError("the watch failed")

    monkeypatch.setattr(kopf, "operator", fail)
    with pytest.raises(RuntimeError, match="the watch failed"):
        async with asyncio.timeout(LONGEST_SECONDS):
            await run_watches(WatchRecorder(Cache(), WorkQueue()), None)


async def test_an_event_that_nobody_can_record_is_told_with_its_trace_and_all_is_listed_soon(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def make(version: str, name: str = KEY.name) -> Obj:
        service = make_service()
        identity = {"name": name, "uid": name, "resourceVersion": version}
        return {**service, "metadata": {**service["metadata"], **identity}}

    async def watch(*, registry: Callable[..., None], **_: Any) -> None:
        for service in (make("1"), make("odd"), make("2", "other")):
            registry(INFERENCE_SERVICE, "MODIFIED", service)

    monkeypatch.setattr(kopf, "operator", watch)
    monkeypatch.setattr(watches, "build_registry", lambda record_event: record_event)
    cache = Cache()
    recorder = WatchRecorder(cache, WorkQueue())
    await run_watches(recorder, None)
    await asyncio.sleep(0)
    assert set(cache.service_keys()) == {KEY, ServiceKey(KEY.namespace, "other")}
    [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.name == watches.LOG.name
    assert record.exc_info
    assert f"MODIFIED of {KEY}" in record.getMessage()
    assert recorder.has_lost.is_set()
