"""A small API server: lists, watches, expires versions and cuts streams on demand."""

import asyncio
import json
from collections import defaultdict
from typing import Any

from aiohttp import web

_WATCH_PARAMETERS = {"resourceVersion", "timeoutSeconds", "allowWatchBookmarks"}
"""What every watch has to say: from where, for how long, and that it knows bookmarks."""


class FakeApiServer:
    """Collections by path. Real HTTP; only the storage is a dict."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        self.requests: list[dict[str, str]] = []
        self.tokens: list[str | None] = []
        self.user_agents: list[str | None] = []
        self.failures: list[int] = []
        """Statuses to answer the next requests with."""
        self.refused: dict[str, int] = {}
        """By path, the status to answer every request with."""
        self.num_ignored = 0
        """How many of the next requests are never answered."""
        self.version = 10
        self._streams: dict[str, list[asyncio.Queue[bytes | None]]] = defaultdict(list)

    def put(self, path: str, item: dict[str, Any]) -> None:
        known = self.objects[path]
        uid = item["metadata"]["uid"]
        self.send(path, "MODIFIED" if uid in known else "ADDED", self._stamp(item))
        known[uid] = item

    def remove(self, path: str, item: dict[str, Any]) -> None:
        self.objects[path].pop(item["metadata"]["uid"])
        self.send(path, "DELETED", self._stamp(item))

    def send(self, path: str, kind: str, item: dict[str, Any]) -> None:
        self.send_raw(path, json.dumps({"type": kind, "object": item}).encode() + b"\n")

    def send_raw(self, path: str, line: bytes) -> None:
        for stream in self._streams[path]:
            stream.put_nowait(line)

    def expire(self, path: str) -> None:
        """End the streams as a server does whose history no longer reaches back."""
        self.send(path, "ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"})
        self.cut(path)

    def cut(self, path: str) -> None:
        """Break the streams' connections."""
        for stream in self._streams[path]:
            stream.put_nowait(None)

    def finish(self, path: str) -> None:
        """End the streams as a server does whose time is up."""
        for stream in self._streams[path]:
            stream.put_nowait(b"")

    def num_streams(self, path: str) -> int:
        return len(self._streams[path])

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(dict(request.query) | {"path": request.path})
        self.tokens.append(request.headers.get("Authorization"))
        self.user_agents.append(request.headers.get("User-Agent"))
        status = self.failures.pop(0) if self.failures else self.refused.get(request.path)
        if status:
            return web.json_response({"kind": "Status", "message": f"told to say {status}"}, status=status)
        if self.num_ignored:
            self.num_ignored -= 1
            await asyncio.Event().wait()
        if request.query.get("watch"):
            return await self._stream(request)
        return self._list(request)

    def _list(self, request: web.Request) -> web.Response:
        begin = int(request.query.get("continue", "0"))
        items = list(self.objects[request.path].values())
        limit = int(request.query.get("limit", "0")) or len(items)
        page = items[begin : begin + limit]
        end = begin + len(page)
        metadata = {"resourceVersion": str(self.version), "continue": str(end) if end < len(items) else ""}
        return web.json_response({"metadata": metadata, "items": page})

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        if missing := _WATCH_PARAMETERS - request.query.keys():
            return web.json_response({"message": f"a watch without {sorted(missing)}"}, status=400)
        response = web.StreamResponse()
        await response.prepare(request)
        events: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._streams[request.path].append(events)
        try:
            while line := await events.get():
                await response.write(line)
            if line is None and request.transport is not None:
                request.transport.abort()
        finally:
            self._streams[request.path].remove(events)
        return response

    def _stamp(self, item: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        return item
