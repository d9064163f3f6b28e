"""The interface of all sources, and how to read a small file of one."""

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
        """A file of trusted certificates, if this source has its own setting for one."""

    async def authorize(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Send a request, with credentials if it goes to the source's own host.

        An aiohttp middleware: it sees each request when it is sent, also those after redirects.
        """

    async def resolve(self, client: Client, say: Say) -> Manifest:
        """Return the present files of the model. Raises SourceError or UnavailableError."""

    def explain(self, refusal: RefusedError) -> FetchError:
        """Return an error that explains a refusal of this source, and what to do."""


async def complete(file: RemoteFile, say: Say) -> RemoteFile:
    """Return a file with its checksum, from a request of its own if the source needs one."""
    if file.ask_checksum is None:
        return file
    return replace(file, checksum=await with_tries(file.ask_checksum, say), ask_checksum=None)


async def read_small(
    client: Client, file: RemoteFile, say: Say, headers: Mapping[str, str] | None = None
) -> bytes:
    """Return a file's content. Raises SourceError if it is too large, CorruptError for a wrong checksum."""
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
            f"{file.name} has another checksum than announced: the source or a proxy on the way is broken"
        )
