"""Our way of writing a chunk beside uvicorn's, on its own request: should uvicorn change, this fails."""

import asyncio
import logging
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from millrace_runtime.api.connection.transport import ChunkWriter
from tests.runtime.api.served import Served
from tests.runtime.api.test_connections import connect, read_to_end

DATA = b'data: {"text": "a"}\n\n'


class Written(asyncio.Transport):
    """A transport that only remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += data


def open_cycle(method: str = "POST") -> RequestResponseCycle:
    logger, transport = logging.getLogger("test"), Written()
    return RequestResponseCycle(
        scope={"method": method},  # type: ignore[typeddict-item]
        transport=transport,
        flow=FlowControl(transport),
        logger=logger,
        access_logger=logger,
        access_log=False,
        default_headers=[],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=True,
        on_response=lambda: None,
    )


async def begin(cycle: RequestResponseCycle, *headers: tuple[bytes, bytes]) -> Written:
    await cycle.send({"type": "http.response.start", "status": 200, "headers": list(headers)})
    transport: Any = cycle.transport
    transport.data = b""
    return transport


async def test_a_chunk_is_what_uvicorn_would_write() -> None:
    ours, theirs = open_cycle(), open_cycle()
    our_transport, their_transport = await begin(ours), await begin(theirs)
    assert ChunkWriter(ours).write(DATA)
    await theirs.send({"type": "http.response.body", "body": DATA, "more_body": True})
    assert our_transport.data == their_transport.data != b""
    for cycle in (ours, theirs):
        await cycle.send({"type": "http.response.body", "body": b"", "more_body": False})
    assert our_transport.data == their_transport.data
    assert ours.response_complete


async def test_uvicorn_writes_what_is_no_chunk_and_where_it_has_to_wait_or_let_go() -> None:
    for method, header in (("HEAD", None), ("POST", (b"content-length", b"99"))):
        cycle = open_cycle(method)
        assert not ChunkWriter(cycle).write(DATA)  # no head yet
        transport = await begin(cycle, *([header] if header else []))
        assert not ChunkWriter(cycle).write(DATA)
        assert transport.data == b""
    paused, gone = open_cycle(), open_cycle()
    for cycle in (paused, gone):
        await begin(cycle)
    paused.flow.pause_writing()
    gone.disconnected = True
    assert not ChunkWriter(paused).write(DATA)
    assert not ChunkWriter(gone).write(DATA)
    paused.flow.resume_writing()
    assert ChunkWriter(paused).write(DATA)


async def test_a_stream_is_written_by_it(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    write = ChunkWriter.write
    monkeypatch.setattr(ChunkWriter, "write", lambda self, data: written.append(data) or write(self, data))
    body = b'{"prompt": "a", "max_tokens": 5, "stream": true}'
    async with connect(served) as (reader, writer):
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        answer = await read_to_end(reader)
    assert len(written) > 1
    assert all(b"%x\r\n%b\r\n" % (len(data), data) in answer for data in written)
    assert answer.endswith(b"0\r\n\r\n")
