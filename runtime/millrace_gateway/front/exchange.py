"""The connections of one request: the client's body in, the request to a replica, and the answer back."""

import asyncio
import io
import logging
from dataclasses import dataclass
from types import SimpleNamespace

import aiohttp
from aiohttp import hdrs, web
from multidict import CIMultiDict
from yarl import URL

from millrace_gateway.errors import (
    BadRequestError,
    BodyTooLargeError,
    BusyError,
    ReplicaRefusedError,
    SlowBodyError,
    StaleConnectionError,
    UpstreamFailedError,
)
from millrace_gateway.front.body_budget import BodyShare
from millrace_gateway.front.headers import response_headers
from millrace_gateway.route.objects import Replica
from millrace_gateway.route.routing import replace_model
from millrace_gateway.settings import Settings
from millrace_runtime.contract import HEADER_DRAINING, PORT_HTTP

logger = logging.getLogger(__name__)

LARGE_BODY_BYTES = 2**20  # longer ones aiohttp wants from a file object, to send them in pieces
EVENT_STREAM = "text/event-stream"


async def read_body(request: web.Request, share: BodyShare, settings: Settings) -> bytes:
    """Return the body. It counts bytes as they arrive: a large announced length alone takes no room.

    Raises BodyTooLargeError, BusyError, SlowBodyError, BadRequestError and ConnectionError.
    """
    limit = settings.max_body_bytes
    too_large = BodyTooLargeError(f"The request body is longer than the limit of {limit} bytes.")
    if (request.content_length or 0) > limit:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(settings.body_seconds):
            while chunk := await request.content.readany():
                if len(body) + len(chunk) > limit:
                    raise too_large
                if not share.grow(len(chunk)):
                    raise describe_fullness(settings)
                body += chunk
    except TimeoutError as error:
        text = f"The request body did not arrive within {settings.body_seconds:g} s."
        raise SlowBodyError(text) from error
    except web.RequestPayloadError as error:
        raise BadRequestError(f"The request body can't be read: {error}.") from error
    return bytes(body)


def describe_fullness(settings: Settings) -> BusyError:
    """Return the refusal of a body that there is no room for."""
    text = "The gateway has no memory left for request bodies. Send the request again later."
    return BusyError(text, settings.retry_after_seconds)


@dataclass
class UpstreamRequest:
    """A request for replicas. It can be sent again until it is released."""

    method: str
    path: str
    """With its query, encoded as the client sent it."""
    headers: CIMultiDict[str]
    body: bytes
    model: str | None
    """The service's name in the body; None if the body is forwarded unchanged."""
    share: BodyShare
    """The body's share of the budget."""

    def put_model(self, served_name: str | None) -> None:
        """Write the replica's served name into the body."""
        if self.model is not None and served_name is not None and self.model != served_name:
            self.body, self.model = replace_model(self.body, served_name), served_name

    def release(self) -> None:
        """Release the body: a replica has begun to answer, and no other will get it."""
        self.body = b""
        self.share.release()


@dataclass
class Attempt:
    """The result of aiohttp's trace of one exchange."""

    was_reused: bool = False
    """Whether the connection had served another request before."""


def open_session(settings: Settings) -> aiohttp.ClientSession:
    """Return a session that adds no cookies and no headers, and decodes nothing.

    It limits only the time to connect: a generation may take as long as its client waits.
    """
    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(_note_reuse)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=settings.keepalive_seconds),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_seconds),
        skip_auto_headers=(hdrs.USER_AGENT, hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trace_configs=[trace],
    )


async def ask(
    session: aiohttp.ClientSession, request: UpstreamRequest, replica: Replica
) -> aiohttp.ClientResponse:
    """Send the request and return the head of the answer; the caller closes it.

    Raises ReplicaRefusedError if the replica has not begun the request, StaleConnectionError if it closed an
    idle connection just as the gateway reused it, UpstreamFailedError if it failed before it answered.
    """
    attempt = Attempt()
    try:
        upstream = await _send(session, request, replica, attempt)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise ReplicaRefusedError(str(error)) from error
    except (aiohttp.ClientError, OSError) as error:
        if attempt.was_reused:
            raise StaleConnectionError(str(error)) from error
        logger.warning("pod %s/%s failed before it answered: %r", replica.key.namespace, replica.pod, error)
        raise describe_failure() from error
    if upstream.status == 503 and HEADER_DRAINING in upstream.headers:
        upstream.close()
        raise ReplicaRefusedError("it is draining")
    return upstream


def describe_failure() -> UpstreamFailedError:
    """Return the error for a client whose replica failed before it answered."""
    return UpstreamFailedError(
        "The replica closed the connection before it answered. Send the request again; the replica's log "
        "has the reason."
    )


async def _send(
    session: aiohttp.ClientSession, request: UpstreamRequest, replica: Replica, attempt: Attempt
) -> aiohttp.ClientResponse:
    request.put_model(replica.served_name)
    body = request.body
    return await session.request(
        request.method,
        replica_url(replica.address, request.path),
        data=io.BytesIO(body) if len(body) > LARGE_BODY_BYTES else body or None,
        headers=request.headers,
        allow_redirects=False,
        trace_request_ctx=attempt,
    )


def replica_url(address: str, path: str) -> URL:
    """Return the URL of a path, already encoded, at a pod's address (IPv4 or IPv6)."""
    host = f"[{address}]" if ":" in address else address
    return URL(f"http://{host}:{PORT_HTTP}{path}", encoded=True)


async def _note_reuse(
    _session: aiohttp.ClientSession,
    context: SimpleNamespace,
    _params: aiohttp.TraceConnectionReuseconnParams,
) -> None:
    context.trace_request_ctx.was_reused = True


def begin_answer(upstream: aiohttp.ClientResponse) -> web.StreamResponse:
    """Return the client's response, with the replica's status and headers."""
    return web.StreamResponse(
        status=upstream.status, reason=upstream.reason, headers=response_headers(upstream.headers)
    )


async def relay(request: web.Request, upstream: aiohttp.ClientResponse, answer: web.StreamResponse) -> bool:
    """Stream the body; return False if the replica broke off. Raises ConnectionError if the client left.

    A broken answer ends without its last chunk, or below its announced length, so that no client takes it for
    complete. An event stream gets a last event with the reason.
    """
    await answer.prepare(request)
    last = b"\n\n"
    while True:
        try:
            chunk = await upstream.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            logger.warning("replica %s broke off in its answer: %r", upstream.url.host, error)
            await _break_off(request, answer, can_append=last.endswith(b"\n\n"))
            return False
        if not chunk:
            break
        await answer.write(chunk)
        last = chunk
    await answer.write_eof()
    return True


async def _break_off(request: web.Request, answer: web.StreamResponse, *, can_append: bool) -> None:
    if can_append and answer.content_type == EVENT_STREAM:
        failure = UpstreamFailedError(
            "The replica broke off in the middle of its answer. Send the request again."
        )
        await answer.write(b"data: " + failure.body() + b"\n\n")
    if request.transport:
        request.transport.close()
