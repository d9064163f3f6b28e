"""HTTP for all sources: redirects, certificates, proxies, and the meaning of a status.

A source sees each request before it is sent, also after a redirect. It adds its credentials only to requests
for its own host: those whose origin equals `find_origin`. A proxy's URL may hold a password, so no message
shows it.
"""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from email.utils import parsedate_to_datetime
from time import monotonic, time
from typing import Self
from urllib.parse import urljoin, urlsplit, urlunsplit

import aiohttp
from yarl import URL

from millrace_fetch.errors import FetchError, RefusedError, SourceError, UnavailableError, UsageError
from millrace_fetch.plan.uri import redact
from millrace_fetch.transfer.ranges import read_place
from millrace_fetch.transfer.retry import is_busy
from millrace_fetch.transfer.stall import Pace, describe_slow

ADVICE = (
    "name the trusted authorities in SSL_CERT_FILE or --ca-file; for a service put them into the key ca.crt "
    "of the Secret of spec.model.credentials"
)
MAX_REDIRECTS = 10
_REDIRECTS = (301, 302, 303, 307, 308)
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=15, sock_read=60)
LONGEST_WAIT_SECONDS = 120.0
"""For the headers of an answer, with the connection, and then for each next byte of its body.

The timeout for silence ends most waits earlier. But a server that sends a header byte by byte, endless 102s,
or the extensions of a chunk is never silent.
"""
_MAX_RETRY_AFTER_SECONDS = 1e9
"""Keeps the number within the range of a float, and short in a message."""
_DATE = re.compile(r"[A-Z][a-z]{2}, ")
"""The start of a Last-Modified. An ETag begins with a quote or with W/."""
_REASON_BYTES = 4096
"""Read of a refusal's body: registries and S3 put the reason there."""

UNREACHABLE = "the proxy of the environment can't be reached"
WANTS_PASSWORD = 407
"""The status by which a proxy, never a source, demands credentials."""


def explain_proxy(place: str, status: int) -> FetchError:
    """Return the error for a proxy's status on the way to `place`: final, or worth a retry."""
    if status == WANTS_PASSWORD:
        return SourceError(
            f"{place}: the proxy of the environment demands name and password: write them into its URL in "
            "HTTPS_PROXY or HTTP_PROXY"
        )
    message = f"{place}: the proxy of the environment answered {status}"
    if is_busy(status):
        return UnavailableError(message)
    return SourceError(f"{message}: let its owner allow the host, or name it in NO_PROXY")


class Client:
    """The HTTP session of one fetch. It uses the proxy of the environment."""

    def __init__(
        self, authorize: aiohttp.ClientMiddlewareType, connections: int, certificates: str | None = None
    ) -> None:
        self._authorize = authorize
        self._free = asyncio.Semaphore(connections)
        """Taken before a request. aiohttp would count a wait for its own limit as a wait for the server."""
        self._certificates = certificates
        """A file of trusted certificates. None: the system's, or those in SSL_CERT_FILE."""

    async def __aenter__(self) -> Self:
        # Sizes and ranges are of the stored file, so the client neither requests nor decodes gzip.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=_trust(self._certificates)),
            timeout=_TIMEOUT,
            trust_env=True,
            auto_decompress=False,
            headers={"Accept-Encoding": "identity", "User-Agent": "millrace-fetch"},
            cookie_jar=aiohttp.DummyCookieJar(),
            # A middleware, because aiohttp refuses the header if ~/.netrc names the same host.
            middlewares=(self._authorize, _await_headers),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    @asynccontextmanager
    async def request(
        self, method: str, url: str, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request, follow redirects, yield an answer of 2xx. Raises RefusedError or UnavailableError.

        A connection that breaks inside the context also raises UnavailableError.
        """
        async with self._free:
            with naming(url):
                response = await self._follow(method, read_url(url), dict(headers or {}))
                async with response:
                    yield response

    async def _follow(self, method: str, url: URL, headers: dict[str, str]) -> aiohttp.ClientResponse:
        for _ in range(MAX_REDIRECTS):
            response = await self._session.request(method, url, headers=headers, allow_redirects=False)
            if response.status not in _REDIRECTS:
                return await self._check(response)
            response.release()
            url = _next_url(url, response)
        raise RefusedError(f"{redact(str(url))} redirects again and again", 310)

    async def _check(self, response: aiohttp.ClientResponse) -> aiohttp.ClientResponse:
        status = response.status
        if 200 <= status < 300:
            return response
        if status == WANTS_PASSWORD:
            response.release()
            raise explain_proxy(redact(str(response.url)), status)
        message = f"{redact(str(response.url))} answered {status}"
        if is_busy(status):
            response.release()
            raise UnavailableError(message, read_retry_after(response.headers.get("Retry-After"), time()))
        async with response, asyncio.timeout(LONGEST_WAIT_SECONDS):
            reason = await response.content.read(_REASON_BYTES)
        code = response.headers.get("X-Error-Code", "")
        raise RefusedError(message, status, code, reason.decode(errors="replace"))


async def _await_headers(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Send a request. Raises TimeoutError if no headers arrive within LONGEST_WAIT_SECONDS."""
    async with asyncio.timeout(LONGEST_WAIT_SECONDS):
        return await handler(request)


class Chunks:
    """A body in pieces of at most `most_bytes`. Raises UnavailableError if it arrives too slowly."""

    def __init__(self, response: aiohttp.ClientResponse, most_bytes: int) -> None:
        self._place = redact(str(response.url))
        self._content = response.content
        self._most_bytes = most_bytes
        self._pace = Pace()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        began = monotonic()
        # Buffered bytes need no timer: timers for all pieces of 4 GB took 0.14 s, of about nine.
        if not (chunk := self._content.read_nowait(self._most_bytes)):
            async with asyncio.timeout(LONGEST_WAIT_SECONDS):
                chunk = await self._content.read(self._most_bytes)
        if not chunk:
            raise StopAsyncIteration
        if self._pace.add(len(chunk), monotonic() - began):
            raise UnavailableError(f"{self._place}: {describe_slow()}")
        return chunk


def find_origin(address: str, variable: str = "") -> URL:
    """Return scheme, host and port of an address, in the form of a request's origin. Raises UsageError.

    `variable` names the environment variable with the address, if there is one.
    """
    where = f"{variable}: " if variable else ""
    try:
        origin = read_url(address).origin()
    except ValueError:
        origin = URL()
    if origin.scheme not in ("http", "https"):
        raise UsageError(f"{where}'{redact(address)}' names no host: write https://host")
    return origin


def read_url(address: str) -> URL:
    """Return an address with an unchanged path and query, which may be signed. Raises ValueError.

    The host is normalised: in lower case and ASCII, without the default port.
    """
    given, plain = urlsplit(address), urlsplit(str(URL(address)))
    return URL(urlunsplit((plain.scheme, plain.netloc, given.path, given.query, "")), encoded=True)


@contextmanager
def naming(url: str) -> Iterator[None]:
    """Translate errors inside the context, and name this address. Raises SourceError or UnavailableError."""
    try:
        yield
    except aiohttp.ClientConnectorCertificateError as error:
        raise SourceError(_describe(error, url)) from error
    except aiohttp.ClientHttpProxyError as error:
        raise explain_proxy(redact(url), error.status) from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise UnavailableError(_describe(error, url)) from error


def _trust(certificates: str | None) -> ssl.SSLContext:
    try:
        # Not aiohttp's default, which reads SSL_CERT_FILE at its import.
        return ssl.create_default_context(cafile=certificates)
    except OSError as error:
        raise SourceError(f"the trusted certificates can't be read from {certificates}") from error


def read_retry_after(value: str | None, now: float) -> float | None:
    """Return the seconds of a Retry-After, which is a number or a date; None without a valid one."""
    if not value:
        return None
    if value.strip().isdecimal():
        return min(float(value), _MAX_RETRY_AFTER_SECONDS)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - now)
    except ValueError:
        return None


