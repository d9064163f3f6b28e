"""How the commands listen. Only this module decides the meaning of a missing address.

Standard library only: operator, gateway, node cache, fetch and a replica's supervisor use it.
"""

import argparse
import errno
import socket
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from millrace_runtime import contract

BACKLOG = 2048
"""Connections that may wait to be accepted. Pass it to the server too: aiohttp listens again, with 128."""
_NO_IPV6 = frozenset({errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.EADDRNOTAVAIL, errno.ENOPROTOOPT})
"""The errors of a kernel without IPv6, or with IPv6 disabled."""
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}  # noqa: S104  shown, not bound

SocketMaker = Callable[[socket.AddressFamily, socket.SocketKind], socket.socket]


class _Place(NamedTuple):
    family: socket.AddressFamily
    address: tuple[Any, ...]
    """As the family's sockets take it."""


def read_bind_address(environment: Mapping[str, str]) -> str:
    """Return the address in the environment, else the default."""
    return environment.get(contract.ENV_BIND_ADDRESS) or contract.DEFAULT_BIND_ADDRESS


def parse_port(text: str) -> int:
    """Return the port in a flag's value. Raises ArgumentTypeError, which argparse shows."""
    if not text.isdecimal() or not 0 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"a port is a number from 0 to 65535, not {text!r}")
    return int(text)


def open_listener(address: str, port: int, make_socket: SocketMaker = socket.socket) -> socket.socket:
    """Return a listening socket. Raises OSError.

    An empty address means all addresses of the machine, IPv6 and IPv4. Any other address is literal.
    """
    if address:
        return _listen(_resolve(address, port), make_socket)
    try:
        return _listen(_Place(socket.AF_INET6, ("::", port)), make_socket)
    except OSError as error:
        if error.errno not in _NO_IPV6:
            raise
        return _listen(_Place(socket.AF_INET, ("0.0.0.0", port)), make_socket)  # noqa: S104  meant to be all


def describe_failure(
    error: OSError,
    address: str,
    port: int,
    *,
    port_flag: str = "--port",
    address_setting: str = f"--host or {contract.ENV_BIND_ADDRESS}",
) -> str:
    """Return why `open_listener` failed, with advice. The keywords name the settings of port and address."""
    if error.errno == errno.EADDRINUSE:
        advice = f"end the process that listens there, or give another {port_flag}"
    elif error.errno == errno.EACCES:  # a port below 1024, for most users
        advice = f"give another {port_flag}"
    else:
        advice = f"give another address with {address_setting}"
    return f"can't listen on {show_address(address, port)}: {error.strerror or error}; {advice}"


def show_address(address: str, port: int) -> str:
    """Return address and port as a log shows them; `*` stands for all addresses."""
    return f"[{address}]:{port}" if ":" in address else f"{address or '*'}:{port}"


def local_url(listener: socket.socket) -> str:
    """Return a URL that reaches the listener from this machine."""
    address, port = listener.getsockname()[:2]
    return f"http://{show_address(_LOOPBACK.get(address, address), port)}"


def _resolve(address: str, port: int) -> _Place:
    """Resolve an address or a name. A name's IPv4 address has priority over its IPv6 address."""
    found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, place = min(found, key=lambda info: info[0] != socket.AF_INET)
    return _Place(family, place)


def _listen(place: _Place, make_socket: SocketMaker) -> socket.socket:
    listener = make_socket(place.family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if place.family == socket.AF_INET6:
            # With any value of net.ipv6.bindv6only, "::" means all addresses, IPv6 and IPv4.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(place.address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
