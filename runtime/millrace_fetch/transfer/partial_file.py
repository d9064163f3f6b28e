"""A file in the fetch: its bytes so far, and a journal of the fetched ranges.

Both are in `.millrace/parts/`, so that no partial file has a model's name. The journal's lines are JSON, only
appended: first the identity of the file, then each range on the disk, at last the hash. A reader ignores a
line that a kill cut short, and bytes without a line.

A fetch that does not wait for the disk writes its boot id into the journal, and later boots ignore it. Every
boot trusts a journal without one.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from millrace_fetch.errors import CorruptError
from millrace_fetch.plan.manifest import FileRecord, Hash, RemoteFile, make_hash
from millrace_fetch.store.files import NOFOLLOW, refuse_links, writing
from millrace_fetch.transfer.ranges import Span, find_frontier, find_missing, merge

JOURNAL = ".journal"
"""The suffix of a journal's name."""
_HASH_BYTES = 1 << 20


class PartFile:
    """A file in the fetch. Only `write` may run in several threads at a time."""

    def __init__(self, parts: Path, file: RemoteFile, boot: str | None = None) -> None:
        """`boot` is the machine's boot id if the fetch does not wait for the disk, else None."""
        self.file = file
        self._boot = boot
        self.path = refuse_links(parts, parts / f"{file.name}.part")
        self._journal_path = refuse_links(parts, parts / f"{file.name}{JOURNAL}")
        self.finished: FileRecord | None = None
        """The record, once all bytes are on the disk and verified."""
        self._spans: list[Span] = []
        self._hashed = 0
        self._hashes: tuple[Hash, Hash | None] = (hashlib.sha256(), None)
        self._data = self._journal = -1
        self._has_lost = False
        """Whether the disk has reported a failed write. It does so once, and does not name the bytes."""
        self._recall()

    def _recall(self) -> None:
        """Read the journal of an earlier process, if it is of the same file."""
        lines = _read_lines(self._journal_path)
        if self.file.is_known and lines[:1] == [_make_head(self.file, None)]:
            self._boot = None  # the earlier process waited for the disk, so this one does
        if not self.file.is_known or lines[:1] != [_make_head(self.file, self._boot)]:
            return
        if finished := [line["finished"] for line in lines if "finished" in line]:
            self.finished = FileRecord(self.file.size_bytes or 0, finished[-1], self.file.identity)
        elif self.file.is_resumable and self.path.exists():
            self._spans = merge(Span(*line["done"]) for line in lines if "done" in line)

    def open(self) -> None:
        """Create the part and its journal, or open existing ones."""
        if self._spans:
            with writing(self.path):
                self._open_files(0)
        else:
            self.reset()

    def reset(self) -> None:
        """Start with no bytes. The journal stays as a sign that an earlier fetch was here."""
        self.close()
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._open_files(os.O_CREAT | os.O_TRUNC)
            self.finished, self._spans, self._hashed, self._has_lost = None, [], 0, False
            self._hashes = (hashlib.sha256(), None)
            self._append(_make_head(self.file, self._boot))

    def close(self) -> None:
        """Close the descriptors."""
        try:
            self._close_data()
        finally:
            journal, self._journal = self._journal, -1
            if journal >= 0:
                os.close(journal)

    def _close_data(self) -> None:
        """Close the part. Some volumes report a failed write only now."""
        data, self._data = self._data, -1
        if data >= 0:
            with writing(self.path), self._waiting():
                os.close(data)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Wait for the disk. After a failure no range is recorded; without fsync past records go, too."""
        try:
            yield
        except OSError:
            self._has_lost = True
            if self._boot is not None:
                os.ftruncate(self._journal, 0)
            raise

    @property
    def num_done_bytes(self) -> int:
        """The number of bytes on the disk, which are not fetched again."""
        if self.finished:
            return self.finished.size_bytes
        return sum(span.num_bytes for span in self._spans)

    def missing(self) -> list[Span]:
        """Return the ranges to fetch."""
        return list(find_missing(self.file.size_bytes or 0, self._spans))

    def write(self, offset: int, data: bytes) -> None:
        """Write bytes at an offset. Safe in several threads at a time."""
        with writing(self.path):
            view = memoryview(data)
            while view:
                written = os.pwrite(self._data, view, offset)
                offset, view = offset + written, view[written:]

    def note(self, span: Span) -> None:
        """Record a range once the disk has it, and continue the hash up to the first gap.

        After a failed write nothing is recorded: the lost bytes may be in this range.
        """
        if self._has_lost:
            return
        with writing(self.path):
            if self._boot is None:
                with self._waiting():
                    os.fdatasync(self._data)
            self._append({"done": list(span)})
        self._spans = merge([*self._spans, span])
        self._hash_up_to(find_frontier(self._spans))

    def finish(self, size: int) -> FileRecord:
        """Verify the whole file, and record it as finished. Raises CorruptError."""
        self._hash_up_to(size)
        sha256, other = self._hashes
        wanted = self.file.checksum
        actual = other.hexdigest() if other else sha256.hexdigest()
        if wanted and actual != wanted.hexdigest:
            raise CorruptError(
                f"{self.file.name} has {wanted.algorithm} {actual[:12]}…, but {wanted.hexdigest[:12]}… was "
                "announced"
            )
        with writing(self.path):
            if self._boot is None:
                with self._waiting():
                    os.fsync(self._data)
            self._close_data()
            self._append({"finished": sha256.hexdigest()})
        self.close()
        identity = self.file.identity if self.file.is_known else None
        self.finished = FileRecord(size, sha256.hexdigest(), identity)
        return self.finished

    def _hash_up_to(self, end: int) -> None:
        """Hash in order, up to the first gap, although ranges arrive in any order: reads the page cache."""
        if self._hashed == 0:
            self._hashes = (self._hashes[0], make_other_hash(self.file, end))
        while self._hashed < end:
            data = os.pread(self._data, min(_HASH_BYTES, end - self._hashed), self._hashed)
            if not data:
                raise CorruptError(f"{self.file.name} is shorter on the disk than the bytes written to it")
            for hasher in self._hashes:
                if hasher:
                    hasher.update(data)
            self._hashed += len(data)

    def _open_files(self, flags: int) -> None:
        """Open both, the journal first: it must never list bytes of a part that is being truncated."""
        appending = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._journal = os.open(self._journal_path, flags | appending | NOFOLLOW, 0o644)
        self._data = os.open(self.path, flags | os.O_RDWR | NOFOLLOW, 0o644)

    def _append(self, line: dict[str, Any]) -> None:
        # A line also begins with a line break: a line that a kill cut short then ends there.
        os.write(self._journal, b"\n" + json.dumps(line).encode() + b"\n")


def make_other_hash(file: RemoteFile, end: int) -> Hash | None:
    """Return an empty hash of the announced algorithm; None if that is sha256, or nothing is announced.

    `end` is the size of a file for which the source sends none.
    """
    if file.checksum is None or file.checksum.algorithm == "sha256":
        return None
    return make_hash(file.checksum.algorithm, end if file.size_bytes is None else file.size_bytes)


def _make_head(file: RemoteFile, boot: str | None) -> dict[str, Any]:
    """Return a journal's first line."""
    return {"file": file.identity} | ({} if boot is None else {"boot": boot})


def _read_lines(journal: Path) -> list[dict[str, Any]]:
    try:
        text = journal.read_text(errors="replace")
    except FileNotFoundError:
        return []
    lines = []
    for line in text.splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return [line for line in lines if isinstance(line, dict)]
