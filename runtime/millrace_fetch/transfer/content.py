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
from millrace_fetch.plan.selection import INDEX
from millrace_fetch.progress import Watch
from millrace_fetch.sources.source import MAX_SMALL_BYTES, read_small
from millrace_fetch.store.folder import Folder
from millrace_fetch.transfer.client import Client
from millrace_fetch.transfer.concurrency import call_in_thread
from millrace_fetch.transfer.download import CHUNK_BYTES, Download
from millrace_fetch.transfer.partial_file import PartFile

_STEP_BYTES = 1 << 20
"""Of what is decompressed, until it is told how far it is."""


class Content(Protocol):
    """The files that there are, and the way to their bytes."""

    @property
    def by_name(self) -> Mapping[str, RemoteFile]:
        """All files, also those that no replica reads."""

    async def read_index(self) -> bytes | None:
        """Return the list of the weights' shards. None where there is none."""

    def begin(self, total_bytes: int | None, done_bytes: int) -> None:
        """Tell how large the files are that come, and what of them is there."""

    async def bring(self, parts: Sequence[PartFile]) -> dict[str, FileRecord]:
        """Write files into the folder, and return what they came to."""


class Remote:
    """Files that are fetched one by one."""

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
        index = self.by_name.get(INDEX)
        return await read_small(self._client, index, self.watch.say) if index else None

    def begin(self, total_bytes: int | None, done_bytes: int) -> None:
        """Tell it as it is."""
        self.watch.begin(total_bytes, done_bytes)

    async def bring(self, parts: Sequence[PartFile]) -> dict[str, FileRecord]:
        """Fetch the files."""
        download = Download(self._client, self.folder, self.watch.advance, self.watch.say)
        return await download.run(parts, self._connections)


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


class Layers:
    """Files in an image's layers, which are on the disk and verified.

    The layers count twice in what is told: as they come, and then one half as they are listed and one half as
    the files come out of them. How large those are is known only between the two, so they count as a share of
    the layers.
    """

    @classmethod
    async def fetch(cls, remote: Remote, order: Sequence[str]) -> Self:
        """Fetch the layers, and list what is in them. `order` has their names, the lowest first."""
        folder, watch = remote.folder, remote.watch
        layers = list(remote.by_name.values())
        num_bytes = _sum_sizes(layers)
        parts = prepare_parts(folder, lambda _, done: watch.begin(2 * num_bytes, done), layers)
        await remote.bring(parts)
        archives = [Archive(folder.path / name, layer) for layer, name in enumerate(order)]
        listing = _Listing(archives, num_bytes // 2, watch.advance)
        members = overlay([await listing.list_members(archive) for archive in archives])
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
        """Of the files."""
        self._archives = archives
        self._members = members
        self._index = index
        self._folder = remote.folder
        self._watch = remote.watch
        # A layer's name is its digest: it says whether a file is still the same.
        self.by_name = {
            name: RemoteFile(name, "", member.size_bytes, validator=layers[member.layer].name)
            for name, member in members.items()
        }

    async def read_index(self) -> bytes | None:
        """Return the index, which was read when its layer was listed."""
        member = self._members.get(INDEX)
        if member is None:
            return None
        if member.size_bytes > MAX_SMALL_BYTES:
            raise SourceError(f"{INDEX} is larger than {MAX_SMALL_BYTES >> 20} MiB: refused")
        check_plain(INDEX, member)
        return self._index

    def begin(self, total_bytes: int | None, done_bytes: int) -> None:
        """Tell that all layers have come and are listed, and what has come out of them."""
        self._total, self._done = total_bytes or 0, done_bytes
        self._watch.begin(2 * self._layer_bytes, self._layer_bytes + self._layer_bytes // 2 + self._share)

    @property
    def _share(self) -> int:
        """How much of the layers' bytes the files are that are there."""
        most = self._layer_bytes - self._layer_bytes // 2
        return most if self._done >= self._total else most * self._done // self._total

    async def bring(self, parts: Sequence[PartFile]) -> dict[str, FileRecord]:
        """Write the files out of their layers. A file of an earlier run that is whole stays."""
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
        """Write the files of one layer, and yield after each step how many bytes it wrote."""
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
    """What is in the layers, found in one way through each of them."""

    def __init__(self, archives: Sequence[Archive], share: int, advance: Callable[[int], None]) -> None:
        self._share = share
        self._advance = advance
        self._total = sum(archive.size_bytes for archive in archives)
        self._looked = self._told = 0
        self.index = b""
        """That of the uppermost layer which has one: it hides the others."""

    async def list_members(self, archive: Archive) -> list[Member]:
        """Return a layer's entries. Tells as its share how far it is, by the bytes of the layers."""
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
        before, self._told = self._told, self._share * self._looked // self._total
        self._advance(self._told - before)


def prepare_parts(
    folder: Folder,
    begin: Callable[[int | None, int], None],
    files: Sequence[RemoteFile],
    kept: Collection[str] = (),
) -> list[PartFile]:
    """Return the files that are to come, with what is there of each. Raises NoSpaceError.

    `begin` is told the size of all of them, None where it is not known, and what of it is there.
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
