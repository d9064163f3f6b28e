"""Resolves a model at its source, without its weights: revision, size, and the facts of its headers.

It reads config.json, and by range requests the headers of the safetensors files. `image/look.py` finds both
in the layers of an image.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from millrace_fetch.errors import CorruptError, NoPartsError, RefusedError, SourceError, UnfitFileError
from millrace_fetch.fetch import choose_files
from millrace_fetch.image.look import compute_image_bytes, look_at_image
from millrace_fetch.plan.head import ModelHead, Resolved, describe_head, merge, parse_config, parse_tensors
from millrace_fetch.plan.manifest import Manifest, RemoteFile
from millrace_fetch.plan.selection import (
    check_config,
    check_pointer,
    check_tokenizer,
    is_of_another_format,
    may_be_pointer,
    read_shards,
    select,
)
from millrace_fetch.plan.unsafe_names import check_names
from millrace_fetch.plan.uri import Order
from millrace_fetch.progress import Say
from millrace_fetch.sources.source import Source, read_small
from millrace_fetch.transfer.client import Client
from millrace_fetch.transfer.concurrency import run_together
from millrace_fetch.transfer.remote_file import FIRST_BYTES, read_excerpt
from millrace_fetch.transfer.retry import with_tries
from millrace_fit.errors import HeaderError
from millrace_fit.files.headers import LENGTH_BYTES, StoredTensor, read_length
from millrace_fit.files.needed import CONFIG, INDEX, MODELOPT, TOKENIZER, explain_choice, is_indexed

CONNECTIONS = 4


class Files(Protocol):
    """A model's files at its source: the small ones and the headers can be read before a fetch."""

    @property
    def revision(self) -> str:
        """The revision of all files."""

    @property
    def by_name(self) -> Mapping[str, RemoteFile]:
        """All files, also those that no replica reads."""

    async def read(self, name: str) -> bytes:
        """Return a small file. Raises FetchError."""

    async def read_tensors(self, name: str) -> dict[str, StoredTensor]:
        """Return the tensors of a safetensors file, by its header. Raises FetchError."""


class RemoteFiles:
    """Files that the source serves one by one."""

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
        check_pointer(file.name, content)
        try:
            end = LENGTH_BYTES + read_length(content, part.file_bytes)
        except HeaderError as error:
            raise CorruptError(f"{file.name} is no safetensors file that can be read: {error}") from error
        if len(content) < end:
            content += (await read_excerpt(self._client, file, len(content), end)).content
        return parse_tensors(file.name, content, part.file_bytes)


async def fetch_head(source: Source, say: Say) -> ModelHead:
    """Return the head of a model's present revision. Raises FetchError."""
    async with Client(source.authorize, CONNECTIONS, source.certificates) as client:
        try:
            manifest = await source.resolve(client, say)
            if manifest.layers:
                return await _read_image(client, manifest, say)
            return await read_head(RemoteFiles(client, manifest, say), say)
        except RefusedError as error:
            raise source.explain(error) from error


async def _read_image(client: Client, manifest: Manifest, say: Say) -> ModelHead:
    seen = await look_at_image(client, manifest, say)
    if seen.is_whole:
        return await read_head(seen.list_files(), say)
    if head := seen.guess():
        return head
    raise SourceError(
        f"{CONFIG} is not near the start of a layer of the image, so only a whole fetch would find it: fetch "
        "the model with millrace fetch, and give the folder to millrace size"
    )


async def read_head(model: Files, say: Say) -> ModelHead:
    """Return the head of a model. Raises FetchError."""
    by_name, config = model.by_name, dict[str, Any]()
    is_other = is_of_another_format(by_name)
    if not is_other:
        check_config(by_name)
    try:
        beside = await model.read(MODELOPT) if MODELOPT in by_name else None
        config = parse_config(await model.read(CONFIG), beside) if CONFIG in by_name else config
        if is_other:
            return ModelHead(model.revision, config, {}, frozenset(by_name), 0)
        return await _read_weights(model, config, say)
    except UnfitFileError as error:
        return ModelHead(model.revision, config, {}, frozenset(by_name), 0, fault=str(error))


async def _check_tokenizer(model: Files) -> None:
    """Raise UnfitFileError if a replica could not read the model's tokenizer."""
    check_tokenizer(model.by_name)
    if may_be_pointer(model.by_name[TOKENIZER].size_bytes):
        check_pointer(TOKENIZER, await model.read(TOKENIZER))


async def _read_weights(model: Files, config: Mapping[str, Any], say: Say) -> ModelHead:
    by_name = model.by_name
    if choice := explain_choice(by_name):
        say(choice)
    shards = read_shards(await model.read(INDEX)) if is_indexed(by_name) else None
    files = []
    if shards is not None or any(name.endswith(".safetensors") for name in by_name):
        names = select(by_name, shards)
        check_names(names)
        await _check_tokenizer(model)  # only now: an upload may still be in progress
        files = [by_name[name] for name in names if name.endswith(".safetensors")]
    found = await run_together(model.read_tensors(file.name) for file in files)
    tensors = merge({file.name: one for file, one in zip(files, found, strict=True)})
    num_bytes = sum(file.size_bytes or 0 for file in files)
    return ModelHead(model.revision, config, tensors, frozenset(by_name), num_bytes)


async def resolve(order: Order, source: Source, say: Say) -> Resolved:
    """Return the present revision of a model, its size and its facts. Raises FetchError."""
    async with Client(source.authorize, order.connections, source.certificates) as client:
        try:
            manifest = await source.resolve(client, say)
            if manifest.layers:
                return await _describe_image(client, manifest, say)
            return await _describe_files(RemoteFiles(client, manifest, say), say)
        except RefusedError as error:
            raise source.explain(error) from error


async def _describe_image(client: Client, manifest: Manifest, say: Say) -> Resolved:
    """Return what is known of an image."""
    seen = await look_at_image(client, manifest, say)
    if seen.is_whole:
        found = await _describe_files(seen.list_files(), say)
        if found.num_bytes is None:
            return found
        return found._replace(num_bytes=compute_image_bytes(manifest, found.num_bytes))
    head = seen.guess()
    if head is None:
        say(f"{CONFIG} is not near the start of a layer: nothing is known of the model until it is fetched")
    facts = None if head is None else describe_head(head)
    return Resolved(manifest.revision, len(manifest.layers), compute_image_bytes(manifest, None), facts)


async def _describe_files(model: Files, say: Say) -> Resolved:
    by_name = model.by_name
    try:
        head = await read_head(model, say)
    except NoPartsError:
        say("the server sends files only whole: nothing is known of the model until it is fetched")
        head = None
    facts = None if head is None else describe_head(head)
    if is_of_another_format(by_name) or (head is not None and head.fault is not None):
        return Resolved(model.revision, 0, None, facts)
    index = await model.read(INDEX) if is_indexed(by_name) else None
    sizes = [file.size_bytes for file in choose_files(by_name, index)]
    known = [size for size in sizes if size is not None]
    num_bytes = sum(known) if len(known) == len(sizes) else None
    return Resolved(model.revision, len(sizes), num_bytes, facts)
