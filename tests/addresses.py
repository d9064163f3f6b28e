"""Servers on IPv6 and IPv4, as tests ask for them."""

import socket

import pytest
from aiohttp import web


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


def free_ipv6_port() -> int:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        port: int = listener.getsockname()[1]
        return port


def url_of(site: web.BaseSite, host: str) -> str:
    """The URL of a site that listens on a port of its choice, by one of its addresses."""
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
