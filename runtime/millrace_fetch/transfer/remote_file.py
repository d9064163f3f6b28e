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
"""Of a block after a jump: nearly every file's header is in it, with the archive's own before it."""
MAX_BLOCK_BYTES = 2 << 20


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


class Blocks:
    """Reads at most what the allowance has; then raises EnoughError."""

    def __init__(
        self,
        fetch: Callable[[int, int], bytes],
        size_bytes: int,
        allowance: Allowance,
        *,
        has_ranges: bool = True,
    ) -> None:
        self._fetch = fetch
        """Returns the bytes from the first position up to the second."""
        self._size_bytes = size_bytes
        self._allowance = allowance
        self._has_ranges = has_ranges
        """Else the file comes whole, or not at all."""
        self._position = 0
        self._begin = 0
        self._block = b""

    def read(self, size: int) -> bytes:
        """Return so many bytes, or all up to the end."""
        end = min(self._position + size, self._size_bytes)
        found = bytearray()
        while self._position < end:
            part = self._find(end)
            found += part
            self._position += len(part)
        return bytes(found)

    def seek(self, position: int) -> int:
        """Go to a position. It costs nothing."""
        self._position = position
        return position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seekable(self) -> bool:
        """Say that it can seek: the library for zstd asks."""
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
