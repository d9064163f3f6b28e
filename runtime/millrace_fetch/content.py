"""Where the bytes of a model's files are: at the source, one by one, or in the layers of an image."""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, Self

from millrace_fetch.archive import Archive
from millrace_fetch.client import Client
from millrace_fetch.download import CHUNK_BYTES, Download
from millrace_fetch.errors import SourceError
from millrace_fetch.folder import Folder
from millrace_fetch.manifest import FileRecord, RemoteFile
from millrace_fetch.overlay import Member, check_plain, overlay
from millrace_fetch.part import PartFile
from millrace_fetch.selection import INDEX
from millrace_fetch.sources.source import MAX_SMALL_BYTES, read_small
from millrace_fetch.tarball import read_whole
from millrace_fetch.thread import call_in_thread
from millrace_fetch.watch import Watch


class Content(Protocol):
    """The files that there are, and the way to their bytes."""

    @property
    def by_name(self) -> Mapping[str, RemoteFile]:
        """All files, also those that no replica reads."""

    async def read_index(self) -> bytes | None:
        """Return the list of the weights' shards. None where there is none."""

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

    async def bring(self, parts: Sequence[PartFile]) -> dict[str, FileRecord]:
        """Fetch the files."""
        download = Download(self._client, self.folder, self.watch.advance, self.watch.say)
        return await download.run(parts, self._connections)


class Layers:
    """Files in an image's layers, which are on the disk and verified."""

    @classmethod
    async def fetch(cls, remote: Remote, order: Sequence[str]) -> Self:
        """Fetch the layers, and list what is in them. `order` has their names, the lowest first."""
        folder, watch = remote.folder, remote.watch
        await remote.bring(prepare_parts(folder, watch, list(remote.by_name.values())))
        archives = [Archive(folder.path / name, layer) for layer, name in enumerate(order)]
        members = overlay([await call_in_thread(archive.members) for archive in archives])
        return cls(archives, members, order, folder, watch)

    def __init__(
        self,
        archives: Sequence[Archive],
        members: Mapping[str, Member],
        order: Sequence[str],
        folder: Folder,
        watch: Watch,
    ) -> None:
        self._archives = archives
        self._members = members
        self._folder = folder
        self._watch = watch
        # A layer's name is its digest: it says whether a file is still the same.
        self.by_name = {
            name: RemoteFile(name, "", member.size_bytes, validator=order[member.layer])
            for name, member in members.items()
        }

    async def read_index(self) -> bytes | None:
        """Read the index out of its layer."""
        member = self._members.get(INDEX)
        if member is None:
            return None
        if member.size_bytes > MAX_SMALL_BYTES:
            raise SourceError(f"{INDEX} is larger than {MAX_SMALL_BYTES >> 20} MiB: refused")
        check_plain(INDEX, member)
        return await call_in_thread(lambda: self._read(member))

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
                self._watch.advance(num_bytes)
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

    def _read(self, member: Member) -> bytes:
        for _, file in self._archives[member.layer].files([member]):
            return read_whole(file, member.size_bytes)
        raise AssertionError("a listed entry is gone")


def prepare_parts(
    folder: Folder, watch: Watch, files: Sequence[RemoteFile], kept: Collection[str] = ()
) -> list[PartFile]:
    """Return the files that are to come, with what is there of each. Raises NoSpaceError."""
    parts = [PartFile(folder.parts, file, folder.boot) for file in files if file.name not in kept]
    known = sum(file.size_bytes or 0 for file in files)
    missing = sum((part.file.size_bytes or 0) - part.num_done_bytes for part in parts)
    folder.check_space(missing)
    is_known = all(file.size_bytes is not None for file in files)
    watch.begin(known if is_known else None, known - missing)
    return parts
