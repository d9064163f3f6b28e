"""Asks one replica after another until one answers, and passes its answer to the client.

It tries a second replica only if the first has not begun: it refused the connection or the gateway's token,
answered 503 with the draining header, or 429 because it is full. A request that was sent and failed is not
sent again: it may be what killed the replica.
"""

import asyncio
from collections.abc import Collection
from http import HTTPStatus

from millrace_gateway.errors import (
    BrokenAnswerError,
    ModelNotFoundError,
    NoReplicaError,
    ReplicaDrainingError,
    ReplicaFullError,
    ReplicaRefusedError,
    RequestRefusedError,
    TokenRefusedError,
    UpstreamFailedError,
)
from millrace_gateway.front.early_stream import EarlyStream
from millrace_gateway.front.exchange import Exchange
from millrace_gateway.front.guard import Guard
from millrace_gateway.front.headers import response_headers
from millrace_gateway.front.holding import Awaited, Holder
from millrace_gateway.front.load_poll import LoadPoll
from millrace_gateway.front.refusals import write_event
from millrace_gateway.front.upstream import Upstream, UpstreamAnswer, read_answer
from millrace_gateway.front.websocket import relay_websocket
from millrace_gateway.http.head import is_event_stream
from millrace_gateway.http.relay import Relay, RelayEnd
from millrace_gateway.report.metrics import Metrics, Outcome, RetryCause
from millrace_gateway.route.balance import Balancer, has_candidate
from millrace_gateway.route.catalogue import Catalogue
from millrace_gateway.route.objects import Replica
from millrace_gateway.route.routing import describe_absence, describe_unknown, find_port
from millrace_gateway.settings import Settings

REFUSED_SECONDS = 1.0
"""How long a request waits before it tries a replica again that refused it, if it has no other."""
MOST_FULL = 3
"""So many replicas may answer a request that they are full; the last one's answer is the client's. If all are
full, each try makes the request dearer for all.
"""
_CAUSES = {
    ReplicaFullError: RetryCause.FULL,
    ReplicaRefusedError: RetryCause.REFUSED,
    ReplicaDrainingError: RetryCause.DRAINING,
    TokenRefusedError: RetryCause.TOKEN,
}
_BROKE_OFF = UpstreamFailedError("The replica broke off in the middle of its answer. Send the request again.")


