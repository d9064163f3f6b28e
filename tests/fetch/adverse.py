"""Sources that mean ill, each with what a test has to change of it."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from testing.model_sources.registry import TAR, Registry, make_tar
from testing.model_sources.s3_server import S3Server, running_moto
from testing.model_sources.servers import FakeHub, Fault, WebFolderServer
from tests.fetch.conftest import Fetcher


@dataclass(frozen=True)
class Adverse:
    """A model's server, whose parts can be made to misbehave."""

    uri: str
    lists: list[Fault]
    """What goes wrong where its files are named."""
    sends: list[Fault]
    """What goes wrong where their bytes are."""
    send_instead: Callable[[str, Callable[[bytes], bytes]], str]
    """Change a file's bytes, but not what is said of them; return what an error calls the file."""
    endpoint: str = ""
    """Where a bucket is, as the environment has to say."""


Serving = Callable[[Fetcher, dict[str, bytes]], AbstractAsyncContextManager[Adverse]]


@asynccontextmanager
async def adverse_hub(fetcher: Fetcher, contents: dict[str, bytes]) -> AsyncIterator[Adverse]:
    """A Hub."""
    async with FakeHub(contents) as hub:
        fetcher.endpoint = hub.endpoint

        def send_instead(name: str, change: Callable[[bytes], bytes]) -> str:
            hub.announced[name] = contents[name]
            contents[name] = change(contents[name])
            return name

        yield Adverse("hf://org/m", hub.api_faults, hub.large.faults, send_instead)


@asynccontextmanager
async def adverse_s3(_fetcher: Fetcher, contents: dict[str, bytes]) -> AsyncIterator[Adverse]:
    """A bucket."""
    with running_moto() as bucket:
        bucket.fill(contents)
        async with S3Server(bucket.endpoint) as server:

            def send_instead(name: str, change: Callable[[bytes], bytes]) -> str:
                etag = f'"{hashlib.md5(contents[name]).hexdigest()}"'
                sends.append(_answer_instead(name, change(contents[name]), etag))
                return name

            lists, sends = list[Fault](), list[Fault]()
            server.faults += [_only(lists, is_list=True), _only(sends, is_list=False)]
            yield Adverse("s3://models/org/m", lists, sends, send_instead, server.endpoint)


def _answer_instead(name: str, body: bytes, etag: str) -> Fault:
    def fault(request: web.Request) -> web.StreamResponse | None:
        is_asked = request.method == "GET" and request.path.endswith(name)
        return web.Response(body=body, headers={"ETag": etag}) if is_asked else None

    return fault


def _only(faults: list[Fault], *, is_list: bool) -> Fault:
    def fault(request: web.Request) -> web.StreamResponse | None:
        if ("list-type" in request.query) is not is_list:
            return None
        return next((answer for fault in list(faults) if (answer := fault(request))), None)

    return fault


@asynccontextmanager
async def adverse_artifact(_fetcher: Fetcher, contents: dict[str, bytes]) -> AsyncIterator[Adverse]:
    """A registry whose layers are files."""
    async with Registry() as registry:
        registry.push_files(contents)

        def send_instead(name: str, change: Callable[[bytes], bytes]) -> str:
            digest = f"sha256:{hashlib.sha256(contents[name]).hexdigest()}"
            registry.blobs.contents[digest] = change(contents[name])
            return name

        yield Adverse(f"{registry.uri}:v1", registry.faults, registry.blobs.faults, send_instead)


@asynccontextmanager
async def adverse_image(_fetcher: Fetcher, contents: dict[str, bytes]) -> AsyncIterator[Adverse]:
    """A registry whose one layer has the files."""
    async with Registry() as registry:
        layer = make_tar({f"models/{name}": content for name, content in contents.items()})
        registry.push([(layer, TAR, {})])

        def send_instead(_name: str, change: Callable[[bytes], bytes]) -> str:
            (digest,) = registry.blobs.contents
            registry.blobs.contents[digest] = change(layer)
            return digest.removeprefix("sha256:")

        yield Adverse(f"{registry.uri}:v1", registry.faults, registry.blobs.faults, send_instead)


@asynccontextmanager
async def adverse_folder(_fetcher: Fetcher, contents: dict[str, bytes]) -> AsyncIterator[Adverse]:
    """A folder of a web server. It announces nothing but what it sends."""
    async with WebFolderServer(contents) as server:
        faults = server.files.faults

        def send_instead(name: str, change: Callable[[bytes], bytes]) -> str:
            faults.append(_answer_instead(name, change(contents[name]), server.files.etag_of(name)))
            return name

        yield Adverse(server.uri, faults, faults, send_instead)


SERVINGS: dict[str, Serving] = {
    "hub": adverse_hub,
    "s3": adverse_s3,
    "oci artifact": adverse_artifact,
    "oci image": adverse_image,
    "web": adverse_folder,
}


@asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """A host that takes connections and says nothing. Gives its address, without a scheme."""
    connections: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: connections.append(writer), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        for writer in connections:
            writer.close()
        server.close()
        await server.wait_closed()
