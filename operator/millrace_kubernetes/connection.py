"""Sends one request to the API server, and turns an error status into an exception."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

import aiohttp

from millrace_kubernetes.errors import ApiError, make_api_error

UNTIMED = aiohttp.ClientTimeout()
"""No timeout of aiohttp's: it (3.14) loses a cancellation at the moment of its timeout. asyncio's does
not."""


class Access(Protocol):
    """The access to an API server, as a connection needs it."""

    @property
    def server(self) -> str:
        """Its URL, without a slash at the end."""

    @property
    def tls(self) -> ssl.SSLContext | None:
        """None for plain http."""

    async def headers(self) -> dict[str, str]:
        """Return the headers that authenticate one request. Raises OSError or AccessError without a token."""


class Connection:
    """Sends requests with our credentials over a session that the caller opens and closes."""

    def __init__(self, session: aiohttp.ClientSession, access: Access) -> None:
        self._session = session
        self._access = access

    @asynccontextmanager
    async def request(
        self,
        method: str,
        path: str,
        seconds: float,
        *,
        parameters: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the answer before its body is read. Raises ApiError unless its status is a success.

        Raises TimeoutError if the server and the reader of the answer together take longer than `seconds`,
        aiohttp's own errors if the server cannot be reached, OSError or AccessError if no token can be used.
        """
        headers = await self._access.headers() | ({} if body is None else {"Content-Type": content_type})
        request = self._session.request(
            method,
            f"{self._access.server}{path}",
            params=parameters,
            data=body,
            headers=headers,
            ssl=self._access.tls or True,
            timeout=UNTIMED,
        )
        async with asyncio.timeout(seconds), request as response:
            if not 200 <= response.status < 300:
                raise await _read_error(response)
            yield response


async def _read_error(response: aiohttp.ClientResponse) -> ApiError:
    text = await response.text(errors="replace")
    try:
        message = str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        message = text[:200].strip() or response.reason or "no reason given"
    return make_api_error(response.status, message)
