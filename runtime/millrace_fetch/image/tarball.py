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
from millrace_fetch.image.overlay import ROOT, Member, relocate

MAX_FETCHED_BYTES = 64 << 20
"""From the registry, for all layers: some seconds on a usual network. Enough for the headers of 500 files,
for all layers of a small base image, or for the part of a compressed layer before the weights."""
MAX_UNPACKED_BYTES = 2 << 30
"""Of compressed layers: some seconds of a CPU. A completely fetched layer may grow to less, so that a
decompression bomb is refused with its own message."""
MAX_KEPT_BYTES = 32 << 20
"""In memory, for names, small files and headers. The largest model that Millrace serves needs 1 MB."""


class EnoughError(Exception):
    """A look has used up its budget. Its findings count; the rest stays unknown."""


class Allowance:
    """A number of bytes to spend."""

    def __init__(self, num_bytes: int) -> None:
        self.left = num_bytes

    def spend(self, num_bytes: int) -> None:
        """Spend some bytes. Raises EnoughError if too few are left."""
        if num_bytes > self.left:
            raise EnoughError
        self.left -= num_bytes


class Budget:
    """The bytes that a look may still fetch, unpack and keep."""

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
"""How much larger a layer may become when decompressed: weights grow less than twofold, text tenfold."""
_SMALL_BYTES = 1 << 30
"""Any layer may grow to this size."""
_MAX_READ_BYTES = 1 << 20
"""Bytes of one read. tarfile trusts the lengths that names and headers claim."""
_FAULTS = (tarfile.TarError, zlib.error, zstd.ZstdError, gzip.BadGzipFile, EOFError, RecursionError)


class Readable(Protocol):
    """The bytes of a layer, as a file."""

    def read(self, size: int, /) -> bytes:
        """Return the next `size` bytes, or fewer at the end."""

    def seek(self, position: int, /) -> int:
        """Go to a position."""

    def tell(self) -> int:
        """Return the position."""


class Entry(NamedTuple):
    """A member, and how to open it."""

    member: Member
    tar: "_Tar"
    info: tarfile.TarInfo

    def open(self) -> IO[bytes]:
        """Open a plain file. Read it before the next entry."""
        file = self.tar.extractfile(self.info)
        assert file is not None, "only a plain file has content"
        return file


class Tarball(NamedTuple):
    """An open tar archive."""

    tar: "_Tar"
    layer: int
    root: str
    """The model's folder in it."""
    limit: int
    is_compressed: bool
    """If so, all bytes before an entry must be read to reach it."""

    def entries(self) -> Iterator[Entry]:
        """Yield all entries but folders, in order. Raises SourceError."""
        for number in range(MAX_MEMBERS):
            info = self.tar.next()
            if info is None:
                return
            if not 0 <= info.size <= self.limit:
                raise SourceError(f"a layer has {info.name[:80]!r}, which is larger than the layer: refused")
            if not info.isdir():
                path = relocate(info.name, self.root)
                member = Member(path, info.size, _is_plain(info), self.layer, number)
                yield Entry(member, self.tar, info)
            self.tar.forget()
        raise SourceError(f"a layer has more than {MAX_MEMBERS} entries: refused")


@contextmanager
def open_tarball(
    file: Readable, size_bytes: int, layer: int, unpacked: Allowance | None = None, root: str = ROOT
) -> Iterator[Tarball]:
    """Open a layer. Raises SourceError for an unreadable one, also inside the context.

    `unpacked` limits the decompressed bytes; None: only MAX_GROWTH does.
    """
    try:
        with ExitStack() as exits:
            start = file.read(4)
            file.seek(0)
            source = cast("IO[bytes]", file)  # it has the methods that the libraries call
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
            yield Tarball(tar, layer, root, limit, is_compressed)
    except _FAULTS as error:
        raise SourceError(f"a layer of the image can't be read as a tar ({type(error).__name__})") from error


def read_whole(file: IO[bytes], num_bytes: int) -> bytes:
    """Return `num_bytes` of an open entry, or fewer at its end."""
    content = bytearray()
    while part := file.read(min(num_bytes - len(content), _MAX_READ_BYTES)):
        content += part
    return bytes(content)


class _Tar(tarfile.TarFile):
    """A tar archive, read once from its beginning."""

    members: list[tarfile.TarInfo]
    pax_headers: dict[str, str]

    def forget(self) -> None:
        """Free the records of past entries: an archive may have very many."""
        self.members.clear()
        self.pax_headers.clear()


class _Bounded:
    """A file for tarfile that stops decompression bombs: it limits the length and each read."""

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
        # tarfile may read beyond the end.
        if position > self._limit + _MAX_READ_BYTES:
            raise SourceError(f"a layer is more than {MAX_GROWTH} times as long when unpacked: refused")
        if self._unpacked is not None:
            self._unpacked.spend(max(0, position - self._content.tell()))


def _is_plain(info: tarfile.TarInfo) -> bool:
    return info.isreg() and not info.issparse()
