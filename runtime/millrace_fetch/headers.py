"""Reads a model's head from its source: config.json, and by ranges the headers of the safetensors files."""

import asyncio
from dataclasses import dataclass

import aiohttp

from millrace_fetch.client import Chunks, Client
from millrace_fetch.errors import CorruptError, RefusedError, SourceError
from millrace_fetch.head import ModelHead, merge, parse_config
from millrace_fetch.manifest import Manifest, RemoteFile
from millrace_fetch.names import check_names
from millrace_fetch.selection import (
    CONFIG,
    INDEX,
    check_config,
    is_of_another_format,
    read_shards,
    select,
)
from millrace_fetch.sources.source import Source, read_small
from millrace_fetch.trying import Say, with_tries
from millrace_fit.errors import HeaderError
from millrace_fit.headers import LENGTH_BYTES, StoredTensor, parse_header, read_length

CONNECTIONS = 4
FIRST_BYTES = 128 << 10
"""Of a file, asked for at once: the header of nearly every file is in them, so one request is enough."""


async def fetch_head(source: Source, say: Say) -> ModelHead:
    """Return a model's head as its source has it now. Raises FetchError."""
    async with Client(source.authorize, CONNECTIONS, source.certificates) as client:
        try:
            return await read_head(client, await source.resolve(client, say), say)
        except RefusedError as error:
            raise source.explain(error) from error


async def read_head(client: Client, manifest: Manifest, say: Say) -> ModelHead:
    """Return the head of the model that a manifest lists. Raises FetchError."""
    if manifest.layers:
        raise SourceError(
            "the model is in layers of an image, which would have to come whole: fetch it with millrace "
            "fetch, and ask about the folder"
        )
    by_name = manifest.by_name()
    if is_of_another_format(by_name):
        config = parse_config(await read_small(client, by_name[CONFIG], say)) if CONFIG in by_name else {}
        return ModelHead(manifest.revision, config, {}, frozenset(by_name), 0)
    check_config(by_name)
    config = parse_config(await read_small(client, by_name[CONFIG], say))
    index = by_name.get(INDEX)
    shards = read_shards(await read_small(client, index, say)) if index else None
    files = []
    if shards is not None or any(name.endswith(".safetensors") for name in by_name):
        names = select(by_name, shards, ())
        check_names(names)
        files = [by_name[name] for name in names if name.endswith(".safetensors")]
    found = await asyncio.gather(*(_read_file(client, file, say) for file in files))
    tensors = merge({file.name: one for file, one in zip(files, found, strict=True)})
    num_bytes = sum(file.size_bytes or 0 for file in files)
    return ModelHead(manifest.revision, config, tensors, frozenset(by_name), num_bytes)


async def _read_file(client: Client, file: RemoteFile, say: Say) -> dict[str, StoredTensor]:
    async def read() -> dict[str, StoredTensor]:
        part = await _read_part(client, file, 0, FIRST_BYTES)
        try:
            end = LENGTH_BYTES + read_length(part.content, part.file_bytes)
            content = part.content
            if len(content) < end:
                content += (await _read_part(client, file, len(content), end)).content
            return parse_header(content[LENGTH_BYTES:end], part.file_bytes)
        except HeaderError as error:
            raise CorruptError(f"{file.name} is no safetensors file that can be read: {error}") from error

    return await with_tries(read, say)


@dataclass(frozen=True)
class _Part:
    content: bytes
    file_bytes: int


async def _read_part(client: Client, file: RemoteFile, begin: int, end: int) -> _Part:
    """Return a file's bytes from `begin` to `end`, or to its own end, and how many it has in all."""
    headers = {"Range": f"bytes={begin}-{end - 1}"}
    async with client.request("GET", file.url, headers) as response:
        file_bytes = _count_bytes(file, response)
        wanted = min(end, file_bytes) - begin
        if response.status != 206 and (begin > 0 or file_bytes > end):
            response.close()
            raise SourceError(
                f"the server gives no part of {file.name}, so all of it would have to come: fetch the model "
                "with millrace fetch, and ask about the folder"
            )
        content = await _read_exactly(file, response, wanted)
        response.close()
    return _Part(content, file_bytes)


def _count_bytes(file: RemoteFile, response: aiohttp.ClientResponse) -> int:
    """Return a file's size, as the answer has it. Raises CorruptError where the source announced another."""
    if response.status == 206:
        total = response.headers.get("Content-Range", "").rpartition("/")[2]
    else:
        total = response.headers.get("Content-Length", "")
    size = int(total) if total.isascii() and total.isdecimal() else file.size_bytes
    if size is None:
        raise SourceError(f"the server does not say how large {file.name} is, so its header can't be checked")
    if file.size_bytes not in (None, size):
        raise CorruptError(
            f"{file.name} came with {size} bytes, and {file.size_bytes} were announced: try it later"
        )
    return size


async def _read_exactly(file: RemoteFile, response: aiohttp.ClientResponse, wanted: int) -> bytes:
    content = bytearray()
    if wanted > 0:
        async for chunk in Chunks(response, wanted):
            content += chunk
            if len(content) >= wanted:
                return bytes(content[:wanted])
        raise CorruptError(f"{file.name} ended {wanted - len(content)} bytes early: try it later")
    return b""
