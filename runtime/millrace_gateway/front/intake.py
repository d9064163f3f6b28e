"""Takes in the body of one request: within its bound, the budget of all bodies, and a time."""

import asyncio

from aiohttp import web

from millrace_gateway.errors import BadRequestError, BodyTooLargeError, BusyError, SlowBodyError
from millrace_gateway.front.body_budget import BodyShare
from millrace_gateway.settings import Settings


async def read_body(request: web.Request, share: BodyShare, settings: Settings) -> bytes:
    """Return the body. Its bytes count as they come, so who announces many and sends few takes no room.

    Raises BodyTooLargeError, BusyError, SlowBodyError, BadRequestError and ConnectionError.
    """
    limit = settings.max_body_bytes
    too_large = BodyTooLargeError(f"The request body is longer than {limit} bytes, the most that is taken.")
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
    text = "The gateway holds as many request bodies as it may. Send the request again later."
    return BusyError(text, settings.retry_after_seconds)
