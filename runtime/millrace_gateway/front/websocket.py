"""Passes a client's WebSocket on to the replica that has taken it. Its messages pass as they are."""

from millrace_gateway.errors import UpstreamFailedError
from millrace_gateway.front.headers import handshake_headers
from millrace_gateway.front.upstream import UpstreamAnswer
from millrace_gateway.http.relay import Relay, Tunnel
from millrace_gateway.http.request import Request

SWITCHING = 101


async def relay_websocket(request: Request, upstream: UpstreamAnswer) -> None:
    """Pass bytes both ways until a side ends. Raises UpstreamFailedError if the replica did not switch."""
    if upstream.head.status != SWITCHING:
        raise UpstreamFailedError(f"The replica answered with the status {upstream.head.status}.")
    client = request.connection
    request.begin(SWITCHING, handshake_headers(upstream.head.headers)).flush()
    upstream.connection.write(client.take_held())
    await Relay(client, Tunnel(client), upstream.connection).run()
    client.cut(resets=False)
