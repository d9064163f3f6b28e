"""Sources whose certificate an authority of their owner's has signed, as inside a company."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from testing.model_sources.authority import Authority
from testing.model_sources.registry import Registry
from testing.model_sources.s3_server import S3Server, running_moto
from testing.model_sources.servers import FakeHub, WebFolderServer
from tests.fetch.conftest import Fetcher, make_model

Serve = Callable[[Fetcher, Authority], AbstractAsyncContextManager[str]]
"""Serves a model over TLS, and hands out its URI. The fetcher's endpoint is set where there is one."""


@asynccontextmanager
async def serve_hub(fetcher: Fetcher, authority: Authority) -> AsyncIterator[str]:
    async with FakeHub(make_model(), authority.context()) as hub:
        fetcher.endpoint = hub.endpoint
        yield "hf://org/m"


@asynccontextmanager
async def serve_s3(fetcher: Fetcher, authority: Authority) -> AsyncIterator[str]:
    with running_moto() as bucket:
        bucket.fill(make_model())
        async with S3Server(bucket.endpoint, authority.context()) as server:
            fetcher.endpoint = server.endpoint
            yield "s3://models/org/m"


@asynccontextmanager
async def serve_web(_: Fetcher, authority: Authority) -> AsyncIterator[str]:
    async with WebFolderServer(make_model(), authority.context()) as server:
        yield server.uri


@asynccontextmanager
async def serve_oci(_: Fetcher, authority: Authority) -> AsyncIterator[str]:
    async with Registry(authority.context()) as registry:
        registry.token_uses = 20
        registry.push_files(make_model())
        yield f"{registry.uri}:v1"
