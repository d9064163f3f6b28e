"""An S3 server on 127.0.0.1: moto has the buckets, and a front counts, checks signatures and fails."""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import cache
from ssl import SSLContext
from typing import Any, Self

import aiohttp
from aiohttp import web
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer
from yarl import URL

from testing.model_sources.servers import Fault, Server

KEY_ID, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI-secret"
ACCOUNT = {
    "AWS_ACCESS_KEY_ID": KEY_ID,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}
"""The environment of who may read."""


class Bucket:
    """The bucket `models` of a moto, as that has it in this process: its owner needs no request."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.backend: Any = s3_backends["123456789012"]["aws"]

    def fill(self, contents: dict[str, bytes]) -> None:
        """Have these files below `org/m/`, and nothing else."""
        self.backend.reset()
        self.backend.create_bucket("models", "us-east-1")
        for name, content in contents.items():
            self.put(f"org/m/{name}", content)

    def show(self, contents: dict[str, bytes]) -> None:
        """Have these files below `org/m/`, and of the others none, while others read."""
        objects = self.backend.buckets["models"].keys
        for key in set(objects) - {f"org/m/{name}" for name in contents}:
            self.backend.delete_object("models", key)
        for name, content in contents.items():
            self.put(f"org/m/{name}", content)

    def put(self, key: str, content: bytes) -> None:
        """Have an object."""
        self.backend.put_object("models", key, content)


@contextmanager
def running_moto() -> Iterator[Bucket]:
    """Have the moto of this process, which serves one bucket at a time: each user of it empties it first."""
    bucket = _start_moto()
    try:
        yield bucket
    finally:
        bucket.backend.reset()


@cache
def _start_moto() -> Bucket:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    return Bucket(f"http://{host}:{port}")


class S3Server:
    """One bucket, `models`."""

    def __init__(self, moto: str, context: SSLContext | None = None) -> None:
        self._moto = moto
        self._server = Server(self._handle, context)
        self._exits = AsyncExitStack()
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str]] = []
        self.ranges: list[tuple[str, str, str]] = []
        """Method, path and range of each request for a part."""
        self.signatures: list[str | None] = []
        """The access key of each request; None where it has no signature."""
        self.checks_signatures = True
        self.sent: Counter[str] = Counter()
        self.bytes_per_second: float | None = None
        self.on_sent: Callable[[str], None] | None = None

    @property
    def endpoint(self) -> str:
        return self._server.url

    async def __aenter__(self) -> Self:
        await self._exits.enter_async_context(self._server)
        timeout = aiohttp.ClientTimeout(total=20)
        self._session = await self._exits.enter_async_context(
            aiohttp.ClientSession(timeout=timeout, auto_decompress=False)
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._exits.aclose()

    def num_lists(self) -> int:
        return sum("list-type=2" in query for _, query in self.requests)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, f"{request.path}?{request.query_string}"))
        if asked := request.headers.get("Range"):
            self.ranges.append((request.method, request.path, asked))
        self.signatures.append(find_access_key(request))
        if self.signatures[-1] and self.checks_signatures and not is_signed(request):
            return refuse(403, "SignatureDoesNotMatch")
        for fault in list(self.faults):
            if answer := fault(request):
                return answer
        return await self._forward(request)

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() in _PASSED}
        headers["Authorization"] = _OWNER
        url = URL(self._moto + request.raw_path, encoded=True)
        async with self._session.request(request.method, url, headers=headers) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _OWN}
            response = web.StreamResponse(status=answer.status, headers=kept)
            if length := answer.headers.get("Content-Length"):
                response.content_length = int(length)
            await response.prepare(request)
            async for chunk in answer.content.iter_chunked(1 << 16):
                await response.write(chunk)
                self.sent[request.path.rpartition("/")[2]] += len(chunk)
                if self.on_sent:
                    self.on_sent(request.path)
                if self.bytes_per_second:
                    await asyncio.sleep(len(chunk) / self.bytes_per_second)
            return response


_PASSED = ("range", "if-range", "x-amz-checksum-mode")
_OWNER = (
    "AWS4-HMAC-SHA256 Credential=owner/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
)
"""moto lets nobody else read."""
_OWN = ("content-length", "transfer-encoding", "connection", "date", "server")


def refuse(status: int, code: str) -> web.Response:
    """An error as S3 writes it; without a code, a page of some other server."""
    if not code:
        return web.Response(status=status, text="<html>", content_type="text/html")
    text = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>words</Message></Error>'
    return web.Response(status=status, text=text, content_type="application/xml")


def find_access_key(request: web.Request) -> str | None:
    found = re.search(r"Credential=([^/]+)/", request.headers.get("Authorization", ""))
    return found[1] if found else None


def is_signed(request: web.Request) -> bool:
    """Sign the request again with the secret, and compare."""
    shown = request.headers["Authorization"]
    names = re.findall(r"SignedHeaders=([^,]+)", shown)[0].split(";")
    region = re.findall(r"Credential=[^/]+/\d+/([^/]+)/s3/", shown)[0]
    auth = S3SigV4Auth(Credentials(KEY_ID, SECRET), "s3", region)
    url = f"http://{request.host}{request.raw_path}"
    again = AWSRequest(request.method, url, {name: request.headers[name] for name in names})
    again.context["timestamp"] = request.headers["X-Amz-Date"]
    canonical = auth.canonical_request(again)
    signature = auth.signature(auth.string_to_sign(again, canonical), again)
    return bool(shown.endswith(f"Signature={signature}"))
