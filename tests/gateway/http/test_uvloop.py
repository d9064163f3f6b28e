"""Bytes as uvloop brings them, which the product runs on: many reads before a task, and raw replicas."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from io import BytesIO
from operator import methodcaller
from typing import Any

import pytest
import uvloop

from millrace_gateway.http.sockets import reset
from millrace_gateway.route.body_fields import WHOLE_BYTES
from millrace_gateway.settings import Settings
from millrace_runtime.contract import PORT_HTTP
from testing.gateway_bench import Bench, make_pod, next_address, running

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: chat.team.svc\r\nContent-Length: 16\r\n\r\n"
ASK = HEAD + b'{"model":"chat"}'
SERVERS: list[asyncio.Server] = []
"""Of the test that runs."""
Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def run(test: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        try:
            async with (
                asyncio.timeout(20),
                running(Settings("127.0.0.1", 0, drain_notice_seconds=0.05)) as bench,
            ):
                bench.add_service("team", "chat")
                await test(bench)
        finally:  # a loop with an open server never closes
            while SERVERS:
                SERVERS.pop().close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def add_raw_replica(bench: Bench, play: Play) -> asyncio.Server:
    """Add a replica that writes what it likes: `play` gets the connection after each request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if not head.startswith(b"GET "):
                    await reader.readexactly(16)
                    await play(reader, writer)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, asyncio.CancelledError):
            writer.close()

    address = next_address()
    server = await asyncio.start_server(serve, address, PORT_HTTP)
    SERVERS.append(server)
    bench.gateway.catalogue.apply_replica(make_pod("team", "chat", "raw", address=address, served="chat"))
    return server


async def connect(bench: Bench, limit: int = 1 << 16) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(bench.url.rpartition(":")[2]), limit=limit)


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    return await reader.readexactly(int(head.partition(b"content-length: ")[2].split()[0]))


def write_answer(size: int) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size


