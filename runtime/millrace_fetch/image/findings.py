"""What a look at an image has seen of all its layers, put together. Pure."""

from collections.abc import Mapping, Sequence

from millrace_fetch.image.layer_look import Seen
from millrace_fetch.image.overlay import Member, check_plain, find_files, overlay
from millrace_fetch.plan.head import ModelHead, merge, parse_config, parse_tensors
from millrace_fetch.plan.manifest import RemoteFile
from millrace_fetch.plan.selection import CONFIG, INDEX, find_surely_read, read_shards
from millrace_fit.headers import StoredTensor
from millrace_fit.tensors import assume_tensors


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
