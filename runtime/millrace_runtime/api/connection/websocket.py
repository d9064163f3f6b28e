"""uvicorn's WebSockets, which end at once for a client that has gone."""

from uvicorn.protocols.websockets.wsproto_impl import WSProtocol


class WebSocketProtocol(WSProtocol):
    """Ends at once when the client answers no ping. An orderly end would wait until it reads its answers."""

    def keepalive_timeout(self) -> None:
        """Disconnect the client."""
        self.transport.abort()
