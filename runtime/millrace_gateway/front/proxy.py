"""Serves one request under `/v1/`: finds the service, picks a replica, streams the answer, counts.

The gateway holds a request's body, within a limit, so that it can send the body to a second replica. It never
holds an answer. It tries a second replica only if the first has not begun: it refused the connection, or
answered 503 with the draining header. A request that was sent and failed is not sent again: it may be what
killed the replica.
"""

import asyncio
from collections.abc import Collection
from functools import partial

from millrace_gateway.errors import (
    BrokenAnswerError,
    BusyError,
    ModelNotFoundError,
    NoReplicaError,
    NotSyncedError,
    ReplicaDrainingError,
    ReplicaRefusedError,
    RequestRefusedError,
    TokenRefusedError,
    UnsupportedEncodingError,
    UpstreamFailedError,
)
from millrace_gateway.front.body import describe_fullness, read_body
from millrace_gateway.front.body_budget import BodyBudget
from millrace_gateway.front.early_stream import EarlyStream
from millrace_gateway.front.exchange import Exchange
from millrace_gateway.front.guard import Guard
from millrace_gateway.front.headers import (
    RequestHeaders,
    drop_credentials,
    find_query,
    response_headers,
)
from millrace_gateway.front.holding import HELD_BYTES, Awaited, Holder
from millrace_gateway.front.load_poll import LoadPoll
from millrace_gateway.front.turnstiles import Turnstiles
from millrace_gateway.front.upstream import Upstream, UpstreamAnswer, UpstreamRequest, read_answer
from millrace_gateway.front.websocket import SWITCHING, relay_websocket
from millrace_gateway.http.head import is_event_stream, write_headers
from millrace_gateway.http.relay import Relay, RelayEnd
from millrace_gateway.http.request import Request
from millrace_gateway.lifecycle import Lifecycle
from millrace_gateway.report.metrics import Metrics, Outcome, RetryCause
from millrace_gateway.report.report import Activity
from millrace_gateway.route.balance import Balancer, has_candidate
from millrace_gateway.route.catalogue import Catalogue
from millrace_gateway.route.objects import Replica
from millrace_gateway.route.preference import Preferences
from millrace_gateway.route.routing import (
    Addressed,
    HostPolicy,
    HostRule,
    address,
    describe_absence,
    describe_unknown,
    find_model,
    find_port,
    route_host,
)
from millrace_gateway.settings import Settings

REFUSED_SECONDS = 1.0
"""Before a replica that refused is tried again, if the request may wait and there is no other."""
_SESSION = b"x-session-id"
"""A client's own name of a conversation: its requests have one home."""
_CAUSES = {
    ReplicaRefusedError: RetryCause.REFUSED,
    ReplicaDrainingError: RetryCause.DRAINING,
    TokenRefusedError: RetryCause.TOKEN,
}
_BROKE_OFF = UpstreamFailedError("The replica broke off in the middle of its answer. Send the request again.")


