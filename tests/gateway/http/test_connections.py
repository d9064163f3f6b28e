"""Clients and replicas that are slow, leave, or break off."""

import asyncio
import ctypes
import socket
import struct
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import aiohttp
import pytest
from aiohttp import web

import millrace_gateway.server
from millrace_gateway.errors import BrokenAnswerError
from millrace_gateway.front import early_stream
from millrace_gateway.front.upstream import Collector, describe_failure
from millrace_gateway.http import replica_connection, sockets
from millrace_gateway.http.relay import Relay
from millrace_gateway.http.replica_connection import ReplicaConnection
from millrace_gateway.http.request import Request
from millrace_gateway.http.sockets import count_unread
from testing.gateway_bench import Bench, make_pod, make_service, next_address
from testing.gateway_http import connect, read_all, send, serving
from testing.polling import wait_until_async

PATH = "/v1/chat/completions"
BODY = b'{"model": "chat", "stream": true}'
MEBIBYTE = 1 << 20


def write_request(version: str = "1.1") -> bytes:
    head = f"POST {PATH} HTTP/{version}\r\nHost: chat.team.svc\r\nContent-Length: {len(BODY)}\r\n\r\n"
    return head.encode() + BODY


async def open_client(bench: Bench, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(bench.url.rpartition(":")[2]), **options)
    return reader, writer


