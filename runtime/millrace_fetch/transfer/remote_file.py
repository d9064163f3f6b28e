"""A file at its source, as a file to read and to seek in. Whoever makes it gives the way to its bytes.

Bytes come by the block, and one block is kept. After a jump a block is small. Without one each block is twice
as large as the one before, so that requests are few.
"""

from collections.abc import Callable

from millrace_fetch.image.look_budget import Allowance

FIRST_BYTES = 128 << 10
"""Of a block after a jump: nearly every file's header is in it, with the archive's own before it."""
MAX_BLOCK_BYTES = 2 << 20


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