class Proxy:
    """The data path: connects routing and balancing to the connections of client and replica."""

    def __init__(
        self,
        upstream: Upstream,
        catalogue: Catalogue,
        *,
        balancer: Balancer,
        metrics: Metrics,
        lifecycle: Lifecycle,
        activity: Activity,
        holder: Holder,
        bodies: BodyBudget,
        guard: Guard,
        turnstiles: Turnstiles,
        loads: LoadPoll,
        preferences: Preferences,
        settings: Settings,
    ) -> None:
        self._upstream = upstream
        self._catalogue = catalogue
        self._balancer = balancer
        self._metrics = metrics
        self._lifecycle = lifecycle
        self._activity = activity
        self._holder = holder
        self._settings = settings
        self._bodies = bodies
        self._guard = guard
        self._turnstiles = turnstiles
        self._loads = loads
        self._preferences = preferences
        self._host_policy = HostPolicy(
            settings.cluster_domain, settings.own_namespace, settings.public_hosts, settings.short_hosts
        )
        self._headers = RequestHeaders(settings.forward_headers)
        self._now = asyncio.get_running_loop().time

    async def handle(self, request: Request) -> None:
        """Answer one request."""
        exchange = Exchange(request, self._bodies.open_share(), self._now())
        self._lifecycle.begin()
        try:
            if request.tunnel:
                await self._serve_websocket(exchange)
            else:
                await self._serve(exchange)
        except RequestRefusedError as refusal:
            exchange.status = refusal.status
            self.refuse(request, refusal, exchange.early)
        finally:
            exchange.end()
            self._guard.settle(exchange.admission)
            self._guard.log(exchange, self._now() - exchange.began)
            self._lifecycle.end()

    def route_host(self, request: Request) -> HostRule:
        """Return the rule of the request's Host. Raises ModelNotFoundError and NotSyncedError."""
        if not self._lifecycle.is_synced:
            raise NotSyncedError(
                "The gateway has just started. Send the request again.", retry_after_seconds=1
            )
        return route_host(self._catalogue, request.host, self._host_policy)

    def refuse(
        self, request: Request, refusal: RequestRefusedError, early: EarlyStream | None = None
    ) -> None:
        """Answer with a refusal, and count it."""
        self._metrics.note_refusal(refusal)
        if early is not None and early.answer is not None:
            early.refuse(refusal)
        else:
            request.respond(refusal.status, refusal.body(), refusal.lines)

    async def _serve(self, exchange: Exchange) -> None:
        rule = self.route_host(exchange.request)
        if rule.route is not None:  # a stranger's body takes no memory of those who have keys
            self._guard.check_key(exchange.request, rule.route)
        body = await self._read(exchange, rule)
        exchange.admission = admission = self._guard.admit(exchange, len(body))
        self._prepare(exchange, body)
        del body  # `upstream` owns it, and releases it
        if admission is None or admission.client is None or not exchange.is_work:
            await self._serve_and_count(exchange)
            return
        key, tenant = admission.service, admission.client.tenant
        turn = await self._turnstiles.enter(
            key, tenant, admission.estimate, partial(self._begin_wait, exchange)
        )
        exchange.note_wait_end()
        try:
            await self._serve_and_count(exchange)
        finally:
            self._turnstiles.leave(turn, admission.usage.num_tokens if admission.usage else None)

    def _begin_wait(self, exchange: Exchange) -> None:
        """Let a request wait for its turn, if there is memory for it. Raises BusyError."""
        if not exchange.share.reserve(HELD_BYTES):
            raise describe_fullness(self._settings)
        exchange.note_wait()

    async def _serve_and_count(self, exchange: Exchange) -> None:
        replica = self._pick(exchange)
        key = replica.key if replica else exchange.route.sleeper.key
        if exchange.is_work:
            self._activity.begin(key)
        ending = self._metrics.begin(key)
        try:
            await self._find_answer(exchange, replica)
        except (NoReplicaError, ModelNotFoundError):
            exchange.outcome = Outcome.NO_REPLICA
            raise
        except UpstreamFailedError:
            exchange.outcome = Outcome.UPSTREAM_ERROR
            raise
        finally:
            ending.end(exchange.outcome)
            if exchange.is_work:
                self._activity.end(key)

    async def _read(self, exchange: Exchange, rule: HostRule) -> bytes:
        """Return the body, once the service is known and its namespace has room for the body."""
        request, share, route = exchange.request, exchange.share, rule.route
        if route is not None:
            share.assign(route.namespace)
        try:
            body = await read_body(request, share, self._settings)
            addressed = self._address(request, rule, body)
            route = self._guard.narrow(addressed.route, self._catalogue.find)
            exchange.note_address(route, addressed)
            if not share.assign(route.namespace):
                raise describe_fullness(self._settings)
        except BusyError:
            if route is not None:
                self._metrics.begin(route.sleeper.key).end(Outcome.REFUSED)
            raise
        return body

    def _prepare(self, exchange: Exchange, body: bytes) -> None:
        """Make the request for replicas, and find out which of several it would rather have."""
        request = exchange.request
        if exchange.is_work and len(self._catalogue.ready_replicas(exchange.route)) != 1:
            salt = self._guard.find_salt(exchange.admission)
            session = request.header(_SESSION)
            exchange.preference = self._preferences.read(exchange.route.services[0].key, body, salt, session)
        exchange.upstream = UpstreamRequest(
            method=request.method,
            path=drop_credentials(request.target),
            lines=write_headers(self._headers.choose(request.headers)),
            body=body,
            model=exchange.model,
            share=exchange.share,
        )

    async def _serve_websocket(self, exchange: Exchange) -> None:
        """Connect a WebSocket to a replica. The Host names the service, or `model` in the query does."""
        request = exchange.request
        rule = self.route_host(request)
        model = find_query(request.target, "model")
        route = self._guard.narrow(
            rule.route or find_model(self._catalogue, model, rule), self._catalogue.find
        )
        exchange.route = route
        exchange.admission = admission = self._guard.admit(exchange, 0)
        replica = self._pick(exchange)
        if replica is None:
            raise self._describe_absence(exchange)
        headers = self._guard.choose_headers(admission, replica)
        lines = write_headers(self._headers.choose_handshake(request.headers))
        path = drop_credentials(request.target)
        handshake = UpstreamRequest(request.method, path, lines, b"", None, exchange.share, is_handshake=True)
        self._activity.begin(route.sleeper.key)
        self._balancer.begin(replica)
        try:
            await relay_websocket(self._upstream, request, handshake, replica, headers)
            exchange.outcome, exchange.status = Outcome.COMPLETED, SWITCHING
        finally:
            self._balancer.end(replica)
            self._activity.end(route.sleeper.key)

    def _address(self, request: Request, rule: HostRule, body: bytes) -> Addressed:
        encoding = request.header(b"content-encoding")
        if encoding is not None and encoding != b"identity":
            if rule.route:
                return Addressed(rule.route, None)
            raise UnsupportedEncodingError(
                "The body is compressed and the Host names no service: send it uncompressed."
            )
        return address(self._catalogue, body, rule)

    async def _find_answer(self, exchange: Exchange, replica: Replica | None) -> None:
        """Ask one replica after another until one answers; wait for one if the service may rest."""
        may_wait = exchange.is_work
        deadline = self._now() + exchange.route.sleeper.hold_seconds
        while True:
            if may_wait and self._waits_for_another(exchange, replica):
                may_wait = await self._hold(exchange, deadline)
                replica = self._pick(exchange)
            if replica is None:
                raise self._describe_absence(exchange)
            try:
                exchange.outcome = await self._ask_one(exchange, replica)
            except ReplicaRefusedError as refusal:
                exchange.tried.add(replica.uid)
                self._metrics.count_retry(_CAUSES[type(refusal)])
            else:
                return
            replica = self._pick(exchange)

    def _waits_for_another(self, exchange: Exchange, replica: Replica | None) -> bool:
        """Whether the request waits for a new replica: the service may rest, and has none that stays."""
        is_going = replica is None or (replica.is_leaving and not exchange.tried)
        return is_going and exchange.route.sleeper.hold_seconds > 0

    async def _hold(self, exchange: Exchange, deadline: float) -> bool:
        """Wait until a replica that stays can take a request. Return whether another wait may help.

        A replica that refused is tried again after REFUSED_SECONDS: by then the gateway knows that it is
        gone, or it accepts the request.
        """
        route, tried = exchange.route, exchange.tried

        def may_go(refused: Collection[str]) -> bool:
            present = self._catalogue.renew(route)
            is_there = has_candidate(self._catalogue.ready_replicas(route), refused)
            return is_there or present is None or not present.sleeper.hold_seconds

        if self._now() >= deadline or not self._holder.has_room(exchange.share):
            return False
        awaited = Awaited(tuple(service.key for service in route.services), may_go, tried)
        exchange.note_wait()
        if tried:
            pause = min(REFUSED_SECONDS, deadline - self._now())
            if not await self._holder.wait(pause, awaited):
                tried.clear()
        has_come = await self._holder.wait(deadline - self._now(), awaited)
        exchange.note_wait_end()
        present = self._catalogue.renew(route)
        return has_come and present is not None and present.sleeper.hold_seconds > 0

    async def _ask_one(self, exchange: Exchange, replica: Replica) -> Outcome:
        headers = self._guard.choose_headers(exchange.admission, replica)
        self._balancer.begin(replica)
        try:
            answer = await self._upstream.ask(exchange.upstream, replica, headers)
            try:
                self._loads.note_answer(replica, answer.head.headers, self._now())
                exchange.note_begun()
                if answer.connection.has_sent:
                    exchange.upstream.release()
                self._balancer.note_success(replica)
                return await self._answer(exchange, answer, replica)
            finally:
                self._upstream.end(replica, answer)
        except (ReplicaRefusedError, UpstreamFailedError) as error:
            self._balancer.note_failure(replica, self._now())
            if isinstance(error, UpstreamFailedError):
                exchange.note_begun()
            raise
        except asyncio.CancelledError:  # the client has left, and the replica may have computed for it
            exchange.note_begun()
            raise
        finally:
            self._balancer.end(replica)

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
            try:
                early.end(await read_answer(upstream))
            except BrokenAnswerError:
                early.refuse(_BROKE_OFF)
            return judge(head.status, is_whole=True)
        relay = Relay(request.connection, answer, upstream.connection, convert)
        end = await relay.run()
        if end is RelayEnd.CLIENT_LEFT:
            return Outcome.CLIENT_LEFT
        if end is RelayEnd.BROKEN_OFF:
            self._balancer.note_failure(replica, self._now())
            if is_event_stream(head.headers) and relay.last.endswith(b"\n\n"):
                answer.write(b"data: " + _BROKE_OFF.body() + b"\n\n")
            answer.abort()
        return judge(head.status, is_whole=end is RelayEnd.WHOLE)

    def _describe_absence(self, exchange: Exchange) -> RequestRefusedError:
        """Return the refusal, with the present state of the services."""
        present = self._catalogue.renew(exchange.route)
        if present is None:
            port = find_port(exchange.request.host)
            return ModelNotFoundError(describe_unknown(exchange.route.served_name, port))
        text = describe_absence(present, len(exchange.tried))
        return NoReplicaError(text, self._settings.retry_after_seconds)

    def _pick(self, exchange: Exchange) -> Replica | None:
        replicas, preference = self._catalogue.ready_replicas(exchange.route), exchange.preference
        prefer = preference.choose if preference is not None and len(replicas) > 1 else None
        return self._balancer.pick(replicas, exchange.tried, self._now(), prefer)


def judge(status: int, *, is_whole: bool) -> Outcome:
    """Return the outcome of a request whose client has got a replica's answer."""
    if status >= 500 or not is_whole:
        return Outcome.UPSTREAM_ERROR
    return Outcome.REFUSED if status == 429 else Outcome.COMPLETED
