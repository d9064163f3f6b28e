"""Cuts a connection whose client reads nothing of what is buffered for it."""

from asyncio import AbstractEventLoop, TimerHandle, Transport


class StallClock:
    """Looks once in so many seconds whether the buffer went down: a client that reads slowly stays."""

    def __init__(self, loop: AbstractEventLoop, transport: Transport, seconds: float) -> None:
        self._loop = loop
        self._transport = transport
        self._seconds = seconds
        self._timer: TimerHandle | None = None
        self._num_bytes = 0
        """Buffered when it was last looked at."""

    def start(self) -> None:
        """Begin to watch, unless nothing is buffered or it is watched already."""
        if self._timer is None:
            self._num_bytes = self._transport.get_write_buffer_size()
            if self._num_bytes:
                self._timer = self._loop.call_later(self._seconds, self._look)

    def stop(self) -> None:
        """Watch no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._transport.get_write_buffer_size() < self._num_bytes:
            self.start()
        else:
            self._transport.abort()