def test_large_answers_arrive_on_a_kept_connection() -> None:
    async def check(bench: Bench) -> None:
        async def play(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(write_answer(16 << 20))

        server = await add_raw_replica(bench, play)
        reader, writer = await connect(bench)
        for _ in range(6):
            writer.write(ASK)
            assert len(await read_answer(reader)) == 16 << 20
        writer.close()
        server.close()

    run(check)


def test_a_slow_client_leaves_a_connection_that_reads() -> None:
    async def check(bench: Bench) -> None:
        async def play(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(write_answer(8 << 20))

        server = await add_raw_replica(bench, play)
        slow, slow_writer = await connect(bench, 1024)
        slow_writer.write(ASK)
        await bench.until(lambda: any(one.writer.is_paused for one in bench.sites.clients.connections))
        assert len(await read_answer(slow)) == 8 << 20
        reader, writer = await connect(bench)
        for _ in range(4):
            writer.write(ASK)
            assert len(await read_answer(reader)) == 8 << 20
        slow_writer.close()
        writer.close()
        server.close()

    run(check)


def test_nobody_gets_an_answer_that_was_not_asked_for() -> None:
    async def check(bench: Bench) -> None:
        async def play(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(write_answer(2) + b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")

        server = await add_raw_replica(bench, play)
        reader, writer = await connect(bench)
        for _ in range(3):
            writer.write(ASK)
            assert await read_answer(reader) == b"xx"
        writer.close()
        assert b"forged" not in await reader.read()
        server.close()

    run(check)


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"HTTP/1.1 200 OK\r\nx: ", b"x"),
        (b"HTTP/1.1 200 ", b"x"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"x"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx: ", b"x"),
        (b"", b"HTTP/1.1 103 Early\r\n\r\n"),
    ],
    ids=["header", "reason", "chunk extension", "trailer", "heads that only inform"],
)
def test_a_replica_that_ends_no_head_or_line_is_cut(start: bytes, more: bytes) -> None:
    async def check(bench: Bench) -> None:
        was_cut: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        async def play(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(start)
            try:
                for _ in range(64):  # 16 MiB: more than all buffers on the way
                    writer.write(more * ((1 << 18) // len(more)))
                    await writer.drain()
                was_cut.set_result(False)
            except ConnectionError:
                was_cut.set_result(True)

        server = await add_raw_replica(bench, play)
        reader, writer = await connect(bench)
        writer.write(ASK)
        assert await was_cut
        status = b"200" if b"chunked" in start else b"502"
        assert status in await reader.readuntil(b"\r\n")
        writer.close()
        server.close()

    run(check)


async def ask_once(bench: Bench, play: Play) -> bytes:
    """Return all that a client gets of a raw replica's only answer."""
    server = await add_raw_replica(bench, play)
    reader, writer = await connect(bench)
    writer.write(ASK.replace(b"Content", b"Connection: close\r\nContent"))
    answer = await reader.read()
    writer.close()
    server.close()
    return answer


@pytest.mark.parametrize(
    ("num_headers", "num_trailers", "is_served"), [(200, 50, True), (300, 0, False), (200, 100, False)]
)
def test_an_answer_has_a_bounded_number_of_headers(
    num_headers: int, num_trailers: int, *, is_served: bool
) -> None:
    async def check(bench: Bench) -> None:
        async def play(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" + b"a:\r\n" * num_headers
            writer.write(head + b"\r\n2\r\nxx\r\n0\r\n" + b"a:\r\n" * num_trailers + b"\r\n")

        answer = await ask_once(bench, play)
        assert answer.endswith(b"0\r\n\r\n") == is_served

    run(check)


@pytest.mark.parametrize(
    ("head", "end", "is_whole"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\n", methodcaller("close"), True),
        (b"HTTP/1.0 200 OK\r\n\r\n", reset, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\n", methodcaller("close"), False),
        (b"HTTP/1.1 200 OK\r\n\r\n", methodcaller("close"), False),
    ],
    ids=["HTTP/1.0", "a reset", "a length", "HTTP/1.1"],
)
def test_a_close_ends_only_an_answer_of_http_10_that_has_no_length(
    head: bytes, end: Callable[[Any], None], *, is_whole: bool
) -> None:
    async def check(bench: Bench) -> None:
        async def play(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(head + b"hello")
            end(writer.transport)

        answer = await ask_once(bench, play)
        assert answer.endswith(b"5\r\nhello\r\n0\r\n\r\n") == is_whole

    run(check)


def test_a_switch_that_nobody_asked_for_is_a_failure() -> None:
    async def check(bench: Bench) -> None:
        async def play(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")

        server = await add_raw_replica(bench, play)
        reader, writer = await connect(bench)
        writer.write(ASK)
        assert (await reader.readline()).startswith(b"HTTP/1.1 502 ")
        writer.close()
        server.close()

    run(check)


def test_a_client_that_reads_nothing_gets_no_further_answers() -> None:
    async def check(bench: Bench) -> None:
        _, writer = await connect(bench, 1024)
        ask = b"GET /v1/models/none HTTP/1.1\r\nHost: a\r\n\r\n"
        writer.write(ask)
        await bench.until(lambda: any(one.writer.num_written for one in bench.sites.clients.connections))
        (connection,) = bench.sites.clients.connections
        sent = size = connection.writer.num_written
        while not connection.writer.is_paused:
            writer.write(ask * 1000)  # no more at once than the gateway holds
            sent += 1000 * size
            await bench.until(
                lambda sent=sent: connection.writer.is_paused or connection.writer.num_written == sent
            )
        before = connection.writer.num_written
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert connection.writer.num_written == before
        assert connection._transport.get_write_buffer_size() < 1 << 20
        writer.transport.abort()
        await bench.until(lambda: not bench.sites.clients.connections)

    run(check)


def test_a_body_behind_a_slow_request_is_not_kept() -> None:
    async def check(bench: Bench) -> None:
        release = asyncio.Event()

        async def play(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await release.wait()
            writer.write(write_answer(2))

        server = await add_raw_replica(bench, play)
        reader, writer = await connect(bench)
        second = ASK.replace(b"Content-Length: 16", b"Content-Length: 8000000")[:-16]
        writer.write(ASK + second + b"x" * 8_000_000)
        await writer.drain()  # the gateway reads on, to learn that the client leaves
        (connection,) = bench.sites.clients.connections
        assert (bench.sites.clients.num_kept_bytes, connection._backlog.held) == (0, b"")
        release.set()
        assert await read_answer(reader) == b"xx"
        assert await reader.read() == b""
        writer.close()
        server.close()

    run(check)


def test_a_broken_request_does_no_harm_to_the_one_before_it() -> None:
    async def check(bench: Bench) -> None:
        release = asyncio.Event()

        async def play(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await release.wait()
            writer.write(write_answer(2))

        server = await add_raw_replica(bench, play)
        reader, writer = await connect(bench)
        bad = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
        writer.write(ASK + bad)
        await bench.until(lambda: bench.gateway.lifecycle.num_in_flight)
        writer.write(b"more")
        release.set()
        answer = await reader.read()
        assert answer.endswith(b"xx")
        assert answer.count(b"HTTP/1.1") == 1
        writer.close()
        server.close()

    run(check)


def test_a_body_that_can_not_be_rewritten_is_the_clients_fault() -> None:
    async def check(bench: Bench) -> None:
        async def play(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(write_answer(2))

        server = await add_raw_replica(bench, play)
        body = b'{"model":"team/chat","text":"' + b"x" * WHOLE_BYTES + b'"'
        async with bench.client.post(f"{bench.url}/v1/completions", data=BytesIO(body)) as answer:
            assert answer.status == 400
        server.close()

    run(check)
