"""What every source can do."""

from typing import Protocol

from millrace_fetch.client import Client
from millrace_fetch.errors import CorruptError, FetchError, RefusedError
from millrace_fetch.manifest import Manifest, RemoteFile
from millrace_fetch.trying import Say, with_tries

MAX_SMALL_BYTES = 64 << 20


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
