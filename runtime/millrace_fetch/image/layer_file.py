"""A verified layer on the disk."""

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO

from millrace_fetch.image.overlay import Member
from millrace_fetch.image.tarball import Entry, Tarball, open_tarball, read_whole

_STEP_BYTES = 1 << 20
"""Of what is decompressed, until it is told how far it is."""


class Archive:
    """Lists its entries, and reads those that are asked for."""

    def __init__(self, path: Path, layer: int) -> None:
        self._path = path
        self._layer = layer
        self.size_bytes = path.stat().st_size
        """As it came: in most images compressed."""

    def look(self, members: list[Member], path: str, most_bytes: int) -> Iterator[int | bytes]:
        """List all entries but folders, in order. Yield how many of the layer's bytes each step took.

        Yields the bytes of a plain file at `path` too, unless it has more than `most_bytes`. To read it later
        would decompress again all that is before it.
        """
        position = 0
        with self._path.open("rb") as file, self._open(file) as tarball:
            for entry in tarball.entries():
                member = entry.member
                members.append(member)
                if member.path == path and member.is_plain and member.size_bytes <= most_bytes:
                    yield read_whole(entry.open(), member.size_bytes)
                elif tarball.is_compressed and member.is_plain:
                    for _ in _skip(entry):
                        before, position = position, file.tell()
                        yield position - before
        yield self.size_bytes - position

    def files(self, wanted: Collection[Member]) -> Iterator[tuple[Member, IO[bytes]]]:
        """Yield those members that are wanted, plain files all, each with its bytes to be read at once."""
        left = set(wanted)
        if not left:
            return
        with self._reading() as tarball:
            for entry in tarball.entries():
                if entry.member in left:
                    left.remove(entry.member)
                    yield entry.member, entry.open()
                if not left:  # what follows need not even be decompressed
                    return

    @contextmanager
    def _reading(self) -> Iterator[Tarball]:
        with self._path.open("rb") as file, self._open(file) as tarball:
            yield tarball

    def _open(self, file: IO[bytes]) -> AbstractContextManager[Tarball]:
        return open_tarball(file, self.size_bytes, self._layer)


def _skip(entry: Entry) -> Iterator[None]:
    """Go to the end of a plain file, in steps: all of it must be decompressed to get there."""
    file = entry.open()
    while file.read(_STEP_BYTES):
        yield
