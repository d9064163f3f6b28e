"""What every source can do."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import aiohttp

from millrace_fetch.errors import CorruptError, FetchError, RefusedError, SourceError
from millrace_fetch.plan.manifest import Manifest, RemoteFile
from millrace_fetch.progress import Say
from millrace_fetch.transfer.client import Chunks, Client
from millrace_fetch.transfer.partial_file import make_other_hash
from millrace_fetch.transfer.retry import with_tries

MAX_SMALL_BYTES = 64 << 20


class Source(Protocol):
    """A model at its source."""

    @property
    def certificates(self) -> str | None:
        """A file of certificates to trust, where this source has a setting of its own for them."""

    async def authorize(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Send a request; to the source's own host with what shows who we are.

        An aiohttp middleware: it sees each request at the time it is sent, also those of redirects.
        """

    async def resolve(self, client: Client, say: Say) -> Manifest:
        """Return what the source has now. Raises SourceError or UnavailableError."""

    def explain(self, refusal: RefusedError) -> FetchError:
        """Return an error that says what a refusal means here, and what to do."""


async def complete(file: RemoteFile, say: Say) -> RemoteFile:
    """Return a file with its checksum, where the source has to be asked for it."""
    if file.ask_checksum is None:
        return file
    return replace(file, checksum=await with_tries(file.ask_checksum, say), ask_checksum=None)


async def read_small(
    client: Client, file: RemoteFile, say: Say, headers: Mapping[str, str] | None = None
) -> bytes:
    """Return a file's content, if it is small enough to be kept in memory and is what was announced."""
    file = await complete(file, say)

    async def read() -> bytes:
        content = bytearray()
        async with client.request("GET", file.url, headers) as response:
            async for chunk in Chunks(response, MAX_SMALL_BYTES):
                content += chunk
                if len(content) > MAX_SMALL_BYTES:
                    raise SourceError(f"{file.name} is larger than {MAX_SMALL_BYTES >> 20} MiB: refused")
        whole = bytes(content)
        _check_digest(file, whole)
        return whole

    return await with_tries(read, say)


def _check_digest(file: RemoteFile, content: bytes) -> None:
    if file.checksum is None:
        return
    hasher = make_other_hash(file, len(content)) or hashlib.sha256()
    hasher.update(content)
    if hasher.hexdigest() != file.checksum.hexdigest:
        raise CorruptError(
            f"{file.name} is not what was announced: the source or a proxy on the way is broken"
        )
