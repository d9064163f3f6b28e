"""GET /livez on a port of its own, answered by the supervisor from what the heartbeat says."""

import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from millrace_runtime import contract


class _LiveHandler(BaseHTTPRequestHandler):
    """One request. A client that dawdles holds a thread for five seconds and nothing else."""

    timeout = 5
    server: "_LiveHTTPServer"

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != contract.PATH_LIVE:
            self._answer(HTTPStatus.NOT_FOUND, f"only {contract.PATH_LIVE} is here")
            return
        stall = self.server.find_stall()
        self._answer(HTTPStatus.SERVICE_UNAVAILABLE if stall else HTTPStatus.OK, stall or "alive")

    def _answer(self, status: HTTPStatus, text: str) -> None:
        body = f"{text}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  http.server's name
        """Say nothing: probes come every few seconds."""


class _LiveHTTPServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listener: socket.socket, find_stall: Callable[[], str | None]) -> None:
        super().__init__(listener.getsockname()[:2], _LiveHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.find_stall = find_stall

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Let a probe that hung up go."""


class LiveServer:
    """Answers probes from a thread, whatever the other processes do."""

    def __init__(self, listener: socket.socket, find_stall: Callable[[], str | None]) -> None:
        """Takes over a listening socket; `find_stall` says what hangs, or None."""
        self._server = _LiveHTTPServer(listener, find_stall)
        self._thread = threading.Thread(target=self._server.serve_forever, name="livez", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
