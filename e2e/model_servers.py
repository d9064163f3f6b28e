"""Servers that pods fetch models from, with the example's model on them, and what they have sent."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from e2e.cluster.settings import REPOSITORY
from testing.model_sources.servers import FakeHub

STORIES = REPOSITORY / "runtime" / "millrace_runtime" / "demo" / "stories"


class Served(Protocol):
    """A server of the tests of fetching, which runs while it is entered."""

    async def __aenter__(self) -> Any: ...
    async def __aexit__(self, *_: object) -> None: ...


@contextmanager
def serving(server: Served) -> Iterator[None]:
    """Run a server in a thread of its own: the tests of this folder have no event loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(work: Coroutine[Any, Any, Any]) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(30)

    try:
        run(server.__aenter__())
        yield
        run(server.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def read_stories() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in STORIES.iterdir() if path.is_file()}


def count_downloads(hub: FakeHub) -> float:
    """How often the weights were sent. Their headers alone are asked for before, some kilobytes."""
    return hub.large.sent["model.safetensors"] / len(hub.large.contents["model.safetensors"])
