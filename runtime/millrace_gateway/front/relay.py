"""Carries an answer from a replica to the client, each chunk as it comes."""

import logging

import aiohttp
from aiohttp import web

from millrace_gateway.errors import UpstreamFailedError
from millrace_gateway.front.headers import response_headers

logger = logging.getLogger(__name__)

EVENT_STREAM = "text/event-stream"


def begin_answer(upstream: aiohttp.ClientResponse) -> web.StreamResponse:
    """Return the client's response with the head of the replica's."""
    return web.StreamResponse(
        status=upstream.status, reason=upstream.reason, headers=response_headers(upstream.headers)
    )


async def relay(request: web.Request, upstream: aiohttp.ClientResponse, answer: web.StreamResponse) -> bool:
    """Stream the body through; false when the replica broke off. Raises ConnectionError if the client left.

    A broken answer ends without its end mark, which is the last chunk or the promised length, so that no
    client takes it for whole. An event stream gets a last event that says why.
    """
    await answer.prepare(request)
    last = b"\n\n"
    while True:
        try:
            chunk = await upstream.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            logger.warning("replica %s broke off in its answer: %r", upstream.url.host, error)
            await _break_off(request, answer, can_tell=last.endswith(b"\n\n"))
            return False
        if not chunk:
            break
        await answer.write(chunk)
        last = chunk
    await answer.write_eof()
    return True


async def _break_off(request: web.Request, answer: web.StreamResponse, *, can_tell: bool) -> None:
    if can_tell and answer.content_type == EVENT_STREAM:
        failure = UpstreamFailedError(
            "The replica broke off in the middle of its answer. Send the request again."
        )
        await answer.write(b"data: " + failure.body() + b"\n\n")
    if request.transport:
        request.transport.close()
