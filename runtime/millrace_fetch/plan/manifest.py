"""What a source has: files by name, with what is known of each before it is fetched."""

import hashlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from millrace_fetch.plan.hashes import CRCS, Algorithm


class Checksum(NamedTuple):
    """What a file's bytes must come to."""

    algorithm: Algorithm
    hexdigest: str

    @property
    def is_strong(self) -> bool:
        """Whether no two files have the same. Two with the same CRC are easily made."""
        return self.algorithm not in CRCS


@dataclass(frozen=True)
class RemoteFile:
    """One file as its source announces it."""

    name: str
    url: str
    size_bytes: int | None
    """None where the server does not say it: such a file can't be resumed."""
    checksum: Checksum | None = None
    validator: str | None = None
    """ETag, else Last-Modified: the same while the file does not change. Beside a checksum it is not needed,
    and lets a change be seen before the end."""
    has_ranges: bool = True
    """Whether the server gives parts of the file."""
    place: str = ""
    """Where it is, without what is secret: a date, and many an ETag, says nothing of files elsewhere. Empty
    where there is a checksum, or the validator is one."""
    ask_checksum: Callable[[], Awaitable[Checksum | None]] | None = field(
        default=None, compare=False, repr=False
    )
    """Asks the source for the checksum, where that is a request of its own: only of files that are wanted."""

    @property
    def identity(self) -> str:
        """Bytes of two files with equal identities may be put together."""
        if self._strong_checksum or not self.place:
            return f"{self._strong_checksum or self.validator} {self.size_bytes}"
        return f"{self.validator} {self.size_bytes} {self.place}"

    @property
    def is_known(self) -> bool:
        """Whether a change of the file would change its identity."""
        has_sign = self._strong_checksum is not None or self.validator is not None
        return self.size_bytes is not None and has_sign

    @property
    def _strong_checksum(self) -> Checksum | None:
        return self.checksum if self.checksum and self.checksum.is_strong else None

    @property
    def is_resumable(self) -> bool:
        """Whether later bytes can be added to earlier ones, and a change would be seen."""
        return self.has_ranges and self.is_known


@dataclass(frozen=True)
class Manifest:
    """All files of one state of a model."""

    revision: str
    files: tuple[RemoteFile, ...]
    layers: tuple[RemoteFile, ...] = ()
    """Of an image, the lowest first: archives that have the files. Then `files` is empty."""

    def by_name(self) -> dict[str, RemoteFile]:
        """Return the files by their names."""
        return {file.name: file for file in self.files}


def hash_state(files: Iterable[RemoteFile]) -> str:
    """Return a revision for a source that has none: it changes when a name, a size or a validator does."""
    lines = sorted(f"{file.name} {file.size_bytes} {file.validator}" for file in files)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:40]


@dataclass(frozen=True)
class FileRecord:
    """A file that is there and verified."""

    size_bytes: int
    sha256: str
    identity: str | None
    """What its source announced. None where a change would not have changed it."""
