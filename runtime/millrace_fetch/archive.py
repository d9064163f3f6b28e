"""One layer of an image: a tar, plain or compressed, of an author that is not trusted.

tarfile extracts nothing here. Entries are listed, and the bytes of plain files are read: no link, device,
owner or mode of the archive is ever made.
"""

import gzip
import sys
import tarfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Protocol, cast

from millrace_fetch.errors import SourceError
from millrace_fetch.overlay import Member, normalise

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


class Archive:
    """A verified layer on the disk."""

    def __init__(self, path: Path, layer: int) -> None:
        self._path = path
        self._layer = layer

    def members(self) -> list[Member]:
        """Return all entries but folders, in order."""
        with self._reading() as (tar, limit):
            return [
                Member(normalise(info.name), info.size, _is_plain(info), self._layer, number)
                for number, info in self._walk(tar, limit)
                if not info.isdir()
            ]

    def files(self, wanted: Collection[Member]) -> Iterator[tuple[Member, IO[bytes]]]:
        """Yield those members that are wanted, plain files all, each with its bytes to be read at once."""
        left = {member.number: member for member in wanted}
        if not left:
            return
        with self._reading() as (tar, limit):
            for number, info in self._walk(tar, limit):
                if number in left and (file := tar.extractfile(info)):
                    yield left.pop(number), file
                if not left:  # what follows need not even be decompressed
                    return

    def _walk(self, tar: "_Tar", limit: int) -> Iterator[tuple[int, tarfile.TarInfo]]:
        for number in range(MAX_MEMBERS):
            info = tar.next()
            if info is None:
                return
            if not 0 <= info.size <= limit:
                raise SourceError(f"a layer says that {info.name[:80]!r} is larger than itself: refused")
            yield number, info
            tar.forget()
        raise SourceError(f"a layer has more than {MAX_MEMBERS} entries: refused")

    @contextmanager
    def _reading(self) -> Iterator[tuple["_Tar", int]]:
        """Open the tar, and say how long it may be. Raises SourceError for one that can't be read."""
        try:
            with ExitStack() as exits:
                file = exits.enter_context(self._path.open("rb"))
                size = self._path.stat().st_size
                start = file.read(4)
                file.seek(0)
                if start[:2] == b"\x1f\x8b":
                    content: _Readable = exits.enter_context(gzip.GzipFile(fileobj=file))
                elif start == b"\x28\xb5\x2f\xfd":
                    content = exits.enter_context(zstd.ZstdFile(file))
                else:
                    content = file
                limit = size if content is file else max(_SMALL_BYTES, size * MAX_GROWTH)
                bounded = cast("IO[bytes]", _Bounded(content, limit))  # it has what tarfile calls
                yield exits.enter_context(_Tar(fileobj=bounded)), limit
        except _FAULTS as error:
            raise SourceError(
                f"a layer of the image can't be read as a tar ({type(error).__name__})"
            ) from error


class _Tar(tarfile.TarFile):
    """Read once, from its beginning on."""

    members: list[tarfile.TarInfo]
    pax_headers: dict[str, str]

    def forget(self) -> None:
        """Free what is kept of the entries so far: an archive may have very many."""
        self.members.clear()
        self.pax_headers.clear()


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...
    def seek(self, position: int, /) -> int: ...
    def tell(self) -> int: ...


class _Bounded:
    """A file for tarfile that ends a bomb: it reads neither far nor much at once."""

    def __init__(self, content: _Readable, limit: int) -> None:
        self._content = content
        self._limit = limit

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _MAX_READ_BYTES:
            raise SourceError("a layer has a header of more than 1 MiB: refused")
        self._check(self._content.tell() + size)
        return self._content.read(size)

    def seek(self, position: int) -> int:
        self._check(position)
        return self._content.seek(position)

    def tell(self) -> int:
        return self._content.tell()

    def _check(self, position: int) -> None:
        # A read may ask for some bytes behind the end.
        if position > self._limit + _MAX_READ_BYTES:
            raise SourceError(f"a layer is more than {MAX_GROWTH} times as long as it came: refused")


def _is_plain(info: tarfile.TarInfo) -> bool:
    return info.isreg() and not info.issparse()
