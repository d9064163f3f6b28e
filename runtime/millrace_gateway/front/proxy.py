"""Serves one request under `/v1/`: finds the service, picks a replica, streams the answer, counts.

The gateway holds a request's body, within a limit, so that it can send the body to a second replica. It never
holds an answer. It tries a second replica only if the first has not begun: it refused the connection, or
answered 503 with the draining header. A request that was sent and failed is not sent again: it may be what
killed the replica.
"""

import asyncio
from collections.abc import Collection
from contextlib import nullcontext
from typing import NamedTuple

from millrace_gateway.errors import (
    BusyError,
    ModelNotFoundError,
    NoReplicaError,
    NotSyncedError,
    ReplicaDrainingError,
    ReplicaRefusedError,
    RequestRefusedError,
    UnsupportedEncodingError,
    UpstreamFailedError,
)
from millrace_gateway.front.body import describe_fullness, read_body
from millrace_gateway.front.body_budget import BodyBudget, BodyShare
from millrace_gateway.front.early_stream import EarlyStream
from millrace_gateway.front.headers import (
    RequestHeaders,
    drop_credentials,
    find_query,
    handshake_headers,
    response_headers,
)
from millrace_gateway.front.holding import Awaited, Holder
from millrace_gateway.front.upstream import Upstream, UpstreamAnswer, UpstreamRequest, describe_failure
from millrace_gateway.http.head import is_event_stream, write_headers
from millrace_gateway.http.relay import Relay, RelayEnd, Tunnel
from millrace_gateway.http.request import Request
from millrace_gateway.lifecycle import Lifecycle
from millrace_gateway.report.metrics import Metrics, Outcome, RetryCause
from millrace_gateway.report.report import Activity
from millrace_gateway.route.balance import Balancer, has_candidate
from millrace_gateway.route.catalogue import Catalogue, Route
from millrace_gateway.route.objects import Replica
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
from millrace_runtime.contract import PATHS_WORK

REFUSED_SECONDS = 1.0
"""Before a replica that refused is tried again, if the request may wait and there is no other."""
SWITCHING = 101
_BROKE_OFF = UpstreamFailedError("The replica broke off in the middle of its answer. Send the request again.")


