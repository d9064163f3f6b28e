"""Passes a client's WebSocket on to the replica that has taken it. Its messages pass as they are."""

from http import HTTPStatus

from millrace_gateway.errors import BrokenAnswerError, UpstreamFailedError
from millrace_gateway.front.headers import handshake_headers, response_headers
from millrace_gateway.front.upstream import UpstreamAnswer, read_answer
from millrace_gateway.http.relay import Relay, Tunnel
from millrace_gateway.http.request import Request

SWITCHING = 101


async def relay_websocket(request: Request, upstream: UpstreamAnswer) -> int:
    """Pass bytes both ways until a side ends, or pass on that the replica refuses. Return the status.

    Raises UpstreamFailedError if the replica neither switched nor refused.
    """
    status = upstream.head.status
    if HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return await _refuse(request, upstream)
    if status != SWITCHING:
        raise UpstreamFailedError(f"The replica answered with the status {status}.")
    client = request.connection
    request.begin(SWITCHING, handshake_headers(upstream.head.headers)).flush()
    upstream.connection.write(client.take_held())
    await Relay(client, Tunnel(client), upstream.connection).run()
    client.cut(resets=False)
    return SWITCHING


async def _refuse(request: Request, upstream: UpstreamAnswer) -> int:
    """Answer with the replica's refusal, whole: no bytes pass the other way."""
    try:
        body = await read_answer(upstream)
    except BrokenAnswerError as error:
        raise UpstreamFailedError(f"The replica refused the WebSocket, and {error}.") from error
    headers = [line for line in response_headers(upstream.head.headers) if line[0] != b"content-length"]
    return request.respond(upstream.head.status, body, headers)
