"""Whole sequences: what is buffered at each look, and whether the connection is cut then. No time passes."""

import asyncio
import socket
from collections.abc import Callable, Iterator

import pytest

from millrace_runtime.api.connection.transport import StallClock


class Buffered(asyncio.Transport):
    """A transport with a buffer of a size that the test sets, over a socket of which the test reads."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__({"socket": sock})
        self.size = 0
        self.is_aborted = False

    def get_write_buffer_size(self) -> int:
        return self.size

    def abort(self) -> None:
        self.is_aborted = True


class Timers(asyncio.AbstractEventLoop):
    """A loop that keeps what is due for the test to call."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def get_debug(self) -> bool:
        return False

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[[], None]
    ) -> asyncio.TimerHandle:
        self.due.append(callback)
        return asyncio.TimerHandle(delay, callback, (), self)


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The server's and the client's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize(
    ("sizes", "is_cut"),
    [
        ([10, 10], True),
        ([10, 12], True),
        ([10, 9, 8, 7], False),
        ([10, 9, 9], True),
        ([10, 0], False),
        ([0], False),
    ],
)
def test_only_a_client_that_reads_nothing_is_cut(
    sockets: tuple[socket.socket, socket.socket], sizes: list[int], *, is_cut: bool
) -> None:
    transport, timers = Buffered(sockets[0]), Timers()
    clock = StallClock(timers, transport, 60)
    transport.size = sizes[0]
    clock.start()
    for size in sizes[1:]:
        assert not transport.is_aborted
        transport.size = size
        timers.due.pop()()
    assert transport.is_aborted == is_cut
    assert bool(timers.due) == (sizes[-1] > 0 and not is_cut)


def test_what_the_client_takes_of_the_kernels_buffer_counts(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    server, client = sockets
    transport, timers = Buffered(server), Timers()
    transport.size = 10
    for _ in range(3):
        server.sendall(b"x" * 1000)
    StallClock(timers, transport, 60).start()
    for _ in range(3):
        client.recv(1000)
        timers.due.pop()()
        assert not transport.is_aborted
    timers.due.pop()()
    assert transport.is_aborted
