"""A plain web server with faults, and a Hub whose large files are on another host, all on 127.0.0.1."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from ssl import SSLContext
from types import TracebackType
from typing import Any, Self

from aiohttp import web

Fault = Callable[[web.Request], web.StreamResponse | None]


@dataclass
class Files:
    """What a server has, how it misbehaves, and what it was asked."""

    contents: dict[str, bytes]
    etags: dict[str, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    cuts: Counter[str] = field(default_factory=Counter)
    """How often a file's body is still to be cut in its middle."""
    break_bytes: int | None = None
    """After which each longer body is cut."""
    silent_seconds: float = 0.0
    """Before such a cut."""
    excess: bytes = b""
    has_ranges: bool = True
    has_lengths: bool = True
    changed: dict[str, dict[str, str | None]] = field(default_factory=dict)
    """Other headers in the answers to a method; None: an absent one."""
    allows_head: bool = True
    bytes_per_second: float | None = None
    chunk_bytes: int = 1 << 18
    """What is sent at once."""
    sent: Counter[str] = field(default_factory=Counter)
    requests: list[tuple[str, str]] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    on_sent: Callable[[str], None] | None = None
    ranges: list[tuple[str, int, int]] = field(default_factory=list)
    """A file's name, and from which byte up to which it was asked for."""
    open: Counter[str] = field(default_factory=Counter)
    most_open: Counter[str] = field(default_factory=Counter)
    """The bodies of a file that were being sent at the same time."""

    def become(self, contents: dict[str, bytes]) -> None:
        """Have these files from now on."""
        kept = dict(contents)
        self.contents.clear()
        self.contents.update(kept)

    def etag_of(self, name: str, content: bytes | None = None) -> str:
        content = self.contents[name] if content is None else content
        return self.etags.get(name) or f'"{hashlib.sha1(content).hexdigest()}"'

    async def answer(
        self,
        request: web.Request,
        name: str,
        contents: dict[str, bytes] | None = None,
        headers: dict[str, str] | None = None,
    ) -> web.StreamResponse:
        """Answer from `contents`, where these are others than what the server has now."""
        self.requests.append((request.method, name))
        self.authorizations.append(request.headers.get("Authorization"))
        for fault in list(self.faults):
            if answer := fault(request):
                return answer
        if request.method == "HEAD" and not self.allows_head:
            return web.Response(status=403)
        known = self.contents if contents is None else contents
        if name not in known:
            return web.Response(status=404)
        return await self._send(request, name, known[name], headers or {})

    async def _send(
        self, request: web.Request, name: str, content: bytes, headers: dict[str, str]
    ) -> web.StreamResponse:
        etag = self.etag_of(name, content)
        response = web.StreamResponse(headers={"ETag": etag} | headers)
        for header, value in self.changed.get(request.method, {}).items():
            response.headers.popall(header, None)
            response.headers.update({} if value is None else {header: value})
        if_range = request.headers.get("If-Range", etag)
        body = content
        if self.has_ranges:
            response.headers["Accept-Ranges"] = "bytes"
            if "Range" in request.headers and if_range == etag:
                first, _, last = request.headers["Range"].removeprefix("bytes=").partition("-")
                body = content[int(first) : int(last) + 1]
                self.ranges.append((name, int(first), int(last) + 1))
                response.set_status(206)
                response.headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        if self.has_lengths:
            response.content_length = len(body) + len(self.excess)
        else:
            response.enable_chunked_encoding()
        await response.prepare(request)
        if request.method != "HEAD":
            with self._counting(name):
                await self._write(request, response, name, body + self.excess)
        return response

    @contextmanager
    def _counting(self, name: str) -> Iterator[None]:
        self.open[name] += 1
        self.most_open[name] = max(self.most_open[name], self.open[name])
        try:
            yield
        finally:
            self.open[name] -= 1

    async def _write(
        self, request: web.Request, response: web.StreamResponse, name: str, body: bytes
    ) -> None:
        end = len(body)
        is_cut = self.cuts[name] > 0
        if is_cut:
            self.cuts[name] -= 1
            end //= 2
        elif self.break_bytes is not None and self.break_bytes < end:
            is_cut, end = True, self.break_bytes
        for start in range(0, end, self.chunk_bytes):
            chunk = body[start : min(start + self.chunk_bytes, end)]
            await response.write(chunk)
            self.sent[name] += len(chunk)
            if self.on_sent:
                self.on_sent(name)
            if self.bytes_per_second:
                await asyncio.sleep(len(chunk) / self.bytes_per_second)
        if is_cut:
            await asyncio.sleep(self.silent_seconds)
            if request.transport:  # else the client has given up the connection meanwhile
                request.transport.abort()


class Server:
    """Serves requests at a free port."""

    def __init__(self, handler: Callable[[web.Request], Any], context: SSLContext | None = None) -> None:
        self._context = context
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        self.url = ""

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._context)
        await site.start()
        scheme = "https" if self._context else "http"
        self.url = f"{scheme}://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()
        await asyncio.sleep(0.01)  # a connection that was being accepted closes in the loop's next turns


class WebFolderServer:
    """A folder `/models/m/` of a plain web server."""

    def __init__(self, contents: dict[str, bytes], context: SSLContext | None = None) -> None:
        self.files = Files(contents)
        self._server = Server(self._handle, context)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        return await self.files.answer(request, request.path.removeprefix("/models/m/"))

    @property
    def uri(self) -> str:
        return f"{self._server.url}/models/m"

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.__aexit__(None, None, None)


