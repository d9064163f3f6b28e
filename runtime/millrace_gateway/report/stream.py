"""Streams reports to the leading operator only: they contain every tenant's load."""

import asyncio
import hmac
import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256

import aiohttp

from millrace_gateway.http.request import Request
from millrace_gateway.report.report import Report
from millrace_kubernetes.connection import Connection
from millrace_kubernetes.errors import KubernetesError
from millrace_runtime.contract import ANNOTATION_PROOF, LEASE_OPERATOR, LOADS_SECONDS

logger = logging.getLogger(__name__)

READ_SECONDS = 2.0
"""Shorter than the operator's wait for the first line."""
READ_PERIOD_SECONDS = 1.0
"""Between two reads of the Lease: requests of strangers must not become requests to the API server."""
LEAST_SECONDS = 0.02
"""Between two lines, even if many requests start to wait."""
SEND_SECONDS = 10.0
"""A reader that accepts no line for this long has gone."""
_JSON = [(b"content-type", b"application/json")]
_LINES = [(b"content-type", b"application/x-ndjson")]
NOT_LEADER = "only the leading operator may read this; kubectl get lease millrace-operator names it"


class LeaderCheck:
    """Checks the leader's token against its hash in the Lease, which only operators write."""

    def __init__(self, namespace: str) -> None:
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{LEASE_OPERATOR}"
        self._expected = ""
        self._looked_at = -READ_PERIOD_SECONDS
        self._look: asyncio.Task[None] | None = None
        self.connection: Connection | None = None
        """The connection to the API server, once it exists."""

    async def is_leader(self, token: str) -> bool:
        """Whether this is the leader's token, by the last successful read of the Lease.

        Each call starts a read of the Lease, at most one a second. It waits for the read only if the token
        does not match yet.
        """
        found = sha256(token.encode(errors="replace")).hexdigest()
        self._begin_look()
        if not self._matches(found) and self._look is not None:
            await asyncio.shield(self._look)
        return self._matches(found)

    def _matches(self, found: str) -> bool:
        return bool(self._expected) and hmac.compare_digest(found.encode(), self._expected.encode())

    def _begin_look(self) -> None:
        now = time.monotonic()
        if self.connection is not None and now >= self._looked_at + READ_PERIOD_SECONDS:
            self._looked_at = now
            self._look = asyncio.create_task(self._read(self.connection))

    async def _read(self, connection: Connection) -> None:
        try:
            async with connection.request("GET", self._path, READ_SECONDS) as response:
                lease = json.loads(await response.read())
            annotations = lease["metadata"].get("annotations") or {}
            self._expected = str(annotations.get(ANNOTATION_PROOF, ""))
        except (KubernetesError, aiohttp.ClientError, OSError, ValueError, LookupError) as error:
            logger.warning("the operator's Lease can't be read: %r", error)


class Reporting:
    """The handler of PATH_LOADS."""

    def __init__(self, check: LeaderCheck, begin: Callable[[], Report]) -> None:
        self.check = check
        self._begin = begin
        self._news = asyncio.Event()

    def hurry(self) -> None:
        """Send the next lines at once, because a request waits for a replica."""
        self._news.set()
        self._news = asyncio.Event()

    async def handle(self, request: Request) -> None:
        """Stream lines until the reader disconnects, or answer 401."""
        kind, _, token = (request.header(b"authorization") or b"").decode("latin-1").partition(" ")
        if kind != "Bearer" or not await self.check.is_leader(token):
            request.respond(401, json.dumps({"error": NOT_LEADER}).encode(), _JSON)
            return
        answer = request.begin(200, _LINES)
        report = self._begin()
        try:
            while True:
                news = self._news  # taken before the write: it also covers news during the write
                answer.write(report.next_line(time.monotonic()))
                async with asyncio.timeout(SEND_SECONDS):
                    await request.connection.writer.drain()
                await asyncio.sleep(LEAST_SECONDS)
                await _pause(news)
        except (ConnectionError, TimeoutError):
            request.connection.abort()  # a stopped reader would not read the end either


async def _pause(news: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(LOADS_SECONDS):
            await news.wait()
