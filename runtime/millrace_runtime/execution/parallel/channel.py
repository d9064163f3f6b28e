"""One end of a socket pair between the engine and a worker: frames of messages, of one type each way."""

import select
import socket
from typing import Generic, TypeVar

from millrace_runtime.protocol.encoding import FrameDecoder, encode_frame

Message = TypeVar("Message")
SEND_SECONDS = 5.0
"""A peer that reads nothing for so long is stopped, because a worker always reads."""
_READ_BYTES = 1 << 20


class ChannelClosed(Exception):  # noqa: N818  names the state
    """The other end is closed, or reads nothing."""


class Channel(Generic[Message]):
    """Sends anything, and receives messages of one union of types."""

    def __init__(self, sock: socket.socket, received: type[Message]) -> None:
        self._sock = sock
        self._sock.settimeout(SEND_SECONDS)
        self._decoder = FrameDecoder(received)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def fileno(self) -> int:
        """Return the descriptor, so that `poll` can wait for it."""
        return self._sock.fileno()

    def send_frame(self, frame: bytes) -> None:
        """Send an encoded frame. Raises ChannelClosed."""
        try:
            self._sock.sendall(frame)
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def send(self, message: object) -> None:
        """Encode a message and send it. Raises ChannelClosed."""
        self.send_frame(encode_frame(message))

    def receive(self, timeout_seconds: float | None) -> list[Message]:
        """Return the messages that have come. Wait up to a time for the first bytes; None: without end.

        Raises ChannelClosed at the end, after it has returned every message.
        """
        if not self._poll.poll(None if timeout_seconds is None else timeout_seconds * 1000):
            return []
        try:
            data = self._sock.recv(_READ_BYTES)
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        if not data:
            raise ChannelClosed("the other end closed the socket")
        return self._decoder.feed(data)

    def close(self) -> None:
        """Close this end."""
        self._sock.close()
