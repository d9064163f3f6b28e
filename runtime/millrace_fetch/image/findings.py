"""The findings of a look at an image's layers: the files of a model, without their weights. Pure."""

from collections.abc import Mapping, Sequence
from typing import IO, NamedTuple

from millrace_fetch.image.overlay import ROOT, Member, check_plain, concerns_model, find_files, overlay
from millrace_fetch.image.tarball import Budget, EnoughError, Entry, Readable, open_tarball, read_whole
from millrace_fetch.plan.head import ModelHead, merge, parse_config, parse_tensors
from millrace_fetch.plan.manifest import RemoteFile
from millrace_fetch.plan.selection import CONFIG, INDEX, find_surely_read, is_usual, read_shards
from millrace_fit.errors import HeaderError
from millrace_fit.headers import LENGTH_BYTES, StoredTensor, read_length
from millrace_fit.tensors import assume_tensors

_INSIDE = f"{ROOT}/"
_ENTRY_BYTES = 300
"""What a member takes beside its name, about."""


class Seen(NamedTuple):
    """What was seen of a layer."""

    members: list[Member]
    """Those that concern the model."""
    contents: Mapping[Member, bytes]
    """config.json and the index whole; of safetensors files the header, with its length before it."""
    is_whole: bool
    """Whether all its entries were seen. Else the layer may have more, or others of the same names."""


UNSEEN = Seen([], {}, is_whole=False)


class Skim:
    """Looks at one layer after the other, the uppermost first."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._has_config = False
        self._has_header = False

    def look(self, file: Readable, size_bytes: int, layer: int) -> Seen:
        """Return what is seen of a layer of so many bytes. Raises SourceError, and what reading raises.

        A layer that can't come whole is left as soon as the model's shape and the type of its numbers are
        known: more of it would tell nothing that counts.
        """
        members: list[Member] = []
        contents: dict[Member, bytes] = {}
        is_small = size_bytes <= self._budget.fetched.left
        try:
            with open_tarball(file, size_bytes, layer, self._budget.unpacked) as tarball:
                for entry in tarball.entries():
                    if concerns_model(entry.member.path):
                        self._budget.kept.spend(len(entry.member.path) + _ENTRY_BYTES)
                        members.append(entry.member)
                        self._keep(entry, contents)
                    if self._knows_enough and tarball.is_compressed and not is_small:
                        return Seen(members, contents, is_whole=False)
        except EnoughError:
            return Seen(members, contents, is_whole=False)
        return Seen(members, contents, is_whole=True)

    @property
    def _knows_enough(self) -> bool:
        return self._has_config and self._has_header

    def _keep(self, entry: Entry, contents: dict[Member, bytes]) -> None:
        member = entry.member
        if not member.is_plain or not member.path.startswith(_INSIDE):
            return
        name = member.path.removeprefix(_INSIDE)
        if name in (CONFIG, INDEX):
            self._budget.kept.spend(member.size_bytes)
            contents[member] = read_whole(entry.open(), member.size_bytes)
            self._has_config |= name == CONFIG
        elif name.endswith(".safetensors"):
            contents[member] = self._read_header(entry.open(), member.size_bytes)
            self._has_header |= is_usual(name)

    def _read_header(self, file: IO[bytes], file_bytes: int) -> bytes:
        """Return the header with its length; the length alone where there can be no such header."""
        first = read_whole(file, LENGTH_BYTES)
        try:
            length = read_length(first, file_bytes)
        except HeaderError:  # told later, if a replica would read the file
            return first
        self._budget.kept.spend(length)
        return first + read_whole(file, length)


class SeenImage:
    """The layers from the uppermost down to the first one that was not seen whole. The lowest comes first."""

    def __init__(self, revision: str, layers: Sequence[Seen]) -> None:
        self.revision = revision
        self.is_whole = all(layer.is_whole for layer in layers)
        """Whether every layer was seen from its beginning to its end."""
        self._layers = [layer.members for layer in layers]
        self._contents = {member: one for layer in layers for member, one in layer.contents.items()}

    def list_files(self) -> "ImageFiles":
        """Return the files of an image that was seen whole. Raises SourceError where it has none."""
        assert self.is_whole
        return ImageFiles(self.revision, overlay(self._layers), self._contents)

    def guess(self) -> ModelHead | None:
        """Return what the model's config.json describes; None where it was not seen, or names no type.

        All above the layer with it was seen, so it is the one that counts. Its tensors are said to be there:
        of what was not seen nobody may say that it is missing. Raises SourceError and CorruptError.
        """
        files = find_files(self._layers)
        content = self._read(files, CONFIG)
        if content is None:
            return None
        config = parse_config(content)
        index = self._read(files, INDEX)
        weights = find_surely_read(files, None if index is None else read_shards(index))
        heads = {name: head for name in weights if (head := self._read(files, name)) is not None}
        seen = merge(
            {name: parse_tensors(name, head, files[name].size_bytes) for name, head in heads.items()}
        )
        tensors = assume_tensors(config, seen)
        if tensors is None:
            return None
        num_bytes = sum(files[name].size_bytes for name in heads)
        return ModelHead(self.revision, config, tensors, frozenset(files), num_bytes, is_whole=False)

    def _read(self, files: Mapping[str, Member], name: str) -> bytes | None:
        if name not in files:
            return None
        check_plain(name, files[name])
        return self._contents.get(files[name])


class ImageFiles:
    """An image of which all files are known: it can be asked as any other source's files."""

    def __init__(
        self, revision: str, members: Mapping[str, Member], contents: Mapping[Member, bytes]
    ) -> None:
        self.revision = revision
        self._members = members
        self._contents = contents
        self.by_name = {name: RemoteFile(name, "", member.size_bytes) for name, member in members.items()}

    async def read(self, name: str) -> bytes:
        """Return a small file. Raises SourceError where a link is in its place."""
        check_plain(name, self._members[name])
        return self._contents[self._members[name]]

    async def read_tensors(self, name: str) -> dict[str, StoredTensor]:
        """Return the tensors of a file. Raises SourceError for a link, and CorruptError."""
        return parse_tensors(name, await self.read(name), self._members[name].size_bytes)
