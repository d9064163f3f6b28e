"""httptools' parser, but that an offer to upgrade changes nothing: a server may ignore it, and we do.

Java's HttpClient offers h2c with its first request. httptools takes what follows such a head for the other
protocol: the body would be lost, and the next request could not be read.
"""

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_FRAMING = (b"content-length", b"transfer-encoding")


class Parser:
    """Behind a head with an offer a fresh parser goes on, told by a copy how long the body is."""

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        self._protocol = protocol
        self._parser = httptools.HttpRequestParser(self)
        self._is_in_copy = False

    def feed_data(self, data: bytes) -> None:
        """Parse what came. Raises HttpParserError."""
        while data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
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
        """Return whether another protocol begins: never."""
        return False

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
        """Tell the protocol."""
        if not self._is_in_copy:
            self._protocol.on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Tell the protocol."""
        if not self._is_in_copy:
            self._protocol.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Tell the protocol."""
        if not self._is_in_copy:
            self._protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        """Tell the protocol, or end the copy."""
        if self._is_in_copy:
            self._is_in_copy = False
        else:
            self._protocol.on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Tell the protocol."""
        self._protocol.on_body(body)

    def on_message_complete(self) -> None:
        """Tell the protocol, unless only httptools thinks so: the copy's end is the message's."""
        if not self._parser.should_upgrade():
            self._protocol.on_message_complete()
