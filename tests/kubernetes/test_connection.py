import asyncio
import json
import time
from collections.abc import AsyncIterator
from inspect import getdoc

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from millrace_kubernetes import errors
from millrace_kubernetes.access import ClusterAccess
from millrace_kubernetes.connection import Connection

SECONDS = 5.0


@pytest_asyncio.fixture
async def connection() -> AsyncIterator[Connection]:
    """To a server that answers `/STATUS` with that status and the request's own body; `/0` never."""

    async def answer(request: web.Request) -> web.Response:
        if request.match_info["status"] == "0":
            await asyncio.sleep(30)
        headers = {"X-Type": request.headers.get("Content-Type", "")}
        return web.Response(
            status=int(request.match_info["status"]), body=await request.read(), headers=headers
        )

    app = web.Application()
    app.router.add_route("*", "/{status}", answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as session:
        yield Connection(session, ClusterAccess(f"http://127.0.0.1:{runner.addresses[0][1]}", None))
    await runner.cleanup()


async def test_a_success_is_given_as_it_came(connection: Connection) -> None:
    async with connection.request(
        "POST", "/201", SECONDS, body=b"[1]", content_type="application/x"
    ) as response:
        assert (response.status, response.headers["X-Type"], await response.json(content_type=None)) == (
            201,
            "application/x",
            [1],
        )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (json.dumps({"kind": "Status", "message": "not here"}).encode(), "not here"),
        (b"a proxy says no", "a proxy says no"),
        (b"[]", "[]"),
        (b"\xff", "\ufffd"),
        (b"", "Not Found"),
    ],
)
async def test_an_error_carries_the_servers_words(connection: Connection, body: bytes, message: str) -> None:
    with pytest.raises(errors.ApiError) as caught:
        async with connection.request("PATCH", "/404", SECONDS, body=body):
            pass
    assert str(caught.value) == f"the API server answered 404: {message}"
    assert caught.value.status == 404
    assert not isinstance(caught.value, errors.ExpiredError)


async def test_what_is_too_old_is_an_error_of_its_own(connection: Connection) -> None:
    with pytest.raises(errors.ExpiredError):
        async with connection.request("GET", "/410", SECONDS):
            pass


async def test_a_request_that_is_cancelled_as_its_time_runs_out_is_cancelled(connection: Connection) -> None:
    async def ask() -> None:
        async with connection.request("GET", "/0", 0.5):
            pass

    asking = asyncio.create_task(ask())
    asyncio.get_running_loop().call_later(0.6, asking.cancel)
    await asyncio.sleep(0.2)
    time.sleep(0.6)  # noqa: ASYNC251  the process stands still, and both moments pass
    await asyncio.wait([asking])
    assert asking.cancelled()


async def test_a_request_takes_no_longer_than_it_may(connection: Connection) -> None:
    with pytest.raises(TimeoutError):
        async with connection.request("GET", "/0", 0.05):
            pass


def test_the_drawn_tree_is_the_tree() -> None:
    def draw(kind: type[Exception], depth: int) -> list[tuple[int, str]]:
        below = [line for child in kind.__subclasses__() for line in draw(child, depth + 1)]
        return [(depth, kind.__name__), *below]

    lines = [line for line in (getdoc(errors) or "").splitlines() if "Error" in line]
    drawn = [
        (len(line.partition("── ")[0]) // 4 + 1 if "── " in line else 0, line.split("── ")[-1].split()[0])
        for line in lines
    ]
    assert drawn == draw(errors.KubernetesError, 0)