async def ask_sleeping(bench: Bench) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request to a service that rests at zero."""
    service = make_service("team", "chat")
    service["spec"]["scaling"] = {"minReplicas": 0}
    bench.gateway.service_sinks[0].apply(service)
    reader, writer = await open_client(bench)
    writer.write(write_request())
    return reader, writer


@pytest.mark.parametrize(("num", "num_answered"), [(1000, 1000), (4000, 1)], ids=["64 KiB", "more"])
async def test_of_what_a_client_sends_behind_its_request_little_is_kept(num: int, num_answered: int) -> None:
    answer, ask = asyncio.Event(), b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n123456789"

    async def handle(request: Request) -> None:
        await answer.wait()
        request.respond(200, b"", [])

    async with serving(handle) as server:
        reader, writer = await connect(server)
        await wait_until_async("the server has the client", lambda: server.connections)
        (connection,) = server.connections
        flood, size = ask * num, 500 * len(ask)
        for start in range(0, len(flood), size):  # each read ends within a body
            connection.data_received(flood[max(0, start - 4) : start + size - 4])
        connection.data_received(flood[-4:])
        assert len(connection._backlog._requests or ()) * len(ask) <= 1024
        assert len(connection._backlog.held) <= server.limits.max_pipelined_bytes
        assert connection._transport.is_reading()
        answer.set()
        for _ in range(num_answered):
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        if num_answered < num:
            assert await reader.read() == b""
        writer.close()


async def test_a_client_that_leaves_with_much_behind_its_request_ends_that_at_once() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def handle(_: Request) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with serving(handle) as server:
        _, writer = await connect(server)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 10_000)
        await begun.wait()
        writer.close()
        async with asyncio.timeout(5):
            await ended.wait()


ASK = b"GET / HTTP/1.1\r\nHost: a\r\n"


async def test_unfinished_heads_are_bounded_together_and_whole_ones_pass() -> None:
    async with serving(max_kept_bytes=100_000) as server:
        writers = []
        for number in range(2):
            writers.append((await connect(server))[1])
            writers[-1].write(ASK + b"x: " + b"y" * 40_000)
            least = 40_000 * (number + 1)
            await wait_until_async("the head counts", lambda least=least: server.num_kept_bytes > least)
        answer = await send(server, ASK + b"x: " + b"y" * 60_000, pieces=1000)  # it sends on when refused
        assert (answer[:13], answer.count(b"HTTP/1.1 ")) == (b"HTTP/1.1 429 ", 1)
        assert (await send(server, ASK + b"x: " + b"y" * 40_000 + b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        for writer in writers:
            writer.close()
        await wait_until_async("nothing counts", lambda: not server.num_kept_bytes)


@pytest.mark.parametrize("num_behind", [1, 60])
async def test_what_follows_a_request_counts_and_is_not_served_beyond_the_bound(num_behind: int) -> None:
    answer = asyncio.Event()

    async def handle(request: Request) -> None:
        await answer.wait()
        request.respond(200, b"", [])

    async with serving(handle, max_kept_bytes=2_000) as server:
        reader, writer = await connect(server)
        writer.write((ASK + b"\r\n") * (1 + num_behind))
        await wait_until_async("the request is there", lambda: any(one.is_busy for one in server.connections))
        assert server.num_kept_bytes <= 2_000
        answer.set()
        is_served = (await read_all(reader)).count(b"HTTP/1.1 200 ") == 1 + num_behind
        assert is_served == (num_behind == 1)
        assert not server.num_kept_bytes
        writer.close()


@pytest.mark.parametrize(
    ("more", "limits"),
    [(b"", {"max_kept_bytes": 2_000}), (b"Connection: close\r\n", {})],
    ids=["shed", "last"],
)
async def test_a_client_that_sends_on_behind_its_last_request_reads_the_answer(
    more: bytes, limits: dict[str, int]
) -> None:
    answer = asyncio.Event()

    async def handle(request: Request) -> None:
        await answer.wait()
        request.respond(200, b"whole", [])

    async with serving(handle, **limits) as server:
        reader, writer = await connect(server)
        writer.write(ASK + more + b"\r\n" + (ASK + b"\r\n") * 100_000)
        await wait_until_async("the server has the client", lambda: server.connections)
        (connection,) = server.connections
        await wait_until_async("it serves no more", lambda: connection._is_over)
        answer.set()
        answers = await reader.read()  # a reset would raise
        assert (answers.count(b"HTTP/1.1 "), answers[-5:]) == (1, b"whole")
        writer.close()


async def test_the_pieces_of_one_read_are_converted_together() -> None:
    """Chunks of one byte, each converted by itself, would hold the loop for tens of milliseconds a read."""
    answer, convert = Mock(), Mock(side_effect=[b"", b"B"])
    relay = Relay(Mock(), answer, Mock(), convert)
    for pieces in ([b"a"] * 3, [b"b", b"c"]):
        relay.take(pieces)
    assert [call.args for call in convert.mock_calls] == [(b"aaa",), (b"bc",)]
    answer.write.assert_called_once_with(b"B")
    assert relay.last == b"B"


@pytest.mark.parametrize("moment", ["before the answer", "in the answer"])
async def test_a_client_that_leaves_ends_its_generation_at_once(bench: Bench, moment: str) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def generate(request: web.Request) -> web.StreamResponse:
        await request.read()
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if moment == "in the answer":
            await answer.prepare(request)
            await answer.write(b"data: 1\n\n")
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return answer

    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", generate)
    reader, writer = await open_client(bench)
    writer.write(write_request())
    await begun.wait()
    if moment == "in the answer":
        await reader.readuntil(b"data: 1\n\n")
    writer.close()
    async with asyncio.timeout(0.1):
        await ended.wait()
    await bench.until(lambda: not bench.gateway.lifecycle.num_in_flight)
    told = {"namespace": "team", "service": "chat", "outcome": "client_left"}
    assert bench.value("millrace_gateway_requests_finished_total", **told) == 1


async def test_a_slow_client_slows_its_replica_and_loses_nothing_in_a_drain(bench: Bench) -> None:
    num_written, size = 0, 64 * MEBIBYTE

    async def pour(request: web.Request) -> web.StreamResponse:
        nonlocal num_written
        answer = web.StreamResponse()
        await answer.prepare(request)
        for _ in range(64):
            await answer.write(b"x" * MEBIBYTE)
            num_written += MEBIBYTE
        return answer

    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", pour)
    async with bench.client.post(bench.url + PATH, data=BODY) as answer:
        before = 0
        while num_written > before:  # until the client's slowness has come to the replica
            before = num_written
            await asyncio.sleep(0.05)
        assert num_written < size / 2
        drain = asyncio.create_task(bench.gateway.drain(bench.sites))
        read = 0
        while piece := await answer.content.read(MEBIBYTE):
            read += len(piece)
            assert not drain.done() or read > size - 8 * MEBIBYTE
    assert read == size
    await drain


async def test_a_replica_that_gives_up_a_slow_client_has_not_failed(bench: Bench) -> None:
    async def give_up(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                while True:
                    await answer.write(b"x" * MEBIBYTE)
        request.transport.abort()
        gave_up.set()
        return answer

    gave_up = asyncio.Event()
    bench.add_service("team", "chat")
    uid = await bench.add_upstream("team", "chat", give_up)
    async with bench.client.post(bench.url + PATH, data=BODY) as cut:
        await gave_up.wait()
        with pytest.raises(aiohttp.ClientError):
            await cut.read()
    await bench.until(lambda: not bench.gateway.lifecycle.num_in_flight)
    assert not bench.gateway.balancer.is_ejected(uid, asyncio.get_running_loop().time())


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_no_client_takes_a_cut_answer_for_whole(bench: Bench, version: str) -> None:
    async def break_off(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"half")
        await asyncio.sleep(0.05)
        request.transport.abort()  # type: ignore[union-attr]
        return answer

    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", break_off)
    reader, writer = await open_client(bench)
    writer.write(write_request(version))
    if version == "1.0":
        with pytest.raises(ConnectionResetError):
            await reader.read()
    else:
        answer = await reader.read()
        assert answer.endswith(b"4\r\nhalf\r\n")
    writer.close()


async def test_the_end_of_a_pod_object_ends_its_exchanges(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(millrace_gateway.server, "GONE_SECONDS", 0.05)

    async def hang(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        await answer.write(b"data: 1\n\n")
        await asyncio.Event().wait()
        return answer

    bench.add_service("team", "chat")
    uid = await bench.add_upstream("team", "chat", hang)
    reader, writer = await open_client(bench)
    writer.write(write_request())
    await reader.readuntil(b"data: 1\n\n")
    bench.gateway.replica_sinks[0].delete(make_pod("team", "chat", uid))
    async with asyncio.timeout(1):
        assert b"upstream_error" in await reader.read()
    writer.close()


async def test_a_connection_is_used_again_for_the_same_pod_alone(bench: Bench) -> None:
    peers = set()

    async def note(request: web.Request) -> web.Response:
        peers.add(request.transport.get_extra_info("peername"))  # type: ignore[union-attr]
        return web.json_response({})

    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", note)
    for _ in range(5):
        async with bench.client.post(bench.url + PATH, data=BODY) as answer:
            assert answer.status == 200
    assert len(peers) == 1


async def test_a_wait_gets_comments_and_a_late_refusal_is_an_event(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_stream, "BEGIN_SECONDS", 0.02)
    monkeypatch.setattr(early_stream, "COMMENT_SECONDS", 0.02)

    async def stream(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        await answer.write(b"data: 1\n\n")
        return answer

    reader, writer = await ask_sleeping(bench)
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"HTTP/1.1 200 OK" in head
    assert b"text/event-stream" in head
    await reader.readuntil(b": waiting\n\n")
    await reader.readuntil(b": waiting\n\n")
    uid = await bench.add_upstream("team", "chat", stream)
    bench.gateway.holder.release()
    await reader.readuntil(b"data: 1\n\n")
    await reader.readuntil(b"0\r\n\r\n")
    bench.gateway.replica_sinks[0].delete(make_pod("team", "chat", uid))
    writer.write(write_request())
    await reader.readuntil(b": waiting\n\n")
    bench.gateway.holder.close()
    await reader.readuntil(b'"code": "no_ready_replica"')
    await reader.readuntil(b"0\r\n\r\n")
    writer.close()


async def test_a_replica_that_breaks_off_what_ends_a_waiting_stream_has_failed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_stream, "BEGIN_SECONDS", 0.02)

    async def break_off(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "99"})
        await answer.prepare(request)
        await answer.write(b'{"half":')
        assert request.transport is not None
        request.transport.close()
        return answer

    reader, writer = await ask_sleeping(bench)
    await reader.readuntil(b": waiting\n\n")
    uid = await bench.add_upstream("team", "chat", break_off)
    bench.gateway.holder.release()
    await reader.readuntil(b"upstream_error")
    await reader.readuntil(b"0\r\n\r\n")
    assert bench.gateway.balancer.is_ejected(uid, asyncio.get_running_loop().time())
    writer.close()


@pytest.mark.parametrize(
    ("status", "passed", "outcome"),
    [(404, 404, "completed"), (429, 429, "refused"), (500, 502, "upstream_error")],
)
async def test_a_handshake_that_its_replica_refuses_is_no_failure(
    bench: Bench, status: int, passed: int, outcome: str
) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=status, text="no", headers={"X-Own": "1"})

    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", refuse)
    headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    for _ in range(2):  # on one connection
        async with bench.client.get(f"{bench.url}/v1/x?model=chat", headers=headers) as answer:
            found = (answer.status, await answer.text() == "no", answer.headers.get("X-Own"))
        assert found == ((status, True, "1") if status == passed else (passed, False, None))
    told = {"namespace": "team", "service": "chat", "outcome": outcome}
    assert bench.value("millrace_gateway_requests_finished_total", **told) == 2


async def test_a_websocket_passes_both_ways(bench: Bench) -> None:
    seen = {}

    async def echo(request: web.Request) -> web.WebSocketResponse:
        seen.update(request.headers)
        answer = web.WebSocketResponse()
        await answer.prepare(request)
        async for message in answer:
            await answer.send_str(message.data * 2)
        return answer

    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", echo)
    headers = {"Host": "chat.team.svc", "Authorization": "Bearer secret"}
    async with bench.client.ws_connect(f"{bench.url}/v1/stream", headers=headers) as client:
        for text in ("a", "b" * 100_000):
            await client.send_str(text)
            assert (await client.receive()).data == text * 2
    await bench.until(lambda: not bench.gateway.lifecycle.num_in_flight)
    told = {"namespace": "team", "service": "chat", "outcome": "completed"}
    assert bench.value("millrace_gateway_requests_finished_total", **told) == 1
    assert "Authorization" not in seen
    async with bench.client.ws_connect(f"{bench.url}/v1/stream?model=chat") as client:
        await client.send_str("a")
    for url, headers, status in (
        ("/v1/stream?model=other", {}, 404),
        ("/v1/stream", {"Host": "chat.team.svc", "Origin": "https://evil.example"}, 403),
    ):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await bench.client.ws_connect(bench.url + url, headers=headers)
        assert refused.value.status == status
    bench.add_service("team", "gone")
    bench.add_pod("team", "gone", "gone-1", next_address())  # nobody listens there
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await bench.client.ws_connect(bench.url + "/v1/stream?model=gone")
    assert refused.value.status == 503
    told = {"namespace": "team", "service": "gone", "outcome": "no_replica"}
    assert bench.value("millrace_gateway_requests_finished_total", **told) == 1
    bench.add_pod("team", "chat", "lost", next_address())
    for _ in range(4):  # another replica takes those that the lost one would have got
        async with bench.client.ws_connect(f"{bench.url}/v1/stream?model=chat") as client:
            await client.send_str("a")
            assert (await client.receive()).data == "aa"
    assert bench.gateway.balancer.is_ejected("lost", asyncio.get_running_loop().time())


async def test_a_client_that_reads_nothing_or_single_bytes_is_disconnected_and_a_slow_one_is_not() -> None:
    """A kernel does not report room for single bytes (RFC 9293, 3.8.6.2.2), so nobody sees them read."""

    async def pour(request: Any) -> None:
        request.respond(200, b"x" * 64 * MEBIBYTE, [])

    async with serving(pour, stall_seconds=0.2) as server:
        streams = [await connect(server, limit=1024) for _ in range(3)]
        for _, writer in streams:
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        reader, slow = streams[0][0], streams[0][1].get_extra_info("sockname")
        await wait_until_async(
            "all clients as slow", lambda: all(one.writer.is_paused for one in server.connections)
        )
        (left,) = (c for c in server.connections if c._transport.get_extra_info("peername") == slow)
        now = asyncio.get_running_loop().time()
        for step in range(10):
            server.now = lambda step=step: now + step * 0.15
            unread = count_unread(left._transport)
            while count_unread(left._transport) >= unread:
                assert await reader.read(1 << 18)
                await asyncio.sleep(0)
            await streams[1][0].read(1)
            for connection in list(server.connections):
                connection.check(server.now())
        assert server.connections == {left}
        for _, writer in streams:
            writer.close()


async def test_the_kernel_looks_whether_silent_peers_live() -> None:
    async with serving() as server:
        _, writer = await connect(server)
        await asyncio.sleep(0.02)
        (connection,) = server.connections
        found = connection._transport.get_extra_info("socket")
        assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == sockets.IDLE_SECONDS
        writer.close()


LOSE_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)
"""A socket filter that returns 0: the kernel drops what arrives, as if the node were lost."""
SO_ATTACH_FILTER = 26


def lose(peer: socket.socket) -> None:
    program = ctypes.create_string_buffer(LOSE_ALL)
    peer.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))


@pytest.mark.slow
async def test_a_lost_replica_is_noticed_whatever_it_was_doing_and_a_silent_one_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Linux counts no probes where TCP_USER_TIMEOUT is longer: a silent stream once hung for 300 s.

    A replica that lives may be silent for ever: it computes.
    """
    for name in ("IDLE_SECONDS", "INTERVAL_SECONDS", "NUM_PROBES"):
        monkeypatch.setattr(sockets, name, 1)
    monkeypatch.setattr(replica_connection, "REPLICA_SECONDS", 2)
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n"
    switched = b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    loop, lost = asyncio.get_running_loop(), list[bytes | None]()

    async def connect_both() -> tuple[ReplicaConnection, socket.socket]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            _, replica = await loop.create_connection(ReplicaConnection, *listener.getsockname())
            peer, _ = await loop.sock_accept(listener)
        return replica, peer

    async def ask(head: bytes | None) -> None:
        replica, peer = await connect_both()
        with peer:
            if head is None:
                lose(peer)
            asking = asyncio.create_task(replica.ask(b"GET / HTTP/1.1\r\n\r\n", b"", may_switch=True))
            if head is None:
                with pytest.raises(TimeoutError):
                    await asking
            else:
                await loop.sock_recv(peer, 1024)
                await loop.sock_sendall(peer, head)
                await asking
                lose(peer)
                collector = Collector()
                replica.attach(collector)
                with pytest.raises(BrokenAnswerError):
                    await collector.body
        lost.append(head)

    silent, living = await connect_both()
    asking = asyncio.create_task(silent.ask(b"GET / HTTP/1.1\r\n\r\n", b""))
    with living:
        await loop.sock_recv(living, 1024)
        await loop.sock_sendall(living, chunked)
        await asking
        collector = Collector()
        silent.attach(collector)
        async with asyncio.timeout(30):
            await asyncio.gather(*(ask(head) for head in (None, chunked, switched)))
            assert len(lost) == 3
            await loop.sock_sendall(living, b"0\r\n\r\n")
            assert await collector.body == b"a"
    silent.abort()


def test_a_lost_node_is_noticed_within_half_a_minute_and_a_lost_client_within_two() -> None:
    assert sockets.IDLE_SECONDS < sockets.REPLICA_SECONDS <= 30
    assert sockets.CLIENT_SECONDS <= 120
    assert "acknowledged nothing for 30 s" in describe_failure(TimeoutError(110, "timed out")).message
