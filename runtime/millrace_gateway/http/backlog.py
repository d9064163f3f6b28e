"""What a client has sent behind the request that is being answered: other requests, and bytes."""

from collections import deque
from typing import TYPE_CHECKING

from millrace_gateway.http.request import Request
from millrace_gateway.http.request_parser import RequestParser

if TYPE_CHECKING:
    from millrace_gateway.http.server import HttpServer


class Backlog:
    """Owner of what one connection keeps for later, and of its part of the server's `num_kept_bytes`."""

    __slots__ = ("_num_bytes", "_requests", "_server", "held")

    def __init__(self, server: "HttpServer") -> None:
        self._server = server
        self._requests: deque[Request] | None = None
        """Behind the active one, if there are any."""
        self.held = b""
        """Bytes behind the newest request, not parsed yet."""
        self._num_bytes = 0

    def add(self, request: Request) -> None:
        """Keep a request until those before it are answered."""
        self._requests = self._requests or deque()
        self._requests.append(request)

    def take(self) -> Request | None:
        """Return the next request; None without one."""
        return self._requests.popleft() if self._requests else None

    def drop_newest(self) -> Request | None:
        """Forget the last request. Return the one before it, if it waits, too."""
        assert self._requests is not None
        self._requests.pop()
        return self._requests[-1] if self._requests else None

    def take_held(self) -> bytes:
        """Return the kept bytes, and forget them."""
        held, self.held = self.held, b""
        if held:
            self._note(0)
        return held

    def count(self, parser: RequestParser) -> bool:
        """Count all of it, and a head that has arrived in part.

        Return whether it has grown although all connections together keep more than they may.
        """
        if not (parser.num_loose_bytes or self._num_bytes or self.held or self._requests):
            return False  # as for nearly every request
        num_before, num_bytes = self._num_bytes, parser.num_kept_bytes + len(self.held)
        if self._requests:
            num_bytes += sum(one.num_head_bytes + one.num_body_bytes for one in self._requests)
        self._note(num_bytes)
        return num_bytes > num_before and self._server.num_kept_bytes > self._server.limits.max_kept_bytes

    def _note(self, num_bytes: int) -> None:
        self._server.num_kept_bytes += num_bytes - self._num_bytes
        self._num_bytes = num_bytes

    def clear(self, head_bytes: int = 0) -> None:
        """Forget everything, but a head that has arrived in part."""
        self._requests, self.held = None, b""
        self._note(head_bytes)
