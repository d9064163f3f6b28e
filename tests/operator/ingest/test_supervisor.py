"""Kopf in a thread of its own."""

import asyncio
import threading
from typing import Any

import kopf
import pytest

from millrace_operator.ingest.cache import Cache
from millrace_operator.ingest.handlers import Ingest
from millrace_operator.ingest.queue import WorkQueue
from millrace_operator.ingest.supervisor import run_watches

LONGEST_SECONDS = 5.0


async def test_a_watch_layer_that_fails_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*, stop_flag: threading.Event, **_: Any) -> None:
        """As Kopf does: one of its tasks waits in a thread for the flag while another one fails."""
        asyncio.get_running_loop().run_in_executor(None, stop_flag.wait)
        raise RuntimeError("the watch failed")

    monkeypatch.setattr(kopf, "operator", fail)
    with pytest.raises(RuntimeError, match="the watch failed"):
        async with asyncio.timeout(LONGEST_SECONDS):
            await run_watches(Ingest(Cache(), WorkQueue()), None)
