"""The engine's end of the socket to the HTTP process: blocking, one thread, no event loop."""

import select
import socket

from millrace_runtime.protocol.framing import FrameDecoder, encode_frame
from millrace_runtime.protocol.messages import FromEngine, ToEngine
from millrace_runtime.replica.errors import PeerGone

_READ_BYTES = 1 << 20


class EngineChannel:
    """Receives and sends messages."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._decoder: FrameDecoder[ToEngine] = FrameDecoder(ToEngine)  # type: ignore[arg-type]

    def receive(self, timeout_seconds: float) -> list[ToEngine]:
        """Return the messages that have come, having waited up to `timeout_seconds` for the first.

        Raises PeerGone when the other end has closed, and FrameError for what is no message.
        """
        messages: list[ToEngine] = []
        while self._poll.poll(0 if messages else timeout_seconds * 1000):
            timeout_seconds = 0
            messages += self._decoder.feed(self._read())
        return messages

    def send(self, message: FromEngine) -> None:
        """Send a message, which waits while the other end reads slowly. Raises PeerGone."""
        try:
            self._sock.sendall(encode_frame(message))
        except OSError as error:
            raise PeerGone(f"the HTTP process is gone: {error.strerror}") from error

    def _read(self) -> bytes:
        try:
            data = self._sock.recv(_READ_BYTES)
        except OSError as error:
            raise PeerGone(f"the HTTP process is gone: {error.strerror}") from error
        if not data:
            raise PeerGone("the HTTP process closed its socket")
        return data