class FakeHub:
    """Has one repository, `org/m`, as the Hub's API describes it. Files over 1 kB are on the other host."""

    def __init__(
        self, contents: dict[str, bytes], context: SSLContext | None = None, *, is_cdn_plain: bool = False
    ) -> None:
        self.files = Files(contents)
        self.large = Files(contents)
        self.commit = "1" * 40
        self.older: dict[str, dict[str, bytes]] = {}
        """Commits that the branch has left behind, each with the files that it had."""
        self.revisions = {"main", self.commit}
        self.token: str | None = None
        """Who shows none may read the API, as with gated repositories, and no file."""
        self.api_faults: list[Fault] = []
        self.num_api_requests = 0
        self.announced: dict[str, bytes] = {}
        """Contents that the API speaks of, where they are others than those sent."""
        self.has_hashes = True
        """Whether the API gives a file's size and hash beside its name."""
        self.hangs = False
        self._server = Server(self._handle, context)
        self._cdn = Server(self._send_large, None if is_cdn_plain else context)
        self._exits = AsyncExitStack()

    @property
    def endpoint(self) -> str:
        return self._server.url

    @property
    def large_host(self) -> str:
        return self._cdn.url

    async def __aenter__(self) -> Self:
        await self._exits.enter_async_context(self._server)
        await self._exits.enter_async_context(self._cdn)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._exits.aclose()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path.startswith("/api/models/"):
            if self.hangs:
                self.num_api_requests += 1
                await asyncio.sleep(60)
            return self._describe(request, path.removeprefix("/api/models/"))
        repository, _, rest = path.removeprefix("/").partition("/resolve/")
        assert repository == "org/m", f"{path} is none of ours to ask for"
        commit, _, name = rest.partition("/")
        assert commit in {self.commit, *self.older}
        return await self._resolve(request, commit, name)

    def _describe(self, request: web.Request, path: str) -> web.StreamResponse:
        self.num_api_requests += 1
        for fault in list(self.api_faults):
            if answer := fault(request):
                return answer
        is_tree = "/tree/" in path
        repository, _, revision = path.partition("/tree/" if is_tree else "/revision/")
        if repository != "org/m":
            return web.json_response({}, status=404, headers={"X-Error-Code": "RepoNotFound"})
        if (revision or "main") not in {*self.revisions, *self.older}:
            return web.json_response({}, status=404, headers={"X-Error-Code": "RevisionNotFound"})
        sha = revision if revision in self.older else self.commit
        contents = self._contents_at(sha) | self.announced
        if is_tree:  # what huggingface_hub asks for, and ours does not
            return web.json_response([_entry(name, content) for name, content in contents.items()])
        siblings = [_sibling(name, content) for name, content in contents.items()]
        if not request.query.get("blobs") or not self.has_hashes:
            siblings = [{"rfilename": sibling["rfilename"]} for sibling in siblings]
        return web.json_response({"id": "org/m", "sha": sha, "siblings": siblings})

    def move_on(self, commit: str, changed: dict[str, bytes] | None = None) -> None:
        """Let the branch go on to another commit, in which these files are new or others."""
        self.older[self.commit] = dict(self.files.contents)
        self.commit = commit
        self.revisions = {"main", commit}
        for contents in (self.files.contents, self.large.contents):
            contents.update(changed or {})

    def become(self, commit: str, contents: dict[str, bytes]) -> None:
        """Let the branch be another commit, with these files alone. Nobody asks for the one before."""
        for files in (self.files, self.large):
            files.become(contents)
        self.commit, self.revisions = commit, {"main", commit}

    def _contents_at(self, commit: str) -> dict[str, bytes]:
        return self.older.get(commit, self.files.contents)

    async def _resolve(self, request: web.Request, commit: str, name: str) -> web.StreamResponse:
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.Response(status=401, headers={"X-Error-Code": "GatedRepo"})
        contents = self._contents_at(commit)
        if len(contents.get(name, b"")) > 1000:
            self.files.authorizations.append(request.headers.get("Authorization"))
            target = f"{self._cdn.url}/{commit}/{name}?X-Signature=secret-signature"
            linked = {
                "X-Linked-Size": f"{len(contents[name])}",
                "X-Linked-ETag": f'"{hashlib.sha256(contents[name]).hexdigest()}"',
            }
            return web.Response(status=302, headers={"Location": target, "X-Repo-Commit": commit} | linked)
        return await self.files.answer(request, name, contents, {"X-Repo-Commit": commit})

    async def _send_large(self, request: web.Request) -> web.StreamResponse:
        commit, _, name = request.path.removeprefix("/").partition("/")
        return await self.large.answer(request, name, self.older.get(commit))


def _sibling(name: str, content: bytes) -> dict[str, Any]:
    """Return a file as the API lists it among a model's."""
    sibling: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": _blob_id(content)}
    return sibling | _lfs("sha256", content)


def _entry(name: str, content: bytes) -> dict[str, Any]:
    """Return a file as the API lists it in a folder."""
    entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content), "oid": _blob_id(content)}
    return entry | _lfs("oid", content)


def _blob_id(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


def _lfs(name: str, content: bytes) -> dict[str, Any]:
    """Return what is said of a file that is on the other host. Its hash has one of two names."""
    if len(content) <= 1000:
        return {}
    return {
        "lfs": {"size": len(content), name: hashlib.sha256(content).hexdigest(), "pointerSize": 134},
    }


def once(answer: Callable[[], web.StreamResponse], count: int = 1) -> Fault:
    """A fault that the first requests meet."""
    left = iter(range(count))

    def fault(_: web.Request) -> web.StreamResponse | None:
        return None if next(left, None) is None else answer()

    return fault
