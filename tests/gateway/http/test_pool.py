"""Idle connections to replicas, by age."""

import asyncio
import socket
from typing import Any, cast

import pytest

from millrace_gateway.errors import ReplicaRefusedError
from millrace_gateway.http import pool as pools
from millrace_gateway.http import sockets
from millrace_gateway.http.pool import Pool
from millrace_gateway.http.replica_connection import ReplicaConnection
from millrace_gateway.settings import Settings
from millrace_runtime.api.settings import LEAST_KEEP_ALIVE_SECONDS
from testing.gateway_bench import Bench


class Idle:
    """A connection that its replica has not closed."""

    is_reusable = True
    idle_since = 0.0
    was_aborted = False

    def rest(self, now: float) -> None:
        self.idle_since = now

    def connection_lost(self, error: Exception | None) -> None:
        assert error is None

    def abort(self) -> None:
        self.was_aborted = True


def test_a_connection_that_its_replica_may_close_now_is_not_used() -> None:
    async def check() -> None:
        pool = Pool(connect_seconds=1.0, idle_seconds=Settings.keepalive_seconds)
        old, young = Idle(), Idle()
        for connection in (old, young):
            pool.give_back("a", cast("Any", connection))
        old.idle_since -= Settings.keepalive_seconds
        assert pool.take("a") is cast("Any", young)
        assert pool.take("a") is None
        assert old.was_aborted
        pool.close()

    asyncio.run(check())


async def test_a_connection_that_ends_before_the_request_is_sent_is_a_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Closed(ReplicaConnection):
        """Its replica, or a proxy beside it, accepts it and ends it at once."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            transport.abort()

    monkeypatch.setattr(pools, "ReplicaConnection", Closed)
    pool = Pool(connect_seconds=1.0, idle_seconds=1.0)
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(ReplicaRefusedError):
        await pool.connect("a", *listener.getsockname())
    assert not pool._busy


@pytest.mark.parametrize("number", sorted(pools.OWN_FAULTS))
async def test_what_the_gateway_lacks_itself_is_no_failure_of_a_replica(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    loop = asyncio.get_running_loop()
    connect = loop.create_connection

    async def fail(factory: Any, *address: Any, **options: Any) -> Any:
        if factory is ReplicaConnection:
            raise OSError(number, "none left")
        return await connect(factory, *address, **options)

    bench.add_service("team", "chat")
    bench.add_pod("team", "chat", "p1", "127.0.0.1")
    monkeypatch.setattr(loop, "create_connection", fail)
    async with bench.client.post(f"{bench.url}/v1/completions", data=b'{"model": "chat"}') as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (503, "gateway_exhausted")
        assert answer.headers["Retry-After"] == "1"
    assert not bench.gateway.balancer.is_ejected("p1", loop.time())


@pytest.mark.parametrize(
    ("before", "after"),
    [((1024, 4096), 4096), ((1024, 1 << 20), 65_536), ((1 << 20, 1 << 20), 1 << 20), ((1024, -1), 65_536)],
)
def test_the_gateway_takes_the_descriptors_that_it_may_have(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, before: tuple[int, int], after: int
) -> None:
    found = [before]
    monkeypatch.setattr(sockets.resource, "getrlimit", lambda _: found[-1])
    monkeypatch.setattr(sockets.resource, "setrlimit", lambda _, limits: found.append(limits))
    sockets.raise_descriptors()
    assert found[-1] == (after, before[1])
    assert ("4096 file descriptors" in caplog.text) == (after == 4096)


def test_replicas_keep_idle_connections_longer() -> None:
    assert Settings.keepalive_seconds * 2 <= LEAST_KEEP_ALIVE_SECONDS
