"""Cuts off a client that reads nothing of its buffered answer."""

import struct
import termios
from asyncio import AbstractEventLoop, TimerHandle, Transport
from fcntl import ioctl


class StallClock:
    """Cuts a client off that reads nothing for `seconds`. One that reads slowly stays.

    The loop's own buffer does not show it: the kernel asks for more only once a third of its own is free,
    which may be 1.4 MB. Clients that read 20 KB/s were cut off for it. So what the kernel holds counts too.
    """

    def __init__(self, loop: AbstractEventLoop, transport: Transport, seconds: float) -> None:
        self._loop = loop
        self._transport = transport
        self._seconds = seconds
        self._timer: TimerHandle | None = None
        self._num_bytes = 0
        """What the client had not acknowledged at the last check."""

    def start(self) -> None:
        """Begin to watch, unless nothing is buffered or it is watched already."""
        if self._timer is None:
            self._num_bytes = self._count_bytes()
            if self._num_bytes:
                self._timer = self._loop.call_later(self._seconds, self._check)

    def stop(self) -> None:
        """Watch no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        if self._count_bytes() < self._num_bytes:
            self.start()
        else:
            self._transport.abort()

    def _count_bytes(self) -> int:
        """Return the bytes that the client has not acknowledged; 0 while the loop has none to write."""
        num_buffered = self._transport.get_write_buffer_size()
        sock = self._transport.get_extra_info("socket")
        return num_buffered + _count_sent(sock.fileno()) if num_buffered else 0


def _count_sent(fd: int) -> int:
    """Return the bytes that a socket's kernel holds until they are acknowledged (SIOCOUTQ)."""
    (num_bytes,) = struct.unpack("i", ioctl(fd, termios.TIOCOUTQ, bytes(4)))
    return int(num_bytes)
