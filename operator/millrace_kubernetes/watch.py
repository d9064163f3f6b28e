"""Follows one collection of objects for as long as the program lives: a list, then a watch.

After any failure (an expired resourceVersion, a cut stream, an API server that is down) it retries with an
exponential backoff with jitter. The last known objects stay valid meanwhile. It logs an error of the sink
with its traceback. After a failure at a list, or at a line of a watch, the next attempt lists again.
"""

import asyncio
import gc
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import aiohttp
import orjson

from millrace_kubernetes.collection import Object, Sink, Source
from millrace_kubernetes.connection import Connection
from millrace_kubernetes.connection_failures import describe_failure
from millrace_kubernetes.errors import (
    ApiError,
    ExpiredError,
    KubernetesError,
    MalformedError,
    SinkError,
    StreamEndedError,
    make_api_error,
)

logger = logging.getLogger(__name__)

SLICE = 64  # steps of a sink that run without a pause: about a millisecond
STREAM_SECONDS = 60  # a stream's mean length: each is drawn from 45 to 75 s
GRACE_SECONDS = 10  # a dead connection is noticed this long after the stream should have ended: up to 85 s
BRIEF_SECONDS = 1.0  # a stream that ends sooner counts as a failure; a longer one resets the backoff
MAX_BACKOFF_SECONDS = 20.0

REFUSED_STATUS = 403
"""We have no right to read. A 401 ends with the next token, a 404 when the definition is there."""
ABSENT_STATUS = 404
_UNREACHABLE = (KubernetesError, aiohttp.ClientError, OSError, TimeoutError)


def backoff_seconds(num_failures: int, draw: float, most: float = MAX_BACKOFF_SECONDS) -> float:
    """Return the backoff after some failures in a row; `draw` in [0, 1) spreads it over its upper half."""
    longest = min(most, 0.2 * 2.0 ** min(num_failures - 1, 16))
    return longest * (0.5 + draw / 2)


class _Page(NamedTuple):
    items: list[Object]
    token: str
    """The token of the next page; empty after the last one."""
    version: str
    """The list's resourceVersion."""


class _Event(NamedTuple):
    kind: str
    item: Object
    version: str


@contextmanager
def _pausing_collection() -> Iterator[None]:
    """Collect no garbage inside.

    A page makes a hundred thousand objects at once, so Python would look through all objects of the program
    several times, 0.1 s each in one with many. References alone free them.
    """
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()


@contextmanager
def _parsing(what: str) -> Iterator[None]:
    """Raise MalformedError in place of the errors of parsing inside."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MalformedError(f"no {what}: {error!r}") from error


def _parse_page(body: bytes) -> _Page:
    with _parsing("list"):
        page = orjson.loads(body)
        items, metadata = page.get("items") or [], page["metadata"]
        return _Page(items, metadata.get("continue") or "", str(metadata["resourceVersion"]))


def _parse_event(line: bytes) -> _Event:
    """Return a watch's event. Raises ApiError for an ERROR event, MalformedError if it is no event."""
    with _parsing("event"):
        event = orjson.loads(line)
        kind, item = event["type"], event["object"]
        if kind == "ERROR":
            raise make_api_error(item.get("code", 500), item.get("message", "the stream broke"))
        return _Event(kind, item, str(item["metadata"]["resourceVersion"]))


