"""Writes the access log without ever stopping the gateway: a thread writes, and a full buffer drops lines.

The event loop hands over the lines of a twentieth of a second together: a thread that wakes for each line
would take the interpreter from the loop thousands of times a second.
"""

import asyncio
import os
from queue import SimpleQueue
from threading import Thread

from millrace_gateway.access.access_log import LoggedRequest, format_dropped, format_line

MOST_BYTES = 1024 * 1024
"""Of lines that wait while the log's reader has stopped."""
GATHER_SECONDS = 0.05


class LogWriter:
    """Owner of the lines that are not written yet. To be used by the event loop alone."""

    def __init__(self, descriptor: int, most_bytes: int = MOST_BYTES) -> None:
        """Write to an open file, which stays open."""
        self._descriptor = descriptor
        self._most_bytes = most_bytes
        self._lines: list[bytes] = []
        self._num_bytes = 0
        """Of all lines that `write` has ever accepted."""
        self._num_written = 0
        """Of these, the bytes that the thread has written or given up. Only the thread changes it."""
        self._num_unreported = 0
        """Dropped lines that no line reports yet."""
        self.num_dropped = 0
        """Lines that were never written, since the start."""
        self._batches: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="access-log", daemon=True)
        self._thread.start()

    def write(self, request: LoggedRequest) -> None:
        """Take one request's line; drop it if too many wait."""
        line = format_line(request)
        if self._num_bytes - self._num_written + len(line) > self._most_bytes:
            self.num_dropped += 1
            self._num_unreported += 1
            return
        if self._num_unreported:
            line = format_dropped(self._num_unreported) + line
            self._num_unreported = 0
        self._num_bytes += len(line)
        self._lines.append(line)
        if len(self._lines) == 1:
            asyncio.get_running_loop().call_later(GATHER_SECONDS, self._hand_over)

    def close(self, seconds: float = 1.0) -> None:
        """Write what waits, for so long at most."""
        self._hand_over()
        self._batches.put(None)
        self._thread.join(seconds)

    def _hand_over(self) -> None:
        if self._lines:
            self._batches.put(b"".join(self._lines))
            self._lines = []

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            rest = memoryview(batch)
            try:
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            except OSError:  # its reader has gone, and nobody would read a report
                pass
            self._num_written += len(batch)
