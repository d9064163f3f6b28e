"""A verified layer on the disk."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from millrace_fetch.overlay import Member
from millrace_fetch.tarball import Tarball, open_tarball


class Archive:
    """Lists its entries, and reads those that are asked for."""

    def __init__(self, path: Path, layer: int) -> None:
        self._path = path
        self._layer = layer

    def members(self) -> list[Member]:
        """Return all entries but folders, in order."""
        with self._reading() as tarball:
            return [entry.member for entry in tarball.entries()]

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
        with (
            self._path.open("rb") as file,
            open_tarball(file, self._path.stat().st_size, self._layer) as tarball,
        ):
            yield tarball
