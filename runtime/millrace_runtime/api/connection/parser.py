"""httptools' parser, which ignores every offer to upgrade but that of our WebSocket. HTTP allows this.

Java's HttpClient offers h2c with its first request. httptools takes the bytes after such a head for the other
protocol: the server would lose the body and could not read the next request.
"""

from collections.abc import Callable

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_FRAMING = (b"content-length", b"transfer-encoding")


class Parser:
    """Parses requests. After a head with an offer, a new parser goes on.

    The new parser first gets a copy of that head without the offer, and learns the body's length from it.
    """

    def __init__(self, protocol: HttpToolsProtocol, accepts_upgrade: Callable[[], bool]) -> None:
        """`accepts_upgrade` says whether another protocol begins behind the head that was read."""
        self._protocol = protocol
        self._accepts_upgrade = accepts_upgrade
        self._parser = httptools.HttpRequestParser(self)
        self._is_in_copy = False

    def feed_data(self, data: bytes) -> None:
        """Parse the bytes. Raises HttpParserError, and HttpParserUpgrade behind an accepted head."""
        while data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                if self._accepts_upgrade():
                    raise
                data = data[offer.args[0] :]
                self._decline()
            else:
                return

    def _decline(self) -> None:
        framing = [b"%b: %b\r\n" % header for header in self._protocol.headers if header[0] in _FRAMING]
        self._parser = httptools.HttpRequestParser(self)
        self._is_in_copy = True
        self._parser.feed_data(b"POST / HTTP/1.1\r\n" + b"".join(framing) + b"\r\n")

    def should_upgrade(self) -> bool:
        """Return whether another protocol begins."""
        return bool(self._parser.should_upgrade()) and self._accepts_upgrade()

    def should_keep_alive(self) -> bool:
        """Return whether the connection outlives the request."""
        return self._parser.should_keep_alive()

    def get_method(self) -> bytes:
        """Return the request's method."""
        return self._parser.get_method()

    def get_http_version(self) -> str:
        """Return the request's version."""
        return self._parser.get_http_version()

    def on_message_begin(self) -> None:
        """Pass the call on, unless the parser reads the copy."""
        if not self._is_in_copy:
            self._protocol.on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Pass the call on, unless the parser reads the copy."""
        if not self._is_in_copy:
            self._protocol.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Pass the call on, unless the parser reads the copy."""
        if not self._is_in_copy:
            self._protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        """Pass the head's end on, or end the copy."""
        if self._is_in_copy:
            self._is_in_copy = False
        else:
            self._protocol.on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass a piece of the body on."""
        self._protocol.on_body(body)

    def on_message_complete(self) -> None:
        """Pass the message's end on, unless httptools ends it early because of the offer."""
        if not self._parser.should_upgrade():
            self._protocol.on_message_complete()
