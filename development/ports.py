"""A port that nobody else is given until the program for which it was chosen listens there."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def holding_port() -> Iterator[int]:
    """Hold a free port of 127.0.0.1. A server that shares addresses may listen there meanwhile."""
    with socket.socket() as holder:
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            holder.setsockopt(socket.SOL_SOCKET, option, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])
