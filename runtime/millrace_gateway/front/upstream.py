"""Sends requests to replicas."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from millrace_gateway.errors import (
    BadRequestError,
    BrokenAnswerError,
    ReplicaDrainingError,
    TokenRefusedError,
    UpstreamFailedError,
)
from millrace_gateway.front.body_budget import BodyBudget, BodyShare
from millrace_gateway.http.head import AnswerHead, Headers, find_header, write_headers
from millrace_gateway.http.pool import Pool
from millrace_gateway.http.replica_connection import ReplicaConnection
from millrace_gateway.http.sockets import REPLICA_SECONDS
from millrace_gateway.route.body_fields import MalformedBodyError, replace_model
from millrace_gateway.route.objects import Replica
from millrace_gateway.settings import Settings
from millrace_runtime.contract import HEADER_DRAINING, HEADER_GATEWAY_TOKEN, PORT_HTTP

logger = logging.getLogger(__name__)

MOST_FETCHED_BYTES = 64 * 1024
"""Of an answer to the gateway's own request."""
_TOKEN = HEADER_GATEWAY_TOKEN.lower().encode()
_DRAINING = HEADER_DRAINING.lower().encode()


@dataclass(slots=True)
class UpstreamRequest:
    """A request for replicas. It can be sent again until it is released."""

    method: bytes
    path: str
    """With its query, encoded as the client sent it."""
    lines: bytes
    """The headers for the replica, written."""
    body: bytes
    model: str | None
    """The service's name in the body; None if the body is forwarded unchanged."""
    share: BodyShare
    """The body's share of the budget."""
    on_report: Callable[[bytes], None] | None = None
    """Gets the usage that a replica reports before its answer."""
    is_handshake: bool = False
    """Whether it asks for a WebSocket."""
    is_sent: bool = False
    """Whether a replica may have got some of it."""

    def put_model(self, served_name: str | None) -> None:
        """Write the replica's served name into the body."""
        if self.model is not None and served_name is not None and self.model != served_name:
            self.body, self.model = replace_model(self.body, served_name), served_name

    def release(self) -> None:
        """Release body and headers: a replica has begun to answer, and no other will get them."""
        self.body = self.lines = b""
        self.share.release()

    def write_head(self, address: str, more: bytes) -> bytes:
        """Return the head for the replica at this address (IPv4 or IPv6), with `more` headers."""
        body = self.body
        length = b"content-length: %d\r\n" % len(body) if body or self.method != b"GET" else b""
        return b"%b %b HTTP/1.1\r\nhost: %b\r\n%b%b%b\r\n" % (
            self.method,
            self.path.encode("latin-1"),
            show_host(address).encode(),
            self.lines,
            more,
            length,
        )


@dataclass(slots=True)
class UpstreamAnswer:
    """The head of a replica's answer, and the connection on which its body comes."""

    head: AnswerHead
    connection: ReplicaConnection


class Collector:
    """A Sink that keeps a short body."""

    def __init__(self) -> None:
        self.body: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._pieces: list[bytes] = []

    def take(self, pieces: list[bytes]) -> None:
        """Keep pieces."""
        self._pieces += pieces
        if sum(map(len, self._pieces)) > MOST_FETCHED_BYTES:
            self._end(BrokenAnswerError("its answer is too long"))

    def end(self, *, is_whole: bool) -> None:
        """Set the body, or an error if the replica broke off."""
        self._end(None if is_whole else BrokenAnswerError("it broke off"))

    def pause_client(self) -> None:
        """There is no client."""

    def resume_client(self) -> None:
        """There is no client."""

    def _end(self, error: BrokenAnswerError | None) -> None:
        if self.body.done():
            return
        if error is None:
            self.body.set_result(b"".join(self._pieces))
        else:
            self.body.set_exception(error)


class Upstream:
    """Owner of the connections to replicas."""

    def __init__(self, settings: Settings) -> None:
        self._pool = Pool(connect_seconds=settings.connect_seconds, idle_seconds=settings.keepalive_seconds)
        self.end_replica = self._pool.end
        self.close = self._pool.close

    async def ask(self, request: UpstreamRequest, replica: Replica, more: Headers) -> UpstreamAnswer:
        """Send the request with `more` headers, and return the head of the answer.

        Raises ReplicaRefusedError if the replica has not begun the request, and UpstreamFailedError if it
        failed before it answered: it may have begun.
        """
        request.is_sent = False
        try:
            request.put_model(replica.served_name)
        except MalformedBodyError as error:
            raise BadRequestError(f"The request body is not JSON: {error}.") from error
        connection = self._pool.take(replica.uid)
        if connection is None:
            connection = await self._pool.connect(replica.uid, replica.address, PORT_HTTP)
        request.is_sent = True
        connection.reports.on_usage = request.on_report
        try:
            head = await connection.ask(
                request.write_head(replica.address, write_headers(more)),
                request.body,
                has_body=request.method != b"HEAD",
                may_switch=request.is_handshake,
            )
        except (BrokenAnswerError, OSError) as error:
            self._pool.give_back(replica.uid, connection)
            where = f"{replica.key.namespace}/{replica.pod}"
            logger.warning("pod %s failed before it answered: %r", where, error)
            raise describe_failure(error) from error
        except BaseException:
            self._pool.give_back(replica.uid, connection)
            raise
        if head.status == 503 and find_header(head.headers, _DRAINING) is not None:
            connection.abort()
            self._pool.give_back(replica.uid, connection)
            raise ReplicaDrainingError("it is draining")
        if head.status == 401 and find_header(head.headers, _TOKEN) is not None:
            connection.abort()
            self._pool.give_back(replica.uid, connection)
            where = f"{replica.key.namespace}/{replica.pod}"
            logger.warning(
                "pod %s does not accept this gateway's token: compare the clocks of their nodes", where
            )
            raise TokenRefusedError("it does not accept the gateway's token")
        return UpstreamAnswer(head, connection)

    async def fetch(self, replica: Replica, path: str, headers: Headers) -> bytes:
        """Return the body of a short answer to the gateway's own request.

        Raises ReplicaRefusedError, UpstreamFailedError and BrokenAnswerError.
        """
        share = BodyBudget(0).open_share()
        request = UpstreamRequest(b"GET", path, lines=b"", body=b"", model=None, share=share)
        answer = await self.ask(request, replica, headers)
        try:
            return await read_answer(answer)
        finally:
            self.end(replica, answer)

    def end(self, replica: Replica, answer: UpstreamAnswer) -> None:
        """End an exchange. If its answer is not complete, this ends the generation, too."""
        self._pool.give_back(replica.uid, answer.connection)


async def read_answer(answer: UpstreamAnswer) -> bytes:
    """Return the body of a short answer. Raises BrokenAnswerError."""
    collector = Collector()
    answer.connection.attach(collector)
    return await collector.body


def describe_failure(error: Exception) -> UpstreamFailedError:
    """Return the error for a client whose replica failed before it answered."""
    if isinstance(error, TimeoutError):  # the kernel's, see `http/sockets.py`
        return UpstreamFailedError(
            f"The replica acknowledged nothing for {REPLICA_SECONDS} s: its node is lost, or its process "
            "stands still. Send the request again."
        )
    return UpstreamFailedError(
        "The replica closed the connection before it answered. Send the request again; the replica's log "
        "has the reason."
    )


def show_host(address: str) -> str:
    """Return the Host of a replica at a pod's address."""
    return f"[{address}]:{PORT_HTTP}" if ":" in address else f"{address}:{PORT_HTTP}"
