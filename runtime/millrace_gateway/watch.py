"""Follows one kind of object: list, then watch, for as long as the gateway lives.

Whatever fails (an expired resourceVersion, a cut stream, an API server that is down) is tried again after a
jittered, growing pause; what was last known stays in force meanwhile.
"""

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import aiohttp

from millrace_gateway.credentials import ClusterAccess
from millrace_gateway.errors import ApiError, ExpiredError
from millrace_gateway.objects import Object

logger = logging.getLogger(__name__)

LIST_PAGE = 500
STREAM_SECONDS = 60  # a stream's length: a silent dead connection is noticed as soon
GRACE_SECONDS = 10
BRIEF_SECONDS = 1.0  # a stream that ends sooner counts as a failure
MAX_BACKOFF_SECONDS = 20.0

_UNREACHABLE = (ApiError, aiohttp.ClientError, OSError, TimeoutError)
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True)
class Source:
    """What to follow."""

    path: str
    """The collection's path, as `/api/v1/pods`."""
    label_selector: str = ""
    """Which of its objects."""


@dataclass(frozen=True)
class Sink:
    """Who is told."""

    replace: Callable[[Iterable[Object]], None]
    """Takes each whole list."""
    apply: Callable[[Object], None]
    """Takes an added or modified object."""
    delete: Callable[[Object], None]
    """Takes a deleted object as it last was."""


def backoff_seconds(num_failures: int, draw: float) -> float:
    """Return the pause after so many failures in a row; `draw` in [0, 1) spreads it over its upper half."""
    longest = min(MAX_BACKOFF_SECONDS, 0.2 * 2.0 ** min(num_failures - 1, 16))
    return longest * (0.5 + draw / 2)


class Watch:
    """Follows one collection and tells its sink."""

    def __init__(
        self, session: aiohttp.ClientSession, access: ClusterAccess, source: Source, sink: Sink
    ) -> None:
        self._session = session
        self._access = access
        self._source = source
        self._sink = sink
        self._version: str | None = None
        self._num_failures = 0

    async def run(self, on_sync: Callable[[], None]) -> None:
        """Follow until cancelled; calls `on_sync` after each whole list."""
        while True:
            try:
                if self._version is None:
                    await self._list()
                    on_sync()
                await self._follow()
            except ExpiredError as error:
                self._version = None
                await self._pause(error)
            except (*_UNREACHABLE, *_MALFORMED) as error:
                await self._pause(error)

    async def _pause(self, error: Exception) -> None:
        self._num_failures += 1
        seconds = backoff_seconds(self._num_failures, random.random())  # noqa: S311  spreads load, keeps no secret
        logger.warning("watching %s: %r; again in %.1f s", self._source.path, error, seconds)
        await asyncio.sleep(seconds)

    async def _list(self) -> None:
        items: list[Object] = []
        token = ""
        while True:
            page = await self._fetch_page(token)
            items.extend(page.get("items") or ())
            token = page["metadata"].get("continue") or ""
            if not token:
                break
        self._sink.replace(items)
        self._version = page["metadata"]["resourceVersion"]
        logger.info("watching %s: %d objects", self._source.path, len(items))

    async def _fetch_page(self, token: str) -> Mapping[str, Any]:
        parameters = {"limit": str(LIST_PAGE)} | ({"continue": token} if token else {})
        timeout = aiohttp.ClientTimeout(total=STREAM_SECONDS)
        async with self._get(parameters, timeout) as response:
            await _check(response)
            page: Mapping[str, Any] = json.loads(await response.read())
        return page

    async def _follow(self) -> None:
        seconds = int(STREAM_SECONDS * (0.75 + random.random() / 2))  # noqa: S311  spreads load, keeps no secret
        parameters = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version or "",
            "timeoutSeconds": str(seconds),
        }
        began = asyncio.get_running_loop().time()
        async with self._get(parameters, aiohttp.ClientTimeout(total=seconds + GRACE_SECONDS)) as response:
            await _check(response)
            async for line in _split_lines(response.content):
                self._take(json.loads(line))
        if asyncio.get_running_loop().time() - began < BRIEF_SECONDS:
            raise ApiError("the stream ended at once")
        self._num_failures = 0

    def _take(self, event: Mapping[str, Any]) -> None:
        kind, item = event["type"], event["object"]
        if kind == "ERROR":
            raise _make_error(item.get("code", 500), item.get("message", "the stream broke"))
        if kind == "DELETED":
            self._sink.delete(item)
        elif kind != "BOOKMARK":
            self._sink.apply(item)
        self._version = item["metadata"]["resourceVersion"]
        self._num_failures = 0

    def _get(
        self, parameters: dict[str, str], timeout: aiohttp.ClientTimeout
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        if self._source.label_selector:
            parameters["labelSelector"] = self._source.label_selector
        return self._session.get(
            f"{self._access.server}{self._source.path}",
            params=parameters,
            headers=self._access.headers(),
            ssl=self._access.tls or True,
            timeout=timeout,
        )


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status == 200:
        return
    try:
        message = json.loads(await response.read())["message"]
    except (ValueError, KeyError, TypeError):
        message = response.reason or "no reason given"
    raise _make_error(response.status, message)


def _make_error(code: int, message: str) -> ApiError:
    kind = ExpiredError if code == 410 else ApiError
    return kind(f"the API server answered {code}: {message}")


async def _split_lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield whole lines of any length; a piece cut off at the end is dropped, for it will come again."""
    rest = bytearray()
    async for chunk in stream.iter_any():
        rest += chunk
        while (end := rest.find(b"\n")) >= 0:
            line = bytes(rest[:end])
            del rest[: end + 1]
            if line:
                yield line