class Attempts:
    """Connects the choice of a replica to the connections of client and replica."""

    def __init__(
        self,
        upstream: Upstream,
        catalogue: Catalogue,
        *,
        balancer: Balancer,
        metrics: Metrics,
        holder: Holder,
        guard: Guard,
        loads: LoadPoll,
        settings: Settings,
    ) -> None:
        self._upstream = upstream
        self._catalogue = catalogue
        self._balancer = balancer
        self._metrics = metrics
        self._holder = holder
        self._guard = guard
        self._loads = loads
        self._settings = settings
        self._now = asyncio.get_running_loop().time

    async def await_replica(self, exchange: Exchange) -> None:
        """Wait until the service has a replica that stays, if it may rest. Raises RequestRefusedError."""
        if has_candidate(self._catalogue.ready_replicas(exchange.route), exchange.tried):
            return
        if exchange.route.sleeper.hold_seconds > 0:
            await self._hold(exchange)
        is_gone = self._catalogue.renew(exchange.route) is None
        if is_gone or not self._catalogue.ready_replicas(exchange.route):
            raise self.describe_absence(exchange)

    async def find_answer(self, exchange: Exchange, replica: Replica | None) -> None:
        """Ask one replica after another until one answers; wait for one if the service may rest."""
        may_wait = exchange.is_work
        while True:
            if may_wait and self._waits_for_another(exchange, replica):
                may_wait = await self._hold(exchange)
                replica = self.pick(exchange)
            if replica is None:
                raise self.describe_absence(exchange)
            try:
                exchange.outcome = await self._ask_one(exchange, replica)
            except ReplicaRefusedError as refusal:
                self._note_refusal(exchange, replica, refusal)
            else:
                return
            replica = self.pick(exchange)

    async def connect_websocket(self, exchange: Exchange) -> None:
        """Connect a WebSocket to the first replica that does not refuse it, and relay it until its end."""
        while (replica := self.pick(exchange)) is not None:
            self._balancer.begin(replica)
            try:
                await self._relay_websocket(exchange, replica)
            except ReplicaRefusedError as refusal:
                self._note_refusal(exchange, replica, refusal)
            else:
                return
            finally:
                self._balancer.end(replica)
        raise self.describe_absence(exchange)

    async def _relay_websocket(self, exchange: Exchange, replica: Replica) -> None:
        answer = await self._ask(exchange, replica)
        exchange.upstream.release()
        try:
            self._balancer.note_answer(replica, answer.head.status, self._now(), is_generation=False)
            exchange.status = await relay_websocket(exchange.request, answer)
            exchange.outcome = judge(exchange.status, is_whole=True)
        finally:
            self._upstream.end(replica, answer)

    def _note_refusal(self, exchange: Exchange, replica: Replica, refusal: ReplicaRefusedError) -> None:
        if isinstance(refusal, ReplicaFullError):
            exchange.num_full += 1
            exchange.preference = None  # the least loaded one is next
        else:
            self._balancer.note_failure(replica, self._now(), is_refusal=True)
        exchange.tried.add(replica.uid)
        self._metrics.count_retry(_CAUSES[type(refusal)])

    def _waits_for_another(self, exchange: Exchange, replica: Replica | None) -> bool:
        """Whether the request waits for a new replica: the service may rest, and has none that stays."""
        is_going = replica is None or (replica.is_leaving and not exchange.tried)
        return is_going and exchange.route.sleeper.hold_seconds > 0

    async def _hold(self, exchange: Exchange) -> bool:
        """Wait until a replica that stays can take a request. Return whether another wait may help.

        A replica that refused is tried again after REFUSED_SECONDS: by then the gateway knows that it is
        gone, or it accepts the request.
        """
        route, tried = exchange.route, exchange.tried

        def may_go(refused: Collection[str]) -> bool:
            present = self._catalogue.renew(route)
            is_there = has_candidate(self._catalogue.ready_replicas(route), refused)
            return is_there or present is None or not present.sleeper.hold_seconds

        if exchange.hold_until is None:
            exchange.hold_until = self._now() + route.sleeper.hold_seconds
        deadline = exchange.hold_until
        if self._now() >= deadline or not self._holder.has_room(exchange.share):
            return False
        awaited = Awaited(tuple(service.key for service in route.services), may_go, tried)
        exchange.note_wait()
        if tried:
            pause = min(REFUSED_SECONDS, deadline - self._now())
            if not await self._holder.wait(pause, awaited):
                tried.clear()
        has_come = await self._holder.wait(deadline - self._now(), awaited)
        present = self._catalogue.renew(route)
        return has_come and present is not None and present.sleeper.hold_seconds > 0

    async def _ask_one(self, exchange: Exchange, replica: Replica) -> Outcome:
        num_sequences, asked_at = exchange.num_sequences, self._now()
        self._balancer.begin(replica, num_sequences)
        try:
            answer = await self._ask(exchange, replica)
            try:
                self._loads.note_answer(replica, answer.head.headers, self._now())
                self._balancer.note_answer(
                    replica,
                    answer.head.status,
                    self._now(),
                    is_generation=exchange.is_generation,
                    asked_at=asked_at,
                    tenant=exchange.tenant,
                )
                if answer.head.status == HTTPStatus.TOO_MANY_REQUESTS and self._has_other(exchange, replica):
                    raise ReplicaFullError("it is full")
                exchange.note_begun()
                if answer.connection.has_sent:
                    exchange.upstream.release()
                return await self._answer(exchange, answer, replica)
            finally:
                self._upstream.end(replica, answer)
        finally:
            self._balancer.end(replica, num_sequences)

    def _has_other(self, exchange: Exchange, full: Replica) -> bool:
        """Whether another replica may have room: one that stays, works, and has not refused the request."""
        tried = {full.uid, *exchange.tried, *exchange.avoided}
        return exchange.num_full + 1 < MOST_FULL and any(
            not (one.is_leaving or one.uid in tried or self._balancer.is_ejected(one.uid, self._now()))
            for one in self._catalogue.ready_replicas(exchange.route)
        )

    async def _ask(self, exchange: Exchange, replica: Replica) -> UpstreamAnswer:
        """Return the replica's answer. Raises what `Upstream.ask` raises, and records the failure."""
        try:
            headers = self._guard.choose_headers(exchange.admission, replica)
            return await self._upstream.ask(exchange.upstream, replica, headers)
        except ReplicaRefusedError:
            raise
        except UpstreamFailedError:
            self._balancer.note_failure(replica, self._now())
            exchange.note_begun()
            raise
        except BaseException:  # the client has left, or the request itself is at fault
            self._balancer.note_nothing(replica)
            if exchange.upstream.is_sent:  # the replica may have computed for it
                exchange.note_begun()
            raise

    async def _answer(self, exchange: Exchange, upstream: UpstreamAnswer, replica: Replica) -> Outcome:
        head, request, early = upstream.head, exchange.request, exchange.early
        exchange.status = head.status
        convert, more = self._guard.read_answer(exchange.admission, head.headers)
        if early is None or early.answer is None:
            lines = response_headers(head.headers) + more
            if convert is not None:  # the body becomes shorter
                lines = [line for line in lines if line[0] != b"content-length"]
            answer = request.begin(head.status, lines, head.reason)
        elif is_event_stream(head.headers):
            answer = early.answer
        else:
            return await self._end_early(early, upstream, replica)
        relay = Relay(request.connection, answer, upstream.connection, convert)
        end = RelayEnd.CLIENT_LEFT
        try:
            end = await relay.run()
        finally:
            exchange.note_relay_end(is_whole=end is RelayEnd.WHOLE, was_slow=relay.was_slow)
        if end is RelayEnd.CLIENT_LEFT:
            return Outcome.CLIENT_LEFT
        if end is RelayEnd.BROKEN_OFF:
            if not relay.was_slow:  # else it may have waited too long for its client
                self._balancer.note_failure(replica, self._now())
            if is_event_stream(head.headers) and relay.last.endswith(b"\n\n"):
                answer.write(write_event(_BROKE_OFF, request.path))
            answer.abort()
        elif exchange.is_generation and head.status < HTTPStatus.MULTIPLE_CHOICES:
            self._balancer.note_whole(replica)
        return judge(head.status, is_whole=end is RelayEnd.WHOLE)

    async def _end_early(self, early: EarlyStream, upstream: UpstreamAnswer, replica: Replica) -> Outcome:
        """End an early stream with a replica's answer that is no stream: mostly a refusal."""
        try:
            body = await read_answer(upstream)
        except BrokenAnswerError:
            if upstream.connection.is_lost:  # else its answer is too long
                self._balancer.note_failure(replica, self._now())
            early.refuse(_BROKE_OFF)
            return Outcome.UPSTREAM_ERROR
        early.end(body)
        return judge(upstream.head.status, is_whole=True)

    def describe_absence(self, exchange: Exchange) -> RequestRefusedError:
        """Return the refusal, with the present state of the services."""
        present = self._catalogue.renew(exchange.route)
        if present is None:
            port = find_port(exchange.request.host)
            return ModelNotFoundError(describe_unknown(exchange.route.served_name, port))
        text = describe_absence(present, len(exchange.tried))
        return NoReplicaError(text, self._settings.retry_after_seconds)

    def pick(self, exchange: Exchange) -> Replica | None:
        """Return the replica that the request prefers, else the least loaded one; None without any."""
        replicas, preference = self._catalogue.ready_replicas(exchange.route), exchange.preference
        if exchange.avoided:
            others = tuple(one for one in replicas if one.uid not in exchange.avoided)
            replicas = others if any(one.uid not in exchange.tried for one in others) else replicas
        prefer = preference.choose if preference is not None and len(replicas) > 1 else None
        return self._balancer.pick(replicas, exchange.tried, self._now(), prefer)


def judge(status: int, *, is_whole: bool) -> Outcome:
    """Return the outcome of a request whose client has got a replica's answer."""
    if status >= 500 or not is_whole:
        return Outcome.UPSTREAM_ERROR
    return Outcome.REFUSED if status == 429 else Outcome.COMPLETED
