"""An OCI registry with one repository, `org/m`, on 127.0.0.1. Its blobs are on another host."""

import base64
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable
from contextlib import AsyncExitStack
from ssl import SSLContext
from typing import Any, Self

from aiohttp import web

from testing.model_sources.servers import Fault, Files, Server

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
TAR = "application/vnd.oci.image.layer.v1.tar"
FILE = "application/octet-stream"
TITLE = "org.opencontainers.image.title"
Entries = dict[str, bytes | tarfile.TarInfo]
"""Of a layer: the bytes of a plain file, or what else is at a path."""


class Registry:
    """Gives each token for a number of requests, where it wants one at all."""

    def __init__(self, context: SSLContext | None = None) -> None:
        self.blobs = Files({})
        self.manifests: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.account: str | None = None
        """Name and password that the token service wants to see."""
        self.wants_basic = False
        self.token_uses: int | None = None
        """None lets everybody in."""
        self.realm = ""
        self.tokens: dict[str, int] = {}
        self.realm_authorizations: list[str | None] = []
        self.realm_faults: list[Fault] = []
        self._registry, self._cdn = Server(self._handle, context), Server(self._send, context)
        self._exits = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._exits.enter_async_context(self._registry)
        await self._exits.enter_async_context(self._cdn)
        self.realm = f"{self._registry.url}/token"
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._exits.aclose()

    @property
    def host(self) -> str:
        return self._registry.url.partition("://")[2]

    @property
    def uri(self) -> str:
        return f"oci://{self.host}/org/m"

    def push(
        self, layers: Iterable[tuple[bytes, str, dict[str, str]]], tag: str = "v1", **more: Any
    ) -> dict[str, Any]:
        """Put an image with these layers there, and return its descriptor."""
        described = []
        for content, kind, annotations in layers:
            descriptor = _describe(content, kind) | {"annotations": annotations}
            self.blobs.contents[descriptor["digest"]] = content
            described.append(descriptor)
        config = _describe(b"{}", "application/vnd.oci.empty.v1+json")
        return self.put(
            {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": described} | more, tag
        )

    def push_files(self, contents: dict[str, bytes], tag: str = "v1") -> dict[str, Any]:
        """As `oras push` does."""
        return self.push([(content, FILE, {TITLE: name}) for name, content in contents.items()], tag)

    def put(self, manifest: dict[str, Any], tag: str) -> dict[str, Any]:
        content = json.dumps(manifest).encode()
        descriptor = _describe(content, manifest["mediaType"])
        self.manifests[tag] = self.manifests[descriptor["digest"]] = content
        return descriptor

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/token":
            return self._give_token(request)
        if not self._is_let_in(request.headers.get("Authorization", "")):
            scope = 'service="registry",scope="repository:org/m:pull"'
            wanted = 'Basic realm="registry"' if self.wants_basic else f'Bearer realm="{self.realm}",{scope}'
            return web.Response(status=401, headers={"WWW-Authenticate": wanted})
        for fault in list(self.faults):
            if answer := fault(request):
                return answer
        _, _, rest = request.path.partition("/v2/org/m/")
        kind, _, reference = rest.partition("/")
        if kind == "blobs":
            target = f"{self._cdn.url}/{reference}?X-Signature=secret-signature"
            return web.Response(status=307, headers={"Location": target})
        assert MANIFEST in request.headers["Accept"]
        if kind != "manifests" or reference not in self.manifests:
            return web.json_response({"errors": [{"code": "MANIFEST_UNKNOWN"}]}, status=404)
        return web.Response(body=self.manifests[reference])

    async def _send(self, request: web.Request) -> web.StreamResponse:
        return await self.blobs.answer(request, request.path.removeprefix("/"))

    def _is_let_in(self, shown: str) -> bool:
        if self.wants_basic:
            return shown == f"Basic {base64.b64encode((self.account or '').encode()).decode()}"
        if self.token_uses is None:
            return True
        token = shown.removeprefix("Bearer ")
        self.tokens[token] = self.tokens.get(token, 0) - 1
        return self.tokens[token] >= 0

    def _give_token(self, request: web.Request) -> web.StreamResponse:
        shown = request.headers.get("Authorization")
        self.realm_authorizations.append(shown)
        for fault in list(self.realm_faults):
            if answer := fault(request):
                return answer
        assert request.query["scope"] == "repository:org/m:pull"
        if self.account and shown != f"Basic {base64.b64encode(self.account.encode()).decode()}":
            return web.Response(status=401)
        token = f"secret-token-{len(self.tokens)}"
        self.tokens[token] = self.token_uses or 0
        return web.json_response({"token": token})


def _describe(content: bytes, kind: str) -> dict[str, Any]:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return {"mediaType": kind, "digest": digest, "size": len(content)}


def make_tar(entries: Entries, *, gzipped: bool = False) -> bytes:
    """A layer of these files, and of entries of other kinds that are given whole."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, entry in entries.items():
            if isinstance(entry, tarfile.TarInfo):
                entry.name = name
                tar.addfile(entry)
                continue
            info = tarfile.TarInfo(name)
            info.size = len(entry)
            tar.addfile(info, io.BytesIO(entry))
    return gzip.compress(buffer.getvalue(), 1) if gzipped else buffer.getvalue()


def make_link(target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    link = tarfile.TarInfo()
    link.type, link.linkname = kind, target
    return link
