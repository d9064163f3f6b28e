"""Connects a client's WebSocket to a replica. Its messages pass as they are."""

from millrace_gateway.errors import ReplicaRefusedError, UpstreamFailedError
from millrace_gateway.front.headers import handshake_headers
from millrace_gateway.front.upstream import Upstream, UpstreamRequest, describe_failure
from millrace_gateway.http.head import Headers
from millrace_gateway.http.relay import Relay, Tunnel
from millrace_gateway.http.request import Request
from millrace_gateway.route.objects import Replica

SWITCHING = 101


async def relay_websocket(
    upstream: Upstream, request: Request, handshake: UpstreamRequest, replica: Replica, more: Headers
) -> None:
    """Send the handshake with `more` headers, and pass bytes both ways until a side ends.

    Raises UpstreamFailedError if the replica does not switch.
    """
    try:
        found = await upstream.ask(handshake, replica, more)
    except ReplicaRefusedError as error:
        raise describe_failure(error) from error
    try:
        if found.head.status != SWITCHING:
            raise UpstreamFailedError(f"The replica answered with the status {found.head.status}.")
        client = request.connection
        request.begin(SWITCHING, handshake_headers(found.head.headers)).flush()
        found.connection.write(client.take_held())
        await Relay(client, Tunnel(client), found.connection).run()
        client.cut(resets=False)
    finally:
        upstream.end(replica, found)