def read_validator(response: aiohttp.ClientResponse) -> str | None:
    """Return the ETag, else Last-Modified: it changes with the file."""
    return response.headers.get("ETag") or response.headers.get("Last-Modified")


def is_of_another(response: aiohttp.ClientResponse, validator: str | None) -> bool:
    """Whether the answer has another validator of the same kind. An absent one is unknown, not different.

    Weak and strong ETags of the same text are equal: a proxy may weaken one on the way.
    """
    if validator is None:
        return False
    answered = response.headers.get("Last-Modified" if _DATE.match(validator) else "ETag")
    return answered is not None and _bare(answered) != _bare(validator)


def _bare(validator: str) -> str:
    """Return a validator without its mark of weakness and quotes, which some servers leave out of a list."""
    return validator.removeprefix("W/").strip('"')


def read_file_bytes(response: aiohttp.ClientResponse, name: str, begin: int) -> int | None:
    """Return the size of the file of which an answer holds all or a part; None if the answer lacks it.

    Raises UnavailableError for a part that does not begin at `begin`: without a checksum nothing else would
    show that. A part without a position is accepted.
    """
    if response.status != 206:
        length = response.headers.get("Content-Length", "")
        return int(length) if re.fullmatch("[0-9]{1,18}", length) else None
    place = read_place(response.headers.get("Content-Range", ""))
    if place.start not in (None, begin):
        raise UnavailableError(f"{name} was sent from byte {place.start}, but byte {begin} was requested")
    return place.file_bytes


def _next_url(url: URL, response: aiohttp.ClientResponse) -> URL:
    location = response.headers.get("Location", "")
    try:
        following = read_url(urljoin(str(url), location))
    except ValueError:
        following = URL()
    if not location or following.scheme not in ("http", "https") or not following.host:
        raise RefusedError(f"{redact(str(url))} redirects to nowhere", response.status)
    if url.scheme == "https" and following.scheme == "http":
        raise RefusedError(
            f"{redact(str(url))} redirects from https to http, where others could change the file: refused",
            response.status,
        )
    return following


def _describe(error: Exception, url: str) -> str:
    """Return the message of an error. It uses no text of aiohttp, which may contain the whole URL."""
    place = redact(url)
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"{place}: its certificate is not trusted; {ADVICE}"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"{place}: DNS does not find the host {error.host}"
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        return f"{place}: {UNREACHABLE}"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"{place}: no connection to {error.host}:{error.port} ({error.strerror or 'failed'})"
    if isinstance(error, TimeoutError):
        return f"{place}: no answer in time"
    return f"{place}: the connection broke ({type(error).__name__})"