class Watch:
    """Follows one collection and reports each change to its sink."""

    def __init__(
        self,
        connection: Connection,
        source: Source,
        sink: Sink,
        *,
        max_backoff_seconds: float = MAX_BACKOFF_SECONDS,
        on_refused: Callable[[], None] = lambda: None,
        is_optional: bool = False,
        on_life: Callable[[], None] = lambda: None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """The watch calls `on_refused` whenever the API server does not let us read.

        A collection that `is_optional` may also be absent, which counts as a refusal too. The watch logs that
        once, because there may never be a Role for it.

        It calls `on_life` for each list, for each line of a stream, bookmarks too, and at the end of each
        attempt: later attempts report the changes of an API server that was away. It does not call it if the
        sink fails or the answer cannot be read: then no change arrives, however often the watch retries.

        It calls `on_failure` after that if the attempt has failed. So a call of `on_life` alone is a success.
        """
        self._on_refused = on_refused
        self._is_optional = is_optional
        self._on_life = on_life
        self._on_failure = on_failure
        self._has_logged_absence = False
        """Whether the watch has logged that the optional collection is absent."""
        self._connection = connection
        self._source = source
        self._sink = sink
        self._max_backoff_seconds = max_backoff_seconds
        self._version: str | None = None
        self._num_failures = 0
        self._is_fresh = False
        """Whether the version is of a list that no stream has followed for long."""

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            is_listing = self._version is None
            try:
                if self._version is None:
                    self._version = await self._list()
                    self._is_fresh = True
                is_listing = False
                await self._follow(self._version)
                self._on_life()
            except ExpiredError as error:
                self._on_life()
                self._version = None
                if not (self._is_fresh or is_listing):
                    # The API server is back: the next list has the changes that the watch has missed.
                    self._num_failures = 0
                await self._pause(error)
            except _UNREACHABLE as error:
                if self._is_refusal(error):
                    self._on_refused()
                if not isinstance(error, MalformedError | SinkError):
                    self._on_life()
                    self._on_failure()
                await self._pause(error)

    async def _pause(self, error: Exception) -> None:
        self._num_failures += 1
        draw = random.random()  # noqa: S311  spreads load, keeps no secret
        seconds = backoff_seconds(self._num_failures, draw, self._max_backoff_seconds)
        if not (self._is_optional and self._is_refusal(error)):
            logger.warning(
                "watching %s: %s; again in %.1f s", self._source.path, describe_failure(error), seconds
            )
        elif not self._has_logged_absence:
            logger.info("watching %s: it is absent, or we may not read it; retries go on", self._source.path)
            self._has_logged_absence = True
        await asyncio.sleep(seconds)

    def _is_refusal(self, error: Exception) -> bool:
        refusals = (REFUSED_STATUS, ABSENT_STATUS) if self._is_optional else (REFUSED_STATUS,)
        return isinstance(error, ApiError) and error.status in refusals

    async def _list(self) -> str:
        """Give the sink the complete list, read page by page. Returns the list's resourceVersion."""
        items: list[Object] = []
        token = ""
        while True:
            body = await self._fetch_page(token)
            with _pausing_collection():
                token, version = self._parse_part(body, items)
            if not token:
                break
        with self._reporting("the list"):
            for number, _ in enumerate(self._sink.replace(items, version) or (), 1):
                if not number % SLICE:
                    await asyncio.sleep(0)
        self._has_logged_absence = False
        self._on_life()
        logger.info("watching %s: %d objects", self._source.path, len(items))
        return version

    def _parse_part(self, body: bytes, items: list[Object]) -> tuple[str, str]:
        """Add a page's objects to the list. Returns the next page's token, and the list's version."""
        page = _parse_page(body)
        with _parsing("list of objects"):
            items += [self._source.pack(self._source.trim(item)) for item in page.items]
        return page.token, page.version

    async def _fetch_page(self, token: str) -> bytes:
        parameters = (
            self._select() | {"limit": str(self._source.page)} | ({"continue": token} if token else {})
        )
        async with self._connection.request(
            "GET", self._source.path, STREAM_SECONDS, parameters=parameters
        ) as response:
            return await response.read()

    async def _follow(self, version: str) -> None:
        """Report each change after `version` to the sink, until the API server ends the stream."""
        seconds = int(STREAM_SECONDS * (0.75 + random.random() / 2))  # noqa: S311  spreads load, keeps no secret
        parameters = self._select() | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
        }
        async with self._connection.request(
            "GET", self._source.path, seconds + GRACE_SECONDS, parameters=parameters
        ) as response:
            await self._read(response.content)

    async def _read(self, stream: aiohttp.StreamReader) -> None:
        """Report each change to the sink until the stream ends. Raises StreamEndedError if it ends at
        once.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async for line in _split_lines(stream):
                self._report(line)
        finally:
            is_brief = clock() - began < BRIEF_SECONDS
            if not is_brief:  # also if it was cut: a load balancer may cut every idle stream
                self._num_failures = 0
                self._is_fresh = False
        if is_brief:
            raise StreamEndedError("the stream ended at once")

    def _report(self, line: bytes) -> None:
        """Report a line of the stream to the sink. After a failure no version is known."""
        self._version = None
        event = _parse_event(line)
        with self._reporting(f"{event.kind} of {event.item['metadata'].get('name')}"):
            if event.kind == "DELETED":
                self._sink.delete(self._source.trim(event.item))
            elif event.kind != "BOOKMARK":
                self._sink.apply(self._source.trim(event.item))
        self._version = event.version
        self._on_life()

    @contextmanager
    def _reporting(self, what: str) -> Iterator[None]:
        """Log an error of the sink inside, and raise SinkError instead."""
        try:
            yield
        except Exception as error:
            logger.exception("watching %s: the sink failed at %s", self._source.path, what)
            raise SinkError(f"the sink failed at {what}") from error

    def _select(self) -> dict[str, str]:
        selectors = {
            "labelSelector": self._source.label_selector,
            "fieldSelector": self._source.field_selector,
        }
        return {name: selector for name, selector in selectors.items() if selector}


async def _split_lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield complete lines of any length, without a part at the end that was cut off: it will come again."""
    rest = bytearray()
    async for chunk in stream.iter_any():
        rest += chunk
        while (end := rest.find(b"\n")) >= 0:
            line = bytes(rest[:end])
            del rest[: end + 1]
            if line:
                yield line
