"""The findings of a look at an image's layers: the files of a model, without their weights. Pure."""

from collections.abc import Mapping, Sequence
from typing import IO, NamedTuple

from millrace_fetch.errors import UnfitFileError
from millrace_fetch.image.overlay import ROOT, Member, check_plain, concerns_model, find_files, overlay
from millrace_fetch.image.tarball import Budget, EnoughError, Entry, Readable, open_tarball, read_whole
from millrace_fetch.plan.head import ModelHead, merge, parse_config, parse_tensors
from millrace_fetch.plan.manifest import RemoteFile
from millrace_fetch.plan.selection import (
    check_pointer,
    find_surely_read,
    is_usual,
    may_be_pointer,
    read_shards,
)
from millrace_fit.errors import HeaderError
from millrace_fit.files.headers import LENGTH_BYTES, StoredTensor, read_length
from millrace_fit.files.needed import CONFIG, INDEX, MODELOPT, TOKENIZER
from millrace_fit.tensors import assume_tensors

_INSIDE = f"{ROOT}/"
_ENTRY_BYTES = 300
"""Memory that a member needs beside its name, about."""


class Seen(NamedTuple):
    """The findings of a look at one layer."""

    members: list[Member]
    """The entries that concern the model."""
    contents: Mapping[Member, bytes]
    """config.json and the index, a tokenizer that may be a pointer, and of safetensors files the header."""
    is_whole: bool
    """Whether the look has read all entries. If not, the layer may have more, also of the same names."""


UNSEEN = Seen([], {}, is_whole=False)


class Skim:
    """Looks at one layer after the other, the top one first."""

    def __init__(self, budget: Budget, root: str) -> None:
        self._budget = budget
        self._root = root
        self._has_config = False
        self._has_header = False

    def look(self, file: Readable, size_bytes: int, layer: int) -> Seen:
        """Return the findings of one layer. Raises SourceError, and the errors of `file.read`.

        In a layer that is larger than the budget the look stops once it has seen config.json and the header
        of a usual weight file: the rest would add nothing.
        """
        members: list[Member] = []
        contents: dict[Member, bytes] = {}
        is_small = size_bytes <= self._budget.fetched.left
        try:
            with open_tarball(file, size_bytes, layer, self._budget.unpacked, self._root) as tarball:
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
        is_small = may_be_pointer(member.size_bytes) and (name == TOKENIZER or name.endswith(".safetensors"))
        if is_small or name in (CONFIG, INDEX, MODELOPT):
            self._budget.kept.spend(member.size_bytes)
            contents[member] = read_whole(entry.open(), member.size_bytes)
            self._has_config |= name == CONFIG
        elif name.endswith(".safetensors"):
            contents[member] = self._read_header(entry.open(), member.size_bytes)
        self._has_header |= is_usual(name)

    def _read_header(self, file: IO[bytes], file_bytes: int) -> bytes:
        """Return the length and the header; only the length if no header can have that length."""
        first = read_whole(file, LENGTH_BYTES)
        try:
            length = read_length(first, file_bytes)
        except HeaderError:  # reported later, if a replica would read the file
            return first
        self._budget.kept.spend(length)
        return first + read_whole(file, length)


class SeenImage:
    """The findings of the layers, from the top down to the first incomplete one. The lowest comes first."""

    def __init__(self, revision: str, layers: Sequence[Seen], root: str) -> None:
        self.revision = revision
        self._root = root
        self.is_whole = all(layer.is_whole for layer in layers)
        """Whether the look has read every layer to its end."""
        self._layers = [layer.members for layer in layers]
        self._contents = {member: one for layer in layers for member, one in layer.contents.items()}

    def list_files(self) -> "ImageFiles":
        """Return the files of a completely read image. Raises SourceError if it has none."""
        assert self.is_whole
        return ImageFiles(self.revision, overlay(self._layers, self._root), self._contents)

    def guess(self) -> ModelHead | None:
        """Return the head that config.json describes; None if the look has not found it, or it names no type.

        The look has read all layers above that of config.json, so no other config.json hides it. The head
        lists all tensors of that config, because unread layers may have them. Raises SourceError and
        CorruptError.
        """
        files = find_files(self._layers)
        content = self._read(files, CONFIG)
        if content is None:
            return None
        try:
            return self._guess(files, content)
        except UnfitFileError as error:
            return ModelHead(self.revision, {}, {}, frozenset(files), 0, is_whole=False, fault=str(error))

    def _guess(self, files: Mapping[str, Member], content: bytes) -> ModelHead | None:
        config = parse_config(content, self._read(files, MODELOPT))
        check_pointer(TOKENIZER, self._read(files, TOKENIZER) or b"")
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
    """The files of a completely read image, in the form of `Files`."""

    def __init__(
        self, revision: str, members: Mapping[str, Member], contents: Mapping[Member, bytes]
    ) -> None:
        self.revision = revision
        self._members = members
        self._contents = contents
        self.by_name = {name: RemoteFile(name, "", member.size_bytes) for name, member in members.items()}

    async def read(self, name: str) -> bytes:
        """Return a small file. Raises SourceError if it is a link."""
        check_plain(name, self._members[name])
        return self._contents[self._members[name]]

    async def read_tensors(self, name: str) -> dict[str, StoredTensor]:
        """Return the tensors of a file. Raises SourceError if it is a link, and CorruptError."""
        return parse_tensors(name, await self.read(name), self._members[name].size_bytes)
