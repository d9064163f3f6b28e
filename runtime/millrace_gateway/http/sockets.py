"""Options of TCP sockets, and what the kernel reports of them (Linux)."""

import asyncio
import logging
import resource
import socket
import struct
import termios
from fcntl import ioctl

logger = logging.getLogger(__name__)

MOST_DESCRIPTORS = 65_536
"""A connection takes some KiB: without a bound idle ones alone could take all memory of the gateway's pod."""
FEW_DESCRIPTORS = 10_000
"""Fewer are worth a warning. Usual is a first limit of 1,024 that a process may raise far above this."""
IDLE_SECONDS = 15
INTERVAL_SECONDS = 5
NUM_PROBES = 3
CLIENT_SECONDS, REPLICA_SECONDS = 90, IDLE_SECONDS + NUM_PROBES * INTERVAL_SECONDS
"""A peer that acknowledges nothing, or whose buffer stays full, is given up after this time.

A replica reads at once. A living client may be busy with what it has; one that reads nothing for the server's
`stall_seconds`, which is less, is disconnected anyway. Where this time is set the kernel no longer counts
probes (tcp_keepalive_timer of Linux), so it is also the time until a lost node is noticed.
"""


def raise_descriptors() -> None:
    """Have the kernel allow as many open connections as it may: each request takes two."""
    most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if most != resource.RLIM_INFINITY and most < wanted:
        most = wanted
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if 0 <= most < FEW_DESCRIPTORS:
        logger.warning("only %d file descriptors: raise the container's limit, a request takes two", most)


def keep_alive(transport: asyncio.BaseTransport, lost_seconds: int) -> None:
    """Have the kernel probe a silent peer, and end the connection to one that is lost, after this time.

    Silence of a living peer may last for ever.
    """
    found: socket.socket = transport.get_extra_info("socket")
    if found.family == socket.AF_UNIX:
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_SECONDS)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, INTERVAL_SECONDS)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, NUM_PROBES)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, lost_seconds * 1000)


def reset(transport: asyncio.Transport) -> None:
    """End a connection with a reset, so that its peer can't take it for complete."""
    if not transport.is_closing():
        found: socket.socket = transport.get_extra_info("socket")
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def count_unread(transport: asyncio.Transport) -> int:
    """Return the bytes that the peer has not acknowledged: the loop's, and the kernel's (SIOCOUTQ)."""
    found = transport.get_extra_info("socket")
    try:
        (num_bytes,) = struct.unpack("i", ioctl(found.fileno(), termios.TIOCOUTQ, bytes(4)))
    except (OSError, ValueError, AttributeError):  # closed
        return 0
    return int(num_bytes) + transport.get_write_buffer_size()
