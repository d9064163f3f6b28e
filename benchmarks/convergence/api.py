"""Writes and reads many objects at the API server, and counts what others write there."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Self

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

Object = dict[str, Any]
AT_ONCE = 32
"""Requests under way."""
WRITES = frozenset({"APPLY", "PATCH", "POST", "PUT", "DELETE", "DELETECOLLECTION"})
COUNTED = frozenset(
    {
        "inferenceservices",
        "deployments",
        "controllerrevisions",
        "services",
        "serviceaccounts",
        "poddisruptionbudgets",
        "events",
        "pods",
    }
)
"""What the operator writes. Leases are left out: its own is renewed all the time, and the server has some."""


class Api:
    """The API server of a local cluster, as its administrator."""

    def __init__(self, url: str, context: ssl.SSLContext) -> None:
        self._url = url
        self._context = context
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._context, limit=AT_ONCE)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def send(self, method: str, path: str, body: Object | None = None, patch: str = "merge") -> Object:
        """Return what the server answers. Raises aiohttp.ClientResponseError for an error status."""
        assert self._session is not None
        kind = f"application/{patch}-patch+json" if method == "PATCH" else "application/json"
        headers = {"Content-Type": kind}
        async with self._session.request(
            method, f"{self._url}{path}", json=body, headers=headers
        ) as response:
            if response.status >= 400:
                text = (await response.text())[:300]
                raise aiohttp.ClientResponseError(
                    response.request_info, response.history, status=response.status, message=text
                )
            found: Object = await response.json()
            return found

    async def get(self, path: str) -> Object | None:
        """Return an object, None where there is none."""
        try:
            return await self.send("GET", path)
        except aiohttp.ClientResponseError as error:
            if error.status == 404:
                return None
            raise

    async def create_all(self, path: str, objects: Iterable[Object]) -> None:
        """Create many objects of one collection."""
        await run_all(lambda obj: self.send("POST", path, obj), objects)

    async def list(self, path: str) -> list[Object]:
        """Return the objects of a collection."""
        found: list[Object] = (await self.send("GET", path))["items"]
        return found

    async def count_writes(self) -> int:
        """Return how many writes the server has answered since it began, by its own count."""
        assert self._session is not None
        async with self._session.get(f"{self._url}/metrics") as response:
            text = await response.text()
        lines = "\n".join(line for line in text.splitlines() if "apiserver_request_total" in line)
        samples = (sample for family in text_string_to_metric_families(lines) for sample in family.samples)
        return round(
            sum(
                sample.value
                for sample in samples
                if sample.labels.get("verb") in WRITES and sample.labels.get("resource") in COUNTED
            )
        )


async def run_all(act: Callable[[Object], Awaitable[Any]], objects: Iterable[Object]) -> None:
    """Do it for each, some at a time."""
    waiting = iter(objects)

    async def work() -> None:
        for obj in waiting:
            await act(obj)

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
