"""Reads a model's head from its source: config.json, and by ranges the headers of the safetensors files."""

from collections.abc import Mapping
from typing import Protocol

from millrace_fetch.errors import CorruptError, RefusedError, SourceError
from millrace_fetch.image.registry_look import look_at_image
from millrace_fetch.plan.head import ModelHead, merge, parse_config, parse_tensors
from millrace_fetch.plan.manifest import Manifest, RemoteFile
from millrace_fetch.plan.names import check_names
from millrace_fetch.plan.selection import (
    CONFIG,
    INDEX,
    check_config,
    is_of_another_format,
    read_shards,
    select,
)
from millrace_fetch.sources.source import Source, read_small
from millrace_fetch.transfer.client import Client
from millrace_fetch.transfer.concurrent_requests import run_together
from millrace_fetch.transfer.range_request import read_excerpt
from millrace_fetch.transfer.retry import Say, with_tries
from millrace_fit.errors import HeaderError
from millrace_fit.headers import LENGTH_BYTES, StoredTensor, read_length

CONNECTIONS = 4
FIRST_BYTES = 128 << 10
"""Of a file, asked for at once: the header of nearly every file is in them, so one request is enough."""


class Files(Protocol):
    """A model's files, of which the small ones and the headers can be read before anything is fetched."""

    @property
    def revision(self) -> str:
        """Which state of the source they are."""

    @property
    def by_name(self) -> Mapping[str, RemoteFile]:
        """All files, also those that no replica reads."""

    async def read(self, name: str) -> bytes:
        """Return a small file. Raises FetchError."""

    async def read_tensors(self, name: str) -> dict[str, StoredTensor]:
        """Return the tensors of a safetensors file, by its header. Raises FetchError."""


class RemoteFiles:
    """Files that a source has one by one."""

    def __init__(self, client: Client, manifest: Manifest, say: Say) -> None:
        self.revision = manifest.revision
        self.by_name = manifest.by_name()
        self._client = client
        self._say = say

    async def read(self, name: str) -> bytes:
        """Return a small file. Raises FetchError."""
        return await read_small(self._client, self.by_name[name], self._say)

    async def read_tensors(self, name: str) -> dict[str, StoredTensor]:
        """Return the tensors of a safetensors file, by its header. Raises FetchError."""
        return await with_tries(lambda: self._read_header(self.by_name[name]), self._say)

    async def _read_header(self, file: RemoteFile) -> dict[str, StoredTensor]:
        part = await read_excerpt(self._client, file, 0, FIRST_BYTES)
        content = part.content
        try:
            end = LENGTH_BYTES + read_length(content, part.file_bytes)
        except HeaderError as error:
            raise CorruptError(f"{file.name} is no safetensors file that can be read: {error}") from error
        if len(content) < end:
            content += (await read_excerpt(self._client, file, len(content), end)).content
        return parse_tensors(file.name, content, part.file_bytes)


async def fetch_head(source: Source, say: Say) -> ModelHead:
    """Return a model's head as its source has it now. Raises FetchError."""
    async with Client(source.authorize, CONNECTIONS, source.certificates) as client:
        try:
            manifest = await source.resolve(client, say)
            if manifest.layers:
                return await _read_image(client, manifest, say)
            return await read_head(RemoteFiles(client, manifest, say))
        except RefusedError as error:
            raise source.explain(error) from error


async def _read_image(client: Client, manifest: Manifest, say: Say) -> ModelHead:
    seen = await look_at_image(client, manifest, say)
    if seen.is_whole:
        return await read_head(seen.list_files())
    if head := seen.guess():
        return head
    raise SourceError(
        f"{CONFIG} is not where the layers of the image begin, so all of them would have to come: fetch the "
        "model with millrace fetch, and ask about the folder"
    )


async def read_head(model: Files) -> ModelHead:
    """Return the head of a model. Raises FetchError."""
    by_name = model.by_name
    if is_of_another_format(by_name):
        config = parse_config(await model.read(CONFIG)) if CONFIG in by_name else {}
        return ModelHead(model.revision, config, {}, frozenset(by_name), 0)
    check_config(by_name)
    config = parse_config(await model.read(CONFIG))
    shards = read_shards(await model.read(INDEX)) if INDEX in by_name else None
    files = []
    if shards is not None or any(name.endswith(".safetensors") for name in by_name):
        names = select(by_name, shards)
        check_names(names)
        files = [by_name[name] for name in names if name.endswith(".safetensors")]
    found = await run_together(model.read_tensors(file.name) for file in files)
    tensors = merge({file.name: one for file, one in zip(files, found, strict=True)})
    num_bytes = sum(file.size_bytes or 0 for file in files)
    return ModelHead(model.revision, config, tensors, frozenset(by_name), num_bytes)
