"""What every source can do, and which source a URI has."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from millrace_fetch.client import Client
from millrace_fetch.errors import CorruptError, FetchError, RefusedError, UnavailableError
from millrace_fetch.manifest import Manifest, RemoteFile
from millrace_fetch.retry import MAX_TRIES, plan_wait

MAX_SMALL_BYTES = 64 << 20
Say = Callable[[str], None]
"""Tells the user something on a line of its own."""
T = TypeVar("T")


class Source(Protocol):
    """A model at its source."""

    @property
    def origin(self) -> str:
        """The URL of the host that the credentials are for."""

    @property
    def authorization(self) -> str | None:
        """The header that shows who we are; None sends none."""

    async def resolve(self, client: Client, say: Say) -> Manifest:
        """Return what the source has now. Raises SourceError or UnavailableError."""

    def explain(self, refusal: RefusedError) -> FetchError:
        """Return an error that says what a refusal means here, and what to do."""


async def with_tries(call: Callable[[], Awaitable[T]], say: Say) -> T:
    """Call until it succeeds, at most MAX_TRIES times. Raises the last UnavailableError."""
    for num_failures in range(1, MAX_TRIES):
        try:
            return await call()
        except UnavailableError as error:
            await pause(error, num_failures, say)
    return await call()


async def pause(error: UnavailableError, num_failures: int, say: Say) -> None:
    """Wait before the next try, and tell of it."""
    seconds = plan_wait(num_failures, error.retry_after_seconds, random.random())  # noqa: S311  spreads load
    say(f"{error}; trying again in {seconds:.1f} s")
    await asyncio.sleep(seconds)


async def read_small(client: Client, file: RemoteFile, say: Say) -> bytes:
    """Return a file's content, if it is small enough to be kept in memory."""

    async def read() -> bytes:
        content = bytearray()
        async with client.request("GET", file.url) as response:
            async for chunk in response.content.iter_any():
                content += chunk
                if len(content) > MAX_SMALL_BYTES:
                    raise CorruptError(f"{file.name} is larger than {MAX_SMALL_BYTES >> 20} MiB: refused")
        return bytes(content)

    return await with_tries(read, say)
