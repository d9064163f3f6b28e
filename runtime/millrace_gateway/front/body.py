"""Reads a request's body, within limits of size, memory and time."""

import asyncio

from millrace_gateway.errors import BodyTooLargeError, BusyError, SlowBodyError
from millrace_gateway.front.body_budget import BodyShare
from millrace_gateway.http.request import Request
from millrace_gateway.settings import Settings


async def read_body(request: Request, share: BodyShare, settings: Settings) -> bytes:
    """Return the body. The share counts a body that comes later than its head while it arrives.

    So a large announced length alone takes no memory. Most bodies arrive with their heads: the caller counts
    such a body once it knows the service. Raises BodyTooLargeError, BusyError and SlowBodyError.
    """
    if max(request.announced_bytes, request.num_body_bytes) > settings.max_body_bytes:
        raise describe_size(settings)
    if not request.is_complete:
        await _await_body(request, share, settings)
    return request.take_body()


async def _await_body(request: Request, share: BodyShare, settings: Settings) -> None:
    try:
        async with asyncio.timeout(settings.body_seconds):
            if not share.hold():
                raise describe_fullness(settings)
            num_counted = _count(request, 0, share, settings)
            while not request.is_complete:
                await request.wait_body()
                num_counted = _count(request, num_counted, share, settings)
    except TimeoutError as error:
        text = f"The request body did not arrive within {settings.body_seconds:g} s."
        raise SlowBodyError(text) from error


def _count(request: Request, num_counted: int, share: BodyShare, settings: Settings) -> int:
    if request.num_body_bytes > settings.max_body_bytes:
        request.drop_body()
        raise describe_size(settings)
    if not share.grow(request.num_body_bytes - num_counted):
        request.drop_body()
        raise describe_fullness(settings)
    return request.num_body_bytes


def describe_size(settings: Settings) -> BodyTooLargeError:
    """Return the refusal of a body that is too long."""
    return BodyTooLargeError(f"The request body is longer than the limit of {settings.max_body_bytes} bytes.")


def describe_fullness(settings: Settings) -> BusyError:
    """Return the refusal of a body that there is no room for."""
    text = "The gateway has no memory left for request bodies. Send the request again later."
    return BusyError(text, settings.retry_after_seconds)
