"""Writes a model's files into a folder: from the source one by one, or from the layers of an image."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Protocol, Self

from millrace_fetch.errors import SourceError
from millrace_fetch.image.overlay import ROOT, Member, check_plain, overlay
from millrace_fetch.image.tarball import Entry, Tarball, open_tarball, read_whole
from millrace_fetch.plan.manifest import FileRecord, RemoteFile
from millrace_fetch.progress import Watch
from millrace_fetch.sources.source import MAX_SMALL_BYTES, read_small
from millrace_fetch.store.folder import Folder
from millrace_fetch.transfer.client import Client
from millrace_fetch.transfer.concurrency import call_in_thread
from millrace_fetch.transfer.download import CHUNK_BYTES, Download
from millrace_fetch.transfer.partial_file import PartFile
from millrace_fit.files.needed import INDEX, is_indexed

_STEP_BYTES = 1 << 20
"""Decompressed bytes between two reports of progress."""


class Content(Protocol):
    """A model's files, and how to write them into a folder."""

    @property
    def by_name(self) -> Mapping[str, RemoteFile]:
        """All files, also those that no replica reads."""

    async def read_index(self) -> bytes | None:
        """Return the index of the weights' shards; None if no weights are chosen by it."""

    def begin(self, total_bytes: int | None, done_bytes: int) -> None:
        """Report the size of the files to write, and how many bytes of them are on the disk."""

    async def bring(self, parts: Sequence[PartFile]) -> dict[str, FileRecord]:
        """Write files into the folder, and return their records."""


class Remote:
    """Files that the source serves one by one."""

    def __init__(
        self, files: Iterable[RemoteFile], client: Client, folder: Folder, watch: Watch, connections: int
    ) -> None:
        self.by_name = {file.name: file for file in files}
        self._client = client
        self.folder = folder
        self.watch = watch
        self._connections = connections

    async def read_index(self) -> bytes | None:
        """Fetch the index."""
        if not is_indexed(self.by_name):
            return None
        return await read_small(self._client, self.by_name[INDEX], self.watch.say)

    def begin(self, total_bytes: int | None, done_bytes: int) -> None:
        """Report the sizes unchanged."""
        self.watch.begin(total_bytes, done_bytes)

    async def bring(self, parts: Sequence[PartFile]) -> dict[str, FileRecord]:
        """Fetch the files."""
        download = Download(self._client, self.folder, self.watch.advance, self.watch.say)
        return await download.run(parts, self._connections)


class Archive:
    """A verified layer on the disk: lists its entries, and reads some of them."""

    def __init__(self, path: Path, layer: int, root: str) -> None:
        self._path = path
        self._layer = layer
        self._root = root
        self.size_bytes = path.stat().st_size
        """As fetched, so mostly compressed."""

    def look(self, members: list[Member], path: str, most_bytes: int) -> Iterator[int | bytes]:
        """Append all entries but folders to `members`, in order. Yield the number of bytes read by each step.

        Also yield the content of a plain file at `path` of at most `most_bytes`. A later read of it would
        decompress everything before it again.
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
        """Yield the wanted members, all plain files, each with its open file, to be read before the next."""
        left = set(wanted)
        if not left:
            return
        with self._reading() as tarball:
            for entry in tarball.entries():
                if entry.member in left:
                    left.remove(entry.member)
                    yield entry.member, entry.open()
                if not left:  # the rest need not be decompressed
                    return

    @contextmanager
    def _reading(self) -> Iterator[Tarball]:
        with self._path.open("rb") as file, self._open(file) as tarball:
            yield tarball

    def _open(self, file: IO[bytes]) -> AbstractContextManager[Tarball]:
        return open_tarball(file, self.size_bytes, self._layer, root=self._root)


def _skip(entry: Entry) -> Iterator[None]:
    """Read to the end of a plain file, in steps: a compressed layer can't be skipped otherwise."""
    file = entry.open()
    while file.read(_STEP_BYTES):
        yield


