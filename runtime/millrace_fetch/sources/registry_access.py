"""Authorizes requests to a registry: answers its challenge, mostly with a token of some minutes.

The token goes only to the registry. Name and password go to the registry and to its token service. They come
from `$DOCKER_CONFIG/config.json`, else `~/.docker/config.json`, as `docker login` stores them. A mounted
Secret of type kubernetes.io/dockerconfigjson names the file `.dockerconfigjson`. Credential helpers are
programs, so they are not run.
"""

import asyncio
import base64
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from time import time
from typing import Any, NamedTuple

import aiohttp
from yarl import URL

from millrace_fetch.errors import RefusedError, SourceError, UnavailableError
from millrace_fetch.plan.uri import redact
from millrace_fetch.transfer.client import naming, read_retry_after
from millrace_fetch.transfer.retry import is_busy

_PARAMETER = re.compile(r'(\w+)="([^"]*)"')
_TIMEOUT = aiohttp.ClientTimeout(total=30)
_ANSWER_BYTES = 1 << 20

_FILES = ("config.json", ".dockerconfigjson")


def find_basic(registries: tuple[str, ...]) -> str | None:
    """Return the Basic credentials of a registry, None without any. `registries` are its names."""
    for path in [_folder() / name for name in _FILES]:
        try:
            auths = json.loads(path.read_text()).get("auths", {})
            entries = {_host_of(key): entry for key, entry in auths.items()}
            found = [_read_entry(entries[name]) for name in registries if name in entries]
        except FileNotFoundError:
            continue
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise SourceError(f"{path} can't be read: it should be the JSON of docker login") from error
        if basic := next(filter(None, found), None):
            return basic
    return None


def _folder() -> Path:
    return Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")


def _host_of(key: str) -> str:
    """Return the host of a key such as `https://host/v1/`."""
    return key.rpartition("://")[2].partition("/")[0]


def _read_entry(entry: dict[str, Any]) -> str | None:
    if entry.get("username"):
        pair = f"{entry['username']}:{entry.get('password', '')}"
        return base64.b64encode(pair.encode()).decode()
    auth = str(entry.get("auth") or "")
    base64.b64decode(auth, validate=True)
    return auth or None


class Challenge(NamedTuple):
    """A parsed WWW-Authenticate header."""

    scheme: str
    """In lower case: `bearer` or `basic`."""
    parameters: dict[str, str]


def read_challenge(headers: Iterable[str]) -> Challenge | None:
    """Return the first supported challenge of a response."""
    for header in headers:
        scheme, _, rest = header.partition(" ")
        if scheme.lower() in ("bearer", "basic"):
            return Challenge(scheme.lower(), dict(_PARAMETER.findall(rest)))
    return None


class RegistryAccess:
    """Authorizes the requests of one repository."""

    def __init__(self, origin: URL, repository: str, basic: str | None) -> None:
        self._origin = origin
        self._scope = f"repository:{repository}:pull"
        self._basic = basic
        self._header: str | None = None
        self._lock = asyncio.Lock()

    @property
    def has_credentials(self) -> bool:
        """Whether $DOCKER_CONFIG has credentials for this registry."""
        return self._basic is not None

    async def authorize(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Send a request, and once more with a new token if the registry demands one."""
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
        """Return a header other than the refused one; None if there is no other."""
        challenge = read_challenge(asked)
        async with self._lock:
            if self._header != shown:  # another connection has fetched a new one meanwhile
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
        # Errors name the realm here: the caller knows only the address of the blob.
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
            raise SourceError(f"{self._origin} names no safe address of a token service: refused")
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
    """Raise an error for an answer that is no token."""
    status = response.status
    if is_busy(status):
        after = read_retry_after(response.headers.get("Retry-After"), time())
        raise UnavailableError(f"{realm} answered {status}", after)
    if 300 <= status < 400:  # credentials go only to the address that the registry names
        raise SourceError(
            f"{realm} answered {status}: redirects of a token service are not followed; ask the registry's "
            "owner for the final address of its token service"
        )
    if status != 200:  # up to 499 the service refuses the credentials
        raise RefusedError(f"{realm} answered {status}", 401 if status < 500 else status)


def _read_token(answer: bytes) -> str:
    try:
        fields = json.loads(answer)
        return str(fields.get("token") or fields["access_token"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError("the registry's token service sends no token") from error
