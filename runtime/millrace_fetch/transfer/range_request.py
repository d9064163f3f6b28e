"""A part of a file at its source, by a request for a range of its bytes."""

from dataclasses import dataclass

import aiohttp

from millrace_fetch.errors import CorruptError, NoPartsError, SourceError
from millrace_fetch.plan.manifest import RemoteFile
from millrace_fetch.transfer.client import Chunks, Client, read_file_bytes


@dataclass(frozen=True)
class Excerpt:
    """Bytes of a file that are not all of it, so no checksum tells whether they are right."""

    content: bytes
    file_bytes: int


async def read_excerpt(client: Client, file: RemoteFile, begin: int, end: int) -> Excerpt:
    """Return a file's bytes from `begin` to `end`, or to its own end, and how many it has in all.

    Raises NoPartsError where all of a larger file would come. Raises CorruptError for another size than was
    announced, and UnavailableError for a part that begins elsewhere.
    """
    headers = {"Range": f"bytes={begin}-{end - 1}"}
    async with client.request("GET", file.url, headers) as response:
        file_bytes = _count_bytes(file, response, begin)
        wanted = min(end, file_bytes) - begin
        if response.status != 206 and (begin > 0 or file_bytes > end):
            response.close()
            raise NoPartsError(
                f"the server gives no part of {file.name}, so all of it would have to come: fetch the model "
                "with millrace fetch, and ask about the folder"
            )
        content = await _read_exactly(file, response, wanted)
        response.close()
    return Excerpt(content, file_bytes)


def _count_bytes(file: RemoteFile, response: aiohttp.ClientResponse, begin: int) -> int:
    """Return a file's size, as the answer has it. Raises CorruptError where the source announced another."""
    told = read_file_bytes(response, file.name, begin)
    size = file.size_bytes if told is None else told
    if size is None:
        raise SourceError(f"the server does not say how large {file.name} is, so its header can't be checked")
    if file.size_bytes not in (None, size):
        raise CorruptError(
            f"{file.name} came with {size} bytes, and {file.size_bytes} were announced: try it later"
        )
    return size


async def _read_exactly(file: RemoteFile, response: aiohttp.ClientResponse, wanted: int) -> bytes:
    content = bytearray()
    if wanted > 0:
        async for chunk in Chunks(response, wanted):
            content += chunk
            if len(content) >= wanted:
                return bytes(content[:wanted])
        raise CorruptError(f"{file.name} ended {wanted - len(content)} bytes early: try it later")
    return b""