class Layers:
    """Files in an image's layers, which are on the disk and verified.

    The progress counts the bytes of the layers twice: once for the download, once for the unpacking. Of the
    second, the listing of the layers is one half, and the writing of the files the other. The sizes of the
    files are known only after the listing, so they are scaled to the layers' bytes.
    """

    @classmethod
    async def fetch(cls, remote: Remote, order: Sequence[str], root: str = ROOT) -> Self:
        """Fetch the layers, and list their entries. `order` has the names of the layers, the lowest first.

        `root` is the model's folder in them.
        """
        folder, watch = remote.folder, remote.watch
        layers = list(remote.by_name.values())
        num_bytes = _sum_sizes(layers)
        parts = prepare_parts(folder, lambda _, done: watch.begin(2 * num_bytes, done), layers)
        await remote.bring(parts)
        archives = [Archive(folder.path / name, layer, root) for layer, name in enumerate(order)]
        listing = _Listing(archives, num_bytes // 2, watch.advance)
        members = overlay([await listing.list_members(archive) for archive in archives], root)
        return cls(remote, [remote.by_name[name] for name in order], archives, members, listing.index)

    def __init__(
        self,
        remote: Remote,
        layers: Sequence[RemoteFile],
        archives: Sequence[Archive],
        members: Mapping[str, Member],
        index: bytes,
    ) -> None:
        self._layer_bytes = _sum_sizes({layer.name: layer for layer in layers}.values())
        self._total = self._done = 0
        """Bytes of the files."""
        self._archives = archives
        self._members = members
        self._index = index
        self._folder = remote.folder
        self._watch = remote.watch
        # A layer's name is its digest, so it changes with each file in it.
        self.by_name = {
            name: RemoteFile(name, "", member.size_bytes, validator=layers[member.layer].name)
            for name, member in members.items()
        }

    async def read_index(self) -> bytes | None:
        """Return the index, which the listing of its layer has read."""
        if not is_indexed(self._members):
            return None
        member = self._members[INDEX]
        if member.size_bytes > MAX_SMALL_BYTES:
            raise SourceError(f"{INDEX} is larger than {MAX_SMALL_BYTES >> 20} MiB: refused")
        check_plain(INDEX, member)
        return self._index

    def begin(self, total_bytes: int | None, done_bytes: int) -> None:
        """Report that all layers are fetched and listed, and the bytes of the files on the disk."""
        self._total, self._done = total_bytes or 0, done_bytes
        self._watch.begin(2 * self._layer_bytes, self._layer_bytes + self._layer_bytes // 2 + self._share)

    @property
    def _share(self) -> int:
        """The bytes of the written files, scaled to the layers' bytes."""
        most = self._layer_bytes - self._layer_bytes // 2
        return most if self._done >= self._total else most * self._done // self._total

    async def bring(self, parts: Sequence[PartFile]) -> dict[str, FileRecord]:
        """Unpack the files from their layers. Whole files of an earlier run stay."""
        for part in parts:
            check_plain(part.file.name, self._members[part.file.name])
        records: dict[str, FileRecord] = {}
        to_unpack: dict[Member, PartFile] = {}
        for part in parts:
            if record := self._folder.settle(part):
                records[part.file.name] = record
            else:
                to_unpack[self._members[part.file.name]] = part
        for layer, archive in enumerate(self._archives):
            of_layer = {member: part for member, part in to_unpack.items() if member.layer == layer}
            steps = self._unpack(archive, of_layer)
            while (num_bytes := await asyncio.to_thread(next, steps, None)) is not None:
                before, self._done = self._share, self._done + num_bytes
                self._watch.advance(self._share - before)
        return records | {part.file.name: part.finished for part in to_unpack.values() if part.finished}

    def _unpack(self, archive: Archive, parts: Mapping[Member, PartFile]) -> Iterator[int]:
        """Write the files of one layer. Yields the number of bytes after each step."""
        for member, file in archive.files(parts):
            part = parts[member]
            part.reset()
            try:
                position = 0
                while data := file.read(CHUNK_BYTES):
                    part.write(position, data)
                    position += len(data)
                    yield len(data)
                part.finish(position)
            finally:
                part.close()
            self._folder.files.install(part.path, part.file.name)


class _Listing:
    """Lists the entries of the layers, in one pass through each."""

    def __init__(self, archives: Sequence[Archive], share: int, advance: Callable[[int], None]) -> None:
        self._share = share
        self._advance = advance
        self._total = sum(archive.size_bytes for archive in archives)
        self._looked = self._reported = 0
        self.index = b""
        """The index of the top layer with one, which hides all others."""

    async def list_members(self, archive: Archive) -> list[Member]:
        """Return a layer's entries. Reports its progress by the bytes read, scaled to the share."""
        members: list[Member] = []
        steps = archive.look(members, f"{ROOT}/{INDEX}", MAX_SMALL_BYTES)
        while (step := await call_in_thread(lambda: next(steps, None))) is not None:
            if isinstance(step, bytes):
                self.index = step
            else:
                self._count(step)
        return members

    def _count(self, num_bytes: int) -> None:
        self._looked += num_bytes
        before, self._reported = self._reported, self._share * self._looked // self._total
        self._advance(self._reported - before)


def prepare_parts(
    folder: Folder,
    begin: Callable[[int | None, int], None],
    files: Sequence[RemoteFile],
    kept: Collection[str] = (),
) -> list[PartFile]:
    """Return the files to fetch, each with its bytes on the disk. Raises NoSpaceError.

    `begin` gets the size of all files, None if it is not known, and the number of bytes on the disk.
    """
    parts = [PartFile(folder.parts, file, folder.boot) for file in files if file.name not in kept]
    known = _sum_sizes(files)
    missing = sum((part.file.size_bytes or 0) - part.num_done_bytes for part in parts)
    folder.check_space(missing)
    is_known = all(file.size_bytes is not None for file in files)
    begin(known if is_known else None, known - missing)
    return parts


def _sum_sizes(files: Iterable[RemoteFile]) -> int:
    return sum(file.size_bytes or 0 for file in files)
