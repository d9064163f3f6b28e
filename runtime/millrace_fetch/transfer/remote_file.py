"""Reads parts of a file at its source: by one range request, or as a file object.

The file object fetches blocks, and keeps one. A block after a jump is small. Without a jump each block is
twice as large as the last one, so that there are few requests.
"""

from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from millrace_fetch.errors import CorruptError, NoPartsError, SourceError
from millrace_fetch.image.tarball import Allowance
from millrace_fetch.plan.manifest import RemoteFile
from millrace_fetch.transfer.client import Chunks, Client, read_file_bytes

FIRST_BYTES = 128 << 10
"""The first request for a file, and a block after a jump. It holds nearly every file's header, with the
archive's entry before it, so one request is enough."""
MAX_BLOCK_BYTES = 2 << 20


@dataclass(frozen=True)
class Excerpt:
    """A part of a file. A checksum can verify only the whole file."""

    content: bytes
    file_bytes: int


async def read_excerpt(client: Client, file: RemoteFile, begin: int, end: int) -> Excerpt:
    """Return a file's bytes from `begin` to `end`, or to the file's end, and its size.

    Raises NoPartsError if the server would send all of a larger file. Raises CorruptError for a size other
    than the announced one, and UnavailableError for a part that begins elsewhere.
    """
    headers = {"Range": f"bytes={begin}-{end - 1}"}
    async with client.request("GET", file.url, headers) as response:
        file_bytes = _count_bytes(file, response, begin)
        wanted = min(end, file_bytes) - begin
        if response.status != 206 and (begin > 0 or file_bytes > end):
            response.close()
            raise NoPartsError(
                f"the server sends {file.name} only whole: fetch the model with millrace fetch, and give the "
                "folder to millrace size"
            )
        content = await _read_exactly(file, response, wanted)
        response.close()
    return Excerpt(content, file_bytes)


def _count_bytes(file: RemoteFile, response: aiohttp.ClientResponse, begin: int) -> int:
    """Return a file's size by its answer. Raises CorruptError if the source announced another one."""
    answered = read_file_bytes(response, file.name, begin)
    size = file.size_bytes if answered is None else answered
    if size is None:
        raise SourceError(f"the server does not send the size of {file.name}, so its header can't be checked")
    if file.size_bytes not in (None, size):
        raise CorruptError(
            f"{file.name} has {size} bytes, but {file.size_bytes} were announced: try again later"
        )
    return size


async def _read_exactly(file: RemoteFile, response: aiohttp.ClientResponse, wanted: int) -> bytes:
    content = bytearray()
    if wanted > 0:
        async for chunk in Chunks(response, wanted):
            content += chunk
            if len(content) >= wanted:
                return bytes(content[:wanted])
        raise CorruptError(f"{file.name} ended {wanted - len(content)} bytes early: try again later")
    return b""


class Blocks:
    """Reads a remote file in blocks, up to an allowance; beyond that raises EnoughError."""

    def __init__(
        self,
        fetch: Callable[[int, int], bytes],
        size_bytes: int,
        allowance: Allowance,
        *,
        has_ranges: bool = True,
    ) -> None:
        self._fetch = fetch
        """Fetches the bytes from the first position up to the second."""
        self._size_bytes = size_bytes
        self._allowance = allowance
        self._has_ranges = has_ranges
        """If not, the file is fetched whole, or not at all."""
        self._position = 0
        self._begin = 0
        self._block = b""

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes, or fewer at the end."""
        end = min(self._position + size, self._size_bytes)
        found = bytearray()
        while self._position < end:
            part = self._find(end)
            found += part
            self._position += len(part)
        return bytes(found)

    def seek(self, position: int) -> int:
        """Go to a position, without a request."""
        self._position = position
        return position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seekable(self) -> bool:
        """Return True, for the zstd library."""
        return True

    def _find(self, end: int) -> bytes:
        """Return some bytes at the position, at least one."""
        start = self._position - self._begin
        if not 0 <= start < len(self._block):
            self._bring()
            start = self._position - self._begin
        return self._block[start : end - self._begin]

    def _bring(self) -> None:
        if not self._has_ranges:
            self._take(0, self._size_bytes)
            return
        is_next = self._position == self._begin + len(self._block) > 0
        wanted = min(2 * len(self._block), MAX_BLOCK_BYTES) if is_next else FIRST_BYTES
        count = min(wanted, self._size_bytes - self._position, self._allowance.left)
        self._take(self._position, max(1, count))

    def _take(self, begin: int, count: int) -> None:
        self._allowance.spend(count)
        self._block = b""  # not two of them in memory
        self._begin, self._block = begin, self._fetch(begin, begin + count)
