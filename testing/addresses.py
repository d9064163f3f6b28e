"""Servers on IPv6 and IPv4, as tests ask for them."""

import socket
import struct
from pathlib import Path
from typing import Any, Protocol

import pytest

from millrace_runtime.listener import BACKLOG


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


class Site(Protocol):
    """A listener: aiohttp's, or the gateway's own."""

    _server: Any


def url_of(site: Site, host: str) -> str:
    """The URL of a site that listens on a port of its choice, by one of its addresses."""
    port = site._server.sockets[0].getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def backlog_of(site: Site) -> int:
    """How many connections the kernel lets wait at a site. TCP_INFO of a listener has it as `tcpi_sacked`."""
    info = site._server.sockets[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
    backlog: int = struct.unpack_from("I", info, 28)[0]
    return backlog


def expected_backlog() -> int:
    """BACKLOG, or less where the machine allows less."""
    return min(BACKLOG, int(Path("/proc/sys/net/core/somaxconn").read_text()))
