"""Reads a layer of an image, a tar from an untrusted author, within a budget of bytes. Pure.

It lets tarfile extract nothing. It lists entries and reads regular files, and never creates a link, a device,
an owner or a mode of the archive.
"""

import gzip
import sys
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, NamedTuple, Protocol, cast

from millrace_fetch.errors import SourceError
from millrace_fetch.image.overlay import Member, normalise

MAX_FETCHED_BYTES = 64 << 20
"""From the registry, of all layers: some seconds of a usual network. It brings the headers of 500 files, or
all layers of a small base image, or what a compressed layer has before the weights."""
MAX_UNPACKED_BYTES = 2 << 30
"""Of compressed layers: some seconds of a CPU. A layer that comes whole may grow to less, so that one which
grows without end is told of by name."""
MAX_KEPT_BYTES = 32 << 20
"""In memory, of names, small files and headers. Those of the largest model that is served have 1 MB."""


class EnoughError(Exception):
    """A look has cost what it may. What it has seen counts; the rest is not known."""


class Allowance:
    """Bytes that may be spent."""

    def __init__(self, num_bytes: int) -> None:
        self.left = num_bytes

    def spend(self, num_bytes: int) -> None:
        """Take so many. Raises EnoughError where there are not as many left."""
        if num_bytes > self.left:
            raise EnoughError
        self.left -= num_bytes


class Budget:
    """What is left of a look."""

    def __init__(self) -> None:
        self.fetched = Allowance(MAX_FETCHED_BYTES)
        self.unpacked = Allowance(MAX_UNPACKED_BYTES)
        self.kept = Allowance(MAX_KEPT_BYTES)


if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_MEMBERS = 100_000
MAX_GROWTH = 20
"""Times that a layer may become larger when it is decompressed: weights do by less than 2, text by 10."""
_SMALL_BYTES = 1 << 30
"""A small layer may grow to this in any case."""
_MAX_READ_BYTES = 1 << 20
"""At once. tarfile reads names and headers as long as they say that they are."""
_FAULTS = (tarfile.TarError, zlib.error, zstd.ZstdError, gzip.BadGzipFile, EOFError, RecursionError)


class Readable(Protocol):
    """What has a layer's bytes."""

    def read(self, size: int, /) -> bytes:
        """Return so many bytes, or all up to the end."""

    def seek(self, position: int, /) -> int:
        """Go to a position."""

    def tell(self) -> int:
        """Return the position."""


class Entry(NamedTuple):
    """A member with the way to its bytes."""

    member: Member
    tar: "_Tar"
    info: tarfile.TarInfo

    def open(self) -> IO[bytes]:
        """Return the bytes of a plain file, to be read before the next entry is asked for."""
        file = self.tar.extractfile(self.info)
        assert file is not None, "only a plain file has bytes"
        return file


class Tarball(NamedTuple):
    """A tar that is being read."""

    tar: "_Tar"
    layer: int
    limit: int
    is_compressed: bool
    """Then all bytes before an entry must come to get there."""

    def entries(self) -> Iterator[Entry]:
        """Yield all entries but folders, in order. Raises SourceError."""
        for number in range(MAX_MEMBERS):
            info = self.tar.next()
            if info is None:
                return
            if not 0 <= info.size <= self.limit:
                raise SourceError(f"a layer says that {info.name[:80]!r} is larger than itself: refused")
            if not info.isdir():
                member = Member(normalise(info.name), info.size, _is_plain(info), self.layer, number)
                yield Entry(member, self.tar, info)
            self.tar.forget()
        raise SourceError(f"a layer has more than {MAX_MEMBERS} entries: refused")


@contextmanager
def open_tarball(
    file: Readable, size_bytes: int, layer: int, unpacked: Allowance | None = None
) -> Iterator[Tarball]:
    """Open a layer of so many bytes. Raises SourceError, also inside, for one that can't be read.

    `unpacked` is what may be decompressed of it; None: all, unless it grows too much.
    """
    try:
        with ExitStack() as exits:
            start = file.read(4)
            file.seek(0)
            source = cast("IO[bytes]", file)  # it has what the libraries call
            if start[:2] == b"\x1f\x8b":
                content: Readable = exits.enter_context(gzip.GzipFile(fileobj=source))
            elif start == b"\x28\xb5\x2f\xfd":
                content = exits.enter_context(zstd.ZstdFile(source))
            else:
                content = file
            is_compressed = content is not file
            limit = max(_SMALL_BYTES, size_bytes * MAX_GROWTH) if is_compressed else size_bytes
            bounded = _Bounded(content, limit, unpacked if is_compressed else None)
            tar = exits.enter_context(_Tar(fileobj=cast("IO[bytes]", bounded)))
            yield Tarball(tar, layer, limit, is_compressed)
    except _FAULTS as error:
        raise SourceError(f"a layer of the image can't be read as a tar ({type(error).__name__})") from error


def read_whole(file: IO[bytes], num_bytes: int) -> bytes:
    """Return so many bytes of an open entry, or all up to its end."""
    content = bytearray()
    while part := file.read(min(num_bytes - len(content), _MAX_READ_BYTES)):
        content += part
    return bytes(content)


class _Tar(tarfile.TarFile):
    """Read once, from its beginning on."""

    members: list[tarfile.TarInfo]
    pax_headers: dict[str, str]

    def forget(self) -> None:
        """Free what is kept of the entries so far: an archive may have very many."""
        self.members.clear()
        self.pax_headers.clear()


class _Bounded:
    """A file for tarfile that ends a bomb: it reads neither far nor much at once."""

    def __init__(self, content: Readable, limit: int, unpacked: Allowance | None) -> None:
        self._content = content
        self._limit = limit
        self._unpacked = unpacked

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _MAX_READ_BYTES:
            raise SourceError("a layer has a header of more than 1 MiB: refused")
        self._pay(self._content.tell() + size)
        return self._content.read(size)

    def seek(self, position: int) -> int:
        self._pay(position)
        return self._content.seek(position)

    def tell(self) -> int:
        return self._content.tell()

    def _pay(self, position: int) -> None:
        # A read may ask for some bytes behind the end.
        if position > self._limit + _MAX_READ_BYTES:
            raise SourceError(f"a layer is more than {MAX_GROWTH} times as long as it came: refused")
        if self._unpacked is not None:
            self._unpacked.spend(max(0, position - self._content.tell()))


def _is_plain(info: tarfile.TarInfo) -> bool:
    return info.isreg() and not info.issparse()
