"""The answer to one request, in the framing that its client understands."""

from typing import TYPE_CHECKING

from millrace_gateway.http.head import Headers, find_header, status_line, write_headers

if TYPE_CHECKING:
    from millrace_gateway.http.client_connection import ClientConnection
    from millrace_gateway.http.request import Request

LAST_CHUNK = b"0\r\n\r\n"
_SWITCHING = 101
_NO_BODY = frozenset({_SWITCHING, 204, 304})


class Answer:
    """Writes an answer. Its head goes with the first piece of its body, in one write.

    Without an announced length an HTTP/1.1 client gets chunks: an answer without its last chunk is not whole.
    An HTTP/1.0 client reads to the connection's end, so a cut answer ends with a reset (`abort`).
    """

    __slots__ = (
        "_connection",
        "_ends_by_close",
        "_head",
        "_is_chunked",
        "_request",
        "_sends_body",
        "is_ended",
        "status",
    )

    def __init__(
        self,
        connection: "ClientConnection",
        request: "Request",
        status: int,
        headers: Headers,
        reason: bytes = b"",
    ) -> None:
        self._connection = connection
        self._request = request
        self.status = status
        self.is_ended = False
        has_length = find_header(headers, b"content-length") is not None
        self._sends_body = request.method != b"HEAD" and status not in _NO_BODY
        self._is_chunked = self._sends_body and not has_length and not request.is_http_10
        self._ends_by_close = self._sends_body and not has_length and request.is_http_10
        if self._ends_by_close:
            request.keeps_alive = False
        if not connection.may_keep(request):
            request.keeps_alive = False
        self._head = b"%b%b%b%b\r\n" % (
            status_line(status, reason),
            write_headers(headers),
            write_headers(connection.extra_headers(request)),
            b"" if status == _SWITCHING else self._framing(),
        )

    def _framing(self) -> bytes:
        chunked = b"transfer-encoding: chunked\r\n" if self._is_chunked else b""
        if not self._request.keeps_alive:
            return chunked + b"connection: close\r\n"
        return chunked + b"connection: keep-alive\r\n" if self._request.is_http_10 else chunked

    def flush(self) -> None:
        """Send the head now."""
        if self._head:
            self._connection.writer.write(self._head)
            self._head = b""

    def write(self, piece: bytes) -> None:
        """Send a piece of the body. The connection reports when the client is too slow for more."""
        if not self._sends_body or not piece:
            return
        if self._is_chunked:
            piece = b"%x\r\n%b\r\n" % (len(piece), piece)
        if self._head:
            piece = self._head + piece
            self._head = b""
        self._connection.writer.write(piece)

    def end(self, piece: bytes = b"") -> None:
        """Send the last piece, and end the answer."""
        self.is_ended = True
        if not self._sends_body:
            piece = b""
        elif self._is_chunked:
            piece = b"%x\r\n%b\r\n0\r\n\r\n" % (len(piece), piece) if piece else LAST_CHUNK
        piece = self._head + piece
        self._head = b""
        if piece:
            self._connection.writer.write(piece)
        self._connection.end_answer(self._request)

    def abort(self) -> None:
        """End the connection in a way that no client takes the answer for whole."""
        self.is_ended = True
        self.flush()
        self._connection.cut(resets=self._ends_by_close)
