"""A client of the Kubernetes API in raw dictionaries: requests, and watches that heal themselves."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp

from e2e.cluster.nodes.errors import ApiError
from e2e.cluster.nodes.kubeconfig import ApiServer

Object = dict[str, Any]
log = logging.getLogger(__name__)

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
_WATCH_SECONDS = 300


class KubeClient:
    """Requests to one API server; ApiError for an error status."""

    def __init__(self, server: ApiServer, session: aiohttp.ClientSession) -> None:
        self._server = server
        self._session = session

    async def get(self, path: str, **query: str) -> Object:
        """GET an object or a list."""
        return await self._request("GET", path, query=query)

    async def create(self, path: str, body: Object) -> Object:
        """POST an object to its collection."""
        return await self._request("POST", path, body)

    async def patch(self, path: str, body: Object, kind: str = MERGE_PATCH) -> Object:
        """PATCH an object."""
        return await self._request("PATCH", path, body, content_type=kind)

    async def delete(self, path: str, body: Object | None = None) -> Object:
        """DELETE an object, with DeleteOptions as the body."""
        return await self._request("DELETE", path, body)

    async def watch(self, path: str, version: str) -> AsyncIterator[tuple[str, Object]]:
        """Changes of a collection after a resourceVersion, until the server ends the stream."""
        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(_WATCH_SECONDS)}
        query["allowWatchBookmarks"] = "true"
        timeout = aiohttp.ClientTimeout(sock_read=_WATCH_SECONDS + 30, sock_connect=5)
        async with self._session.get(
            self._server.url + path, params=query, headers=self._headers(), ssl=self._ssl, timeout=timeout
        ) as response:
            await _raise_for_status(response)
            async for line in _lines(response.content):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiError(event["object"].get("code", 500), event["object"].get("message", ""))
                yield event["type"], event["object"]

    @property
    def _ssl(self) -> Any:
        return self._server.ssl_context or True

    def _headers(self, content_type: str = "application/json") -> dict[str, str]:
        token = self._server.token
        headers = {"Content-Type": content_type, "User-Agent": "millrace-node"}
        return headers | ({"Authorization": f"Bearer {token}"} if token else {})

    async def _request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        async with self._session.request(
            method,
            self._server.url + path,
            data=None if body is None else json.dumps(body).encode(),
            params=query,
            headers=self._headers(content_type),
            ssl=self._ssl,
            timeout=aiohttp.ClientTimeout(total=30),
        ) as response:
            await _raise_for_status(response)
            answer: Object = await response.json()
            return answer


async def _raise_for_status(response: aiohttp.ClientResponse) -> None:
    if response.status >= 400:
        text = await response.text()
        try:
            text = json.loads(text)["message"]
        except (ValueError, KeyError, TypeError):
            text = text[:200]
        raise ApiError(response.status, text)


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line


class Watched:
    """A collection kept up to date in memory; `on_change(old, new)` for each difference."""

    def __init__(
        self, client: KubeClient, path: str, on_change: Callable[[Object | None, Object | None], None]
    ) -> None:
        self.objects: dict[str, Object] = {}
        """By uid."""
        self.is_listed = asyncio.Event()
        self._client = client
        self._path = path
        self._on_change = on_change

    async def run(self) -> None:
        """List, watch, and again whenever the stream ends; never returns."""
        version = ""
        while True:
            try:
                version = await self._follow(version or await self._list())
            except ApiError as error:
                log.log(logging.INFO if error.status == 410 else logging.WARNING, "%s: %s", self._path, error)
                version = ""
                await asyncio.sleep(0 if error.status == 410 else 1)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                log.warning("%s: the watch broke (%r); listing again", self._path, error)
                version = ""
                await asyncio.sleep(1)

    async def _list(self) -> str:
        answer = await self._client.get(self._path)
        found = {item["metadata"]["uid"]: item for item in answer["items"]}
        for uid in self.objects.keys() - found.keys():
            self._set(uid, None)
        for uid, item in found.items():
            self._set(uid, item)
        self.is_listed.set()
        return str(answer["metadata"]["resourceVersion"])

    async def _follow(self, version: str) -> str:
        async for kind, item in self._client.watch(self._path, version):
            version = item["metadata"]["resourceVersion"]
            if kind != "BOOKMARK":
                self._set(item["metadata"]["uid"], None if kind == "DELETED" else item)
        return version

    def _set(self, uid: str, new: Object | None) -> None:
        old = self.objects.pop(uid, None)
        if new is not None:
            self.objects[uid] = new
        if (
            old is None
            or new is None
            or old["metadata"]["resourceVersion"] != new["metadata"]["resourceVersion"]
        ):
            self._on_change(old, new)
