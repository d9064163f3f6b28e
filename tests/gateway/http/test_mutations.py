"""Requests with a few bytes changed: what the gateway reads, aiohttp and nginx read alike, or they refuse it.

aiohttp's parser here is the one in Python: that in C is the gateway's own, llhttp.
"""

import asyncio
import logging
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParserPy
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace_gateway.errors import RequestRefusedError
from millrace_gateway.http.limits import ConnectionLimits
from millrace_gateway.http.request_parser import RequestHead, RequestParser
from tests.gateway.http.byte_cases import (
    CHUNKED,
    LAST,
    NGINX,
    READ,
    REFUSED,
    SMUGGLED,
    echoing,
    nginx_before,
    parse_answers,
)

PIECES = (
    *(b"", b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b",", b";", b"\0", b"\x0b", b"\x85", b"0", b"3", b"+"),
    *(b"0x", b"_", b"chunked", b"HTTP/1.0", b"HTTP/1.1", b'"', b"Content-Length: 3\r\n", CHUNKED, SMUGGLED),
    *(b"Host: b\r\n", b"Transfer-Encoding: identity\r\n", b"Connection: close\r\n", b"Content-Length:\r\n"),
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """One or two requests with up to three changes, and one more that is whole."""
    data = draw(st.sampled_from([*READ.values()] * 4 + [*REFUSED.values()]))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        end = start + draw(st.integers(0, 4))
        data = data[:start] + draw(st.sampled_from([*PIECES, data[start:end] * 2])) + data[end:]
    return data + LAST


class Read(NamedTuple):
    """A request as a server has read it: the body as far as it has come."""

    method: str
    target: str
    host: str
    body: bytes
    is_whole: bool


class Reading(NamedTuple):
    """All that a server has read of some bytes."""

    requests: list[Read]
    is_over: bool
    """Whether it reads nothing more: it has refused, or closes, or the rest is of another protocol."""


class Receiver:
    """Takes what the gateway's parser has read."""

    def __init__(self) -> None:
        self.requests: list[Read] = []
        self.is_over = False

    def take_head(self, head: RequestHead) -> bool:
        if self.is_over:
            return False
        self.requests.append(Read(head.method.decode(), head.target, head.host, b"", is_whole=False))
        self.is_over = not head.keeps_alive
        return False

    def take_body(self, piece: bytes) -> None:
        self.requests[-1] = self.requests[-1]._replace(body=self.requests[-1].body + piece)

    def take_end(self) -> None:
        self.requests[-1] = self.requests[-1]._replace(is_whole=True)


def read_by_us(data: bytes) -> Reading:
    receiver, is_over = Receiver(), False
    parser = RequestParser(receiver, ConnectionLimits())
    try:
        for at in range(len(data)):
            parser.feed(data[at : at + 1])
    except RequestRefusedError:
        is_over = True
    return Reading(receiver.requests, is_over or receiver.is_over)


def decode_again(text: str) -> str:
    """Decode what aiohttp has decoded as the gateway does."""
    return text.encode("utf-8", "surrogateescape").decode("latin-1")


def read_by_aiohttp(data: bytes) -> Reading:
    found: list[tuple[Any, Any]] = []
    parser = HttpRequestParserPy(BaseProtocol(Mock()), Mock(), 2**16)
    is_over = False
    try:
        for at in range(len(data)):
            messages, is_upgraded, _ = parser.feed_data(data[at : at + 1])
            found += messages
            is_over = is_upgraded or bool(found and found[-1][0].should_close and found[-1][1].is_eof())
            if is_over:
                break
    except HttpProcessingError:
        is_over = True
    is_broken = any(payload.exception() is not None for _, payload in found)
    requests = []
    for one, payload in found:
        host, body = decode_again(one.headers.get("Host", "")), b"".join(getattr(payload, "_buffer", ()))
        requests.append(Read(one.method, one.path, host, body, payload.is_eof()))
    return Reading(requests, is_over or is_broken)


def assert_alike(data: bytes, ours: Reading, theirs: Reading) -> None:
    """Whatever both read is the same, and who reads more does so because the other one has ended."""
    for our, their in zip(ours.requests, theirs.requests, strict=False):
        target, host = our.target, our.host
        if their.target.startswith("http"):
            target, host = their.target, their.host  # the gateway's Host is the target's
        assert our._replace(target=target, host=host)[:3] == their[:3], (data, ours, theirs)
        if our.is_whole and their.is_whole:
            assert our.body == their.body, (data, ours, theirs)
        else:
            assert ours.is_over or theirs.is_over or our.is_whole == their.is_whole, (data, ours, theirs)
    if len(ours.requests) < len(theirs.requests):
        assert ours.is_over, (data, ours, theirs)
    if len(ours.requests) > len(theirs.requests):
        assert theirs.is_over, (data, ours, theirs)


@given(mutated())
def test_what_both_read_of_changed_bytes_is_alike(data: bytes) -> None:
    assert_alike(data, read_by_us(data), read_by_aiohttp(data))


@pytest.mark.long
@settings.get_profile("long")
@given(mutated())
def test_what_both_read_of_many_changed_bytes_is_alike(data: bytes) -> None:
    assert_alike(data, read_by_us(data), read_by_aiohttp(data))


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed (Debian: nginx-light)")
async def test_what_nginx_passes_on_of_changed_bytes_is_read_alike(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It passes on what it has read; its refusal ends the connection."""
    caplog.set_level(logging.CRITICAL, "aiohttp.server")  # nginx passes on what aiohttp refuses
    examples: list[bytes] = []

    @given(mutated().filter(lambda data: b"://" not in data))  # nginx takes such a target's path alone
    def collect(data: bytes) -> None:
        examples.append(data)

    collect()
    more = 'proxy_set_header Connection ""; proxy_ignore_client_abort on;'
    async with echoing() as url, nginx_before(url.removeprefix("http://"), tmp_path, more) as path:
        for data in examples:
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(data)
            writer.write_eof()
            async with asyncio.timeout(30):
                answer = await reader.read()
            writer.close()
            passed = [
                Read(method, target, decode_again(host), body.encode("latin-1"), is_whole=True)
                for method, target, host, body in await parse_answers(answer)
            ]
            assert_alike(data, read_by_us(data), Reading(passed, is_over=True))