class Exchange(NamedTuple):
    """One request on its way."""

    request: Request
    upstream: UpstreamRequest
    route: Route
    early: EarlyStream
    """Its answer, if that has to begin before a replica's."""


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
        self._host_policy = HostPolicy(
            settings.cluster_domain, settings.own_namespace, settings.public_hosts, settings.short_hosts
        )
        self._headers = RequestHeaders(settings.forward_headers)
        self._now = asyncio.get_running_loop().time

    async def handle(self, request: Request) -> None:
        """Answer one request."""
        with self._lifecycle.count_request():
            early = EarlyStream(request)
            try:
                if request.tunnel:
                    await self._serve_websocket(request)
                else:
                    await self._serve(request, early)
            except RequestRefusedError as refusal:
                self.refuse(request, refusal, early)
            finally:
                early.stop()

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

    async def _serve(self, request: Request, early: EarlyStream) -> None:
        rule = self.route_host(request)
        route = rule.route
        with self._bodies.share(route.services[0].key.namespace if route else None) as share:
            try:
                body = await read_body(request, share, self._settings)
                addressed = self._address(request, rule, body)
                route = addressed.route
                if not share.assign(route.services[0].key.namespace):
                    raise describe_fullness(self._settings)
            except BusyError:
                self._count_refused(route)
                raise
            upstream = UpstreamRequest(
                method=request.method,
                path=drop_credentials(request.target),
                lines=write_headers(self._headers.choose(request.headers)),
                body=body,
                model=addressed.model,
                share=share,
            )
            del body  # `upstream` owns it, and releases it
            is_stream = addressed.fields is not None and addressed.fields.is_stream
            await self._serve_and_count(Exchange(request, upstream, route, early), is_stream=is_stream)

    async def _serve_websocket(self, request: Request) -> None:
        """Connect a WebSocket to a replica. The Host names the service, or `model` in the query does."""
        rule = self.route_host(request)
        route = rule.route or find_model(self._catalogue, find_query(request.target, "model"), rule)
        replica = self._pick(route, set())
        with self._activity.count_request(route.sleeper.key):
            if replica is None:
                raise self._describe_absence(route, 0, request.host)
            with self._balancer.count_request(replica), self._bodies.share(replica.key.namespace) as share:
                lines = write_headers(self._headers.choose_handshake(request.headers))
                path = drop_credentials(request.target)
                upstream = UpstreamRequest(request.method, path, lines, b"", None, share)
                await self._connect(request, upstream, replica)

    async def _connect(self, request: Request, upstream: UpstreamRequest, replica: Replica) -> None:
        try:
            found = await self._upstream.ask(upstream, replica, [])
        except ReplicaRefusedError as error:
            raise describe_failure() from error
        try:
            if found.head.status != SWITCHING:
                raise UpstreamFailedError(f"The replica answered with the status {found.head.status}.")
            client = request.connection
            request.begin(SWITCHING, handshake_headers(found.head.headers)).flush()
            found.connection.write(client.take_held())
            await Relay(client, Tunnel(client), found.connection).run()
            client.cut(resets=False)
        finally:
            self._upstream.end(replica, found)

    def _count_refused(self, route: Route | None) -> None:
        """Count a request without room for its body in the metrics of its service."""
        if route is not None:
            with self._metrics.count_request(route.sleeper.key) as ending:
                ending.outcome = Outcome.REFUSED

    def _address(self, request: Request, rule: HostRule, body: bytes) -> Addressed:
        if (request.header(b"content-encoding") or b"identity") != b"identity":
            if rule.route:
                return Addressed(rule.route, None)
            raise UnsupportedEncodingError(
                "The body is compressed and the Host names no service: send it uncompressed."
            )
        return address(self._catalogue, body, rule)

    async def _serve_and_count(self, exchange: Exchange, *, is_stream: bool) -> None:
        route = exchange.route
        replica = self._pick(route, set())
        key = replica.key if replica else route.sleeper.key
        counted = self._activity.count_request(key) if is_work(exchange.request) else nullcontext()
        with counted, self._metrics.count_request(key) as ending:
            try:
                ending.outcome = await self._exchange(exchange, replica, is_stream=is_stream)
            except (NoReplicaError, ModelNotFoundError):
                ending.outcome = Outcome.NO_REPLICA
                raise
            except UpstreamFailedError:
                ending.outcome = Outcome.UPSTREAM_ERROR
                raise

    async def _exchange(self, exchange: Exchange, first: Replica | None, *, is_stream: bool) -> Outcome:
        tried: set[str] = set()
        replica, route, request = first, exchange.route, exchange.request
        may_wait = is_work(request)
        deadline = self._now() + route.sleeper.hold_seconds
        while True:
            if may_wait and self._waits_for_another(route, replica, tried):
                if is_stream:
                    exchange.early.start()
                may_wait = await self._hold(exchange.upstream.share, route, deadline, tried)
                exchange.early.stop()
                replica = self._pick(route, tried)
            if replica is None:
                raise self._describe_absence(route, len(tried), request.host)
            try:
                return await self._ask_one(exchange, replica)
            except ReplicaRefusedError as refusal:
                tried.add(replica.uid)
                cause = (
                    RetryCause.DRAINING if isinstance(refusal, ReplicaDrainingError) else RetryCause.REFUSED
                )
                self._metrics.count_retry(cause)
            replica = self._pick(route, tried)

    def _waits_for_another(self, route: Route, replica: Replica | None, tried: set[str]) -> bool:
        """Whether the request waits for a new replica: the service may rest, and has none that stays."""
        is_going = replica is None or (replica.is_leaving and not tried)
        return is_going and route.sleeper.hold_seconds > 0

    async def _hold(self, share: BodyShare, route: Route, deadline: float, tried: set[str]) -> bool:
        """Wait until a replica that stays can take a request. Return whether another wait may help.

        A replica that refused is tried again after REFUSED_SECONDS: by then the gateway knows that it is
        gone, or it accepts the request.
        """

        def may_go(refused: Collection[str]) -> bool:
            present = self._catalogue.renew(route)
            is_there = has_candidate(self._catalogue.ready_replicas(route), refused)
            return is_there or present is None or not present.sleeper.hold_seconds

        awaited = Awaited(tuple(service.key for service in route.services), may_go, tried)
        now = self._now()
        if now >= deadline or not self._holder.has_room(share):
            return False
        if tried:
            pause = min(REFUSED_SECONDS, deadline - now)
            if not await self._holder.wait(pause, awaited):
                tried.clear()
        if not await self._holder.wait(deadline - self._now(), awaited):
            return False
        present = self._catalogue.renew(route)
        return present is not None and present.sleeper.hold_seconds > 0

    async def _ask_one(self, exchange: Exchange, replica: Replica) -> Outcome:
        try:
            with self._balancer.count_request(replica):
                answer = await self._upstream.ask(exchange.upstream, replica, [])
                try:
                    exchange.upstream.release()
                    self._balancer.note_success(replica)
                    return await self._answer(exchange, answer, replica)
                finally:
                    self._upstream.end(replica, answer)
        except (ReplicaRefusedError, UpstreamFailedError):
            self._suspect(replica)
            raise

    async def _answer(self, exchange: Exchange, upstream: UpstreamAnswer, replica: Replica) -> Outcome:
        head, request, early = upstream.head, exchange.request, exchange.early
        is_stream = is_event_stream(head.headers)
        answer = early.answer
        if answer is None:
            answer = request.begin(head.status, response_headers(head.headers), head.reason)
        elif not is_stream:
            early.refuse(UpstreamFailedError(f"The replica answered with the status {head.status}."))
            return judge(head.status, is_whole=True)
        relay = Relay(request.connection, answer, upstream.connection)
        end = await relay.run()
        if end is RelayEnd.CLIENT_LEFT:
            return Outcome.CLIENT_LEFT
        if end is RelayEnd.BROKEN_OFF:
            self._suspect(replica)
            if is_stream and relay.last.endswith(b"\n\n"):
                answer.write(b"data: " + _BROKE_OFF.body() + b"\n\n")
            answer.abort()
        return judge(head.status, is_whole=end is RelayEnd.WHOLE)

    def _describe_absence(self, route: Route, num_refused: int, host: str) -> RequestRefusedError:
        """Return the refusal, with the present state of the services."""
        present = self._catalogue.renew(route)
        if present is None:
            return ModelNotFoundError(describe_unknown(route.served_name, find_port(host)))
        return NoReplicaError(describe_absence(present, num_refused), self._settings.retry_after_seconds)

    def _suspect(self, replica: Replica) -> None:
        self._balancer.note_failure(replica, self._now())

    def _pick(self, route: Route, tried: set[str]) -> Replica | None:
        return self._balancer.pick(self._catalogue.ready_replicas(route), tried, self._now())


def is_work(request: Request) -> bool:
    """Whether a request asks for a generation. No other request wakes a service or keeps it awake."""
    return request.method == b"POST" and request.path in PATHS_WORK


def judge(status: int, *, is_whole: bool) -> Outcome:
    """Return the outcome of a request whose client has got a replica's answer."""
    if status >= 500 or not is_whole:
        return Outcome.UPSTREAM_ERROR
    return Outcome.REFUSED if status == 429 else Outcome.COMPLETED
