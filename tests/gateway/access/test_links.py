"""Two gateways with real connections between them."""

import asyncio
import base64
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from millrace_gateway.access.identity import Tenant
from millrace_gateway.access.limits.reservation import Usage
from millrace_gateway.access.peers import links
from millrace_gateway.access.peers.links import Hello, PeerLinks, PeerServer, make_frame, name_audience
from millrace_gateway.access.peers.peer_report import Outgoing, take_usage
from millrace_gateway.access.signer import Signer
from millrace_gateway.access.usage import UsageBook
from millrace_runtime.gateway_token import generate_key, sign_token
from testing.limited_gateways import CLIENT, LIMIT, SERVICE, LimitedGateway
from testing.polling import wait_until_async

KEY = generate_key()
ADDRESS = "127.0.0.1"
BOOKS = {"g0": UsageBook(0.0), "g1": UsageBook(0.0)}


def make_signer(key: bytes = KEY) -> Signer:
    signer = Signer(time.time, print)
    signer.replace_keys({"data": {"k1": base64.b64encode(key).decode()}})
    return signer


@asynccontextmanager
async def serving(gateway: LimitedGateway, signer: Signer, port: int = 0) -> AsyncIterator[int]:
    listener = socket.create_server((ADDRESS, port))
    async with PeerServer(gateway.exchange, BOOKS[gateway.name], signer).serve(listener):
        yield listener.getsockname()[1]


@asynccontextmanager
async def sending(gateway: LimitedGateway, other: LimitedGateway, port: int) -> AsyncIterator[None]:
    sender = PeerLinks(gateway.name, gateway.exchange, BOOKS[gateway.name], make_signer(), port)
    sender.set_peers({gateway.name: ADDRESS, other.name: ADDRESS})
    try:
        yield
    finally:
        await sender.close()


async def test_use_arrives_over_connections_and_again_after_one_broke(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(links, "REPORT_SECONDS", 0.01)
    first, second = LimitedGateway("g0", time.monotonic), LimitedGateway("g1", time.monotonic)
    signer = make_signer()
    async with serving(first, signer) as port, sending(second, first, port):
        async with serving(second, signer) as second_port, sending(first, second, second_port):
            await wait_until_async(
                "both to hear", lambda: first.exchange.is_settled and second.exchange.is_settled
            )
            BOOKS["g0"].count_request(CLIENT.tenant, SERVICE, Usage(5, 0, 2))
            assert first.use(LIMIT // 2)
            await wait_until_async("the use at the other gateway", lambda: second.deficit > LIMIT * 0.4)
        async with serving(second, signer, second_port), sending(first, second, second_port):
            assert first.use(LIMIT // 4)
            await wait_until_async("more of it", lambda: second.deficit > LIMIT * 0.6)
            tokens = {"prompt": 5, "cached": 0, "completion": 2}
            await wait_until_async(
                "the tokens", lambda: BOOKS["g1"].describe(CLIENT.tenant)["tokens"] == tokens
            )


async def test_a_bug_in_one_report_ends_no_link(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(links, "RETRY_SECONDS", 0.01)
    bugs = iter([OverflowError("a count too large")])

    def take_or_fail(book: UsageBook, incarnation: str, sent: int) -> Outgoing:
        if (bug := next(bugs, None)) is not None:
            raise bug
        return take_usage(book, incarnation, sent)

    monkeypatch.setattr(links, "take_usage", take_or_fail)
    first, second = LimitedGateway("g0", time.monotonic), LimitedGateway("g1", time.monotonic)
    late = Tenant("a", "keys", "late")
    BOOKS["g0"].count_request(late, SERVICE, None)
    async with serving(second, make_signer()) as port, sending(first, second, port):
        await wait_until_async("a report after the bug", lambda: BOOKS["g1"].describe(late)["requests"] == 1)
    assert "the reports to gateway g1 failed" in caplog.text
    caplog.clear()


@pytest.mark.parametrize(
    "hello",
    [
        b"",
        b"\xff",
        msgspec.msgpack.encode(["g0"]),
        msgspec.msgpack.encode(Hello("g0", "")),
        msgspec.msgpack.encode(Hello("g0", sign_token(generate_key(), name_audience(ADDRESS), time.time()))),
        msgspec.msgpack.encode(Hello("g0", sign_token(KEY, name_audience("127.0.0.2"), time.time()))),
        msgspec.msgpack.encode(Hello("g0", sign_token(KEY, "a/chat", time.time()))),
        b"x" * (links.MOST_HELLO_BYTES + 1),
    ],
    ids=["empty", "bytes", "no token", "empty token", "other key", "other gateway", "service", "long"],
)
async def test_a_stranger_is_not_heard(hello: bytes) -> None:
    first, second = LimitedGateway("g0", time.monotonic), LimitedGateway("g1", time.monotonic)
    second.exchange.set_peers(["g0"])
    assert first.use(LIMIT // 2)
    async with serving(second, make_signer()) as port:
        reader, writer = await asyncio.open_connection(ADDRESS, port)
        writer.write(make_frame(hello) + make_frame(b"l" + first.exchange.take_report("g1").data))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await reader.readexactly(1)
        writer.transport.abort()
    assert second.deficit == 0.0
    assert not second.exchange.is_settled


async def test_strangers_take_no_more_than_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "MOST_STRANGERS", 2)
    gateway = LimitedGateway("g1", time.monotonic)
    async with serving(gateway, make_signer()) as port:
        waiting = [await asyncio.open_connection(ADDRESS, port) for _ in range(2)]
        reader, writer = await asyncio.open_connection(ADDRESS, port)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await reader.readexactly(1)
        for _, one in [*waiting, (reader, writer)]:
            one.transport.abort()


def test_an_audience_is_no_services_name() -> None:
    assert name_audience("::ffff:10.0.0.1") == name_audience("10.0.0.1") == "/peers/10.0.0.1"
