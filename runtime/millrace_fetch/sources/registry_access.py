"""Shows a registry who we are: it names what it wants in a 401, mostly a token of some minutes.

A token goes to the registry alone, and name and password go to it and to where it says that tokens are.
"""

import asyncio
import json
from collections.abc import Iterable
from time import time

import aiohttp
from yarl import URL

from millrace_fetch.errors import RefusedError, SourceError, UnavailableError, is_busy
from millrace_fetch.plan.uri import redact
from millrace_fetch.sources.challenge import Challenge, read_challenge
from millrace_fetch.transfer.client import naming, read_retry_after

_TIMEOUT = aiohttp.ClientTimeout(total=30)
_ANSWER_BYTES = 1 << 20


class RegistryAccess:
    """The authorization of one repository's requests."""

    def __init__(self, origin: URL, repository: str, basic: str | None) -> None:
        self._origin = origin
        self._scope = f"repository:{repository}:pull"
        self._basic = basic
        self._header: str | None = None
        self._lock = asyncio.Lock()

    @property
    def has_credentials(self) -> bool:
        """Whether there are a name and a password for this registry."""
        return self._basic is not None

    async def authorize(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Send a request, and once more with a new token where the registry wants one."""
        if request.url.origin() != self._origin:
            return await handler(request)
        shown = self._header
        response = await _send(request, handler, shown)
        if response.status != 401:
            return response
        header = await self._answer(request.session, response.headers.getall("WWW-Authenticate", ()), shown)
        if header is None:
            return response
        response.release()
        return await _send(request, handler, header)

    async def _answer(
        self, session: aiohttp.ClientSession, asked: Iterable[str], shown: str | None
    ) -> str | None:
        """Return another header than the one that was refused. None where there is nothing else to show."""
        challenge = read_challenge(asked)
        async with self._lock:
            if self._header != shown:  # a connection beside has got a new one meanwhile
                return self._header
            if challenge is None:
                return None
            if challenge.scheme == "basic":
                header = f"Basic {self._basic}" if self._basic else None
            else:
                header = f"Bearer {await self._ask_token(session, challenge)}"
            if header == shown:
                return None
            self._header = header
            return header

    async def _ask_token(self, session: aiohttp.ClientSession, challenge: Challenge) -> str:
        realm = self._read_realm(challenge)
        query = {"scope": challenge.parameters.get("scope") or self._scope}
        if service := challenge.parameters.get("service"):
            query["service"] = service
        # Named here: the caller knows only the address that wanted the token.
        with naming(str(realm)):
            return await self._fetch_token(session, realm, realm.update_query(query))

    async def _fetch_token(self, session: aiohttp.ClientSession, realm: URL, url: URL) -> str:
        async with session.get(
            url, middlewares=(self._show_basic,), allow_redirects=False, timeout=_TIMEOUT
        ) as response:
            _check_answer(redact(str(realm)), response)
            return _read_token(await response.content.read(_ANSWER_BYTES))

    def _read_realm(self, challenge: Challenge) -> URL:
        realm = URL(challenge.parameters.get("realm", ""))
        is_safe = realm.scheme == "https" or (realm.scheme == "http" and self._origin.scheme == "http")
        if not realm.host or not is_safe:
            raise SourceError(f"{self._origin} names no safe address that gives tokens: refused")
        return realm

    async def _show_basic(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        return await _send(request, handler, f"Basic {self._basic}" if self._basic else None)


async def _send(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType, header: str | None
) -> aiohttp.ClientResponse:
    if header:
        request.headers["Authorization"] = header
    return await handler(request)


def _check_answer(realm: str, response: aiohttp.ClientResponse) -> None:
    """Raise where this is no token."""
    status = response.status
    if is_busy(status):
        after = read_retry_after(response.headers.get("Retry-After"), time())
        raise UnavailableError(f"{realm} answered {status}", after)
    if 300 <= status < 400:  # name and password go no further than where the registry says
        raise SourceError(
            f"{realm} answered {status}: a token service that redirects is not followed; ask the registry's "
            "owner for the address that gives tokens"
        )
    if status != 200:  # up to 499 it is the name and the password that it does not take
        raise RefusedError(f"{realm} answered {status}", 401 if status < 500 else status)


def _read_token(answer: bytes) -> str:
    try:
        fields = json.loads(answer)
        return str(fields.get("token") or fields["access_token"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError("the registry's token service gives no token") from error
