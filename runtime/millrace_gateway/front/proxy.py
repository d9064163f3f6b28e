"""Serves one request under `/v1/`: finds its service and its client, has a replica answer it, counts it.

The gateway holds a request's body, within a limit, so that it can send the body to a second replica. It never
holds an answer.
"""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from millrace_gateway.access.identity import Client
from millrace_gateway.access.limits.limiter import estimate_tokens, estimate_turn
from millrace_gateway.access.limits.reservation import Admission
from millrace_gateway.errors import (
    BusyError,
    ModelNotFoundError,
    NotSyncedError,
    RequestRefusedError,
    UnsupportedEncodingError,
)
from millrace_gateway.front.attempts import Attempts
from millrace_gateway.front.body import describe_fullness, read_body
from millrace_gateway.front.body_budget import BodyBudget
from millrace_gateway.front.early_stream import EarlyStream
from millrace_gateway.front.exchange import Exchange
from millrace_gateway.front.guard import Guard
from millrace_gateway.front.headers import RequestHeaders, drop_credentials, find_query, keep_read_later
from millrace_gateway.front.refusals import judge_refusal, write_refusal
from millrace_gateway.front.turnstiles import Turn, Turnstiles
from millrace_gateway.front.upstream import Upstream, UpstreamRequest
from millrace_gateway.http.head import write_headers
from millrace_gateway.http.request import Request
from millrace_gateway.lifecycle import Lifecycle
from millrace_gateway.report.metrics import Metrics, Outcome
from millrace_gateway.report.report import Activity
from millrace_gateway.route.balance import Balancer
from millrace_gateway.route.catalogue import Catalogue
from millrace_gateway.route.objects import ServiceKey
from millrace_gateway.route.preference import Preferences
from millrace_gateway.route.routing import Addressed, HostPolicy, HostRule, address, find_model, route_host
from millrace_gateway.settings import Settings

_SESSION = b"x-session-id"
"""A client's own name of a conversation: its requests have one home."""


class Proxy:
    """The data path: connects routing and balancing to the connections of client and replica."""

    def __init__(
        self,
        upstream: Upstream,
        catalogue: Catalogue,
        attempts: Attempts,
        *,
        balancer: Balancer,
        metrics: Metrics,
        lifecycle: Lifecycle,
        activity: Activity,
        bodies: BodyBudget,
        guard: Guard,
        turnstiles: Turnstiles,
        counting: Turnstiles,
        preferences: Preferences,
        settings: Settings,
    ) -> None:
        self._upstream = upstream
        self._catalogue = catalogue
        self._attempts = attempts
        self._balancer = balancer
        self._metrics = metrics
        self._lifecycle = lifecycle
        self._activity = activity
        self._settings = settings
        self._bodies = bodies
        self._guard = guard
        self._turnstiles = turnstiles
        self._counting = counting
        self._preferences = preferences
        self._host_policy = HostPolicy(
            settings.cluster_domain, settings.own_namespace, settings.public_hosts, settings.short_hosts
        )
        self._headers = RequestHeaders(settings.forward_headers)
        self._now = asyncio.get_running_loop().time

    async def handle(self, request: Request) -> None:
        """Answer one request."""
        share = self._bodies.open_share(head_bytes=request.num_head_bytes)
        exchange = Exchange(request, share, self._now())
        self._lifecycle.begin()
        try:
            if request.tunnel:
                await self._serve_websocket(exchange)
            else:
                await self._serve(exchange)
        except RequestRefusedError as refusal:
            exchange.status = refusal.status
            if exchange.outcome is Outcome.CLIENT_LEFT:  # before it counted: for the log
                exchange.outcome = judge_refusal(refusal)
            self.refuse(request, refusal, exchange.early)
        finally:
            exchange.end()
            self._guard.settle(exchange)
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
            request.respond(refusal.status, write_refusal(refusal, request.path), refusal.lines)

    async def _serve(self, exchange: Exchange) -> None:
        rule = self.route_host(exchange.request)
        self._assign_early(exchange, rule)
        body = await self._read(exchange, rule)
        exchange.admission = admission = self._guard.admit(exchange, len(body))
        if admission is not None and admission.client is not None:
            self._assign_body(exchange, admission.service, admission.client)
        self._prepare(exchange, body)
        del body  # `upstream` owns it, and releases it
        if admission is None or admission.client is None or not exchange.is_work:
            replica = self._attempts.pick(exchange)
            with self._count(exchange, replica.key if replica else exchange.route.sleeper.key):
                await self._attempts.find_answer(exchange, replica)
        else:
            with self._count(exchange, admission.service):
                await self._serve_in_turn(exchange, admission, admission.client)

    async def _serve_in_turn(self, exchange: Exchange, admission: Admission, client: Client) -> None:
        """Serve a client's request when its turn comes. Turns need a replica: without one, it waits first.

        Requests that only count tokens take turns of their own: they cost the bytes that a replica reads, and
        their turns end when their answers begin, however slowly the client reads them.
        """
        num_bytes, num_choices = len(exchange.upstream.body), exchange.fields.num_choices
        turnstiles, estimate = self._turnstiles, admission.estimate.num_tokens
        tokens = estimate_turn(estimate, num_bytes, num_choices)
        if not exchange.is_generation:
            turnstiles, tokens = self._counting, estimate_tokens(num_bytes, 0, 1)
        replica = None
        while replica is None:
            await self._attempts.await_replica(exchange)
            began = self._now()
            turn = await turnstiles.enter(
                admission.service,
                client.tenant,
                tokens,
                exchange.num_sequences,
                on_wait=partial(self._begin_wait, exchange),
            )
            admission.waited_seconds += self._now() - began
            with ExitStack() as taken:
                if exchange.is_generation:
                    taken.callback(self._leave, turn, admission)
                else:
                    taken.callback(turnstiles.leave, turn, None)
                    exchange.on_begun = taken.close
                exchange.avoided = turnstiles.list_silent(turn)
                replica = self._attempts.pick(exchange)
                if replica is not None:
                    await self._attempts.find_answer(exchange, replica)

    def _leave(self, turn: Turn, admission: Admission) -> None:
        """End a generation's turn. What it has used is known now."""
        self._turnstiles.leave(turn, admission.num_charged)

    def _assign_body(self, exchange: Exchange, service: ServiceKey, client: Client) -> None:
        """Count the body as its client's, which is known now. Raises BusyError."""
        if not exchange.share.assign(service.namespace, client.tenant):
            self._metrics.begin(service).end(Outcome.REFUSED)
            raise describe_fullness(self._settings)

    def _assign_early(self, exchange: Exchange, rule: HostRule) -> None:
        """Count a body as its client's before it has arrived, if its Host or its key shows the client.

        So a stranger's body takes no memory of clients with keys. Raises the refusals of `access.errors`.
        """
        request, share = exchange.request, exchange.share
        if rule.route is not None:
            client = self._guard.check_key(request, rule.route)
            share.assign(rule.route.namespace, client and client.tenant)
        elif not request.is_complete and (owner := self._guard.find_owner(request)) is not None:
            share.assign(owner.namespace, owner)

    def _begin_wait(self, exchange: Exchange) -> None:
        """Let a request wait for its turn, if there is memory for it. Raises BusyError."""
        if not exchange.share.hold():
            raise describe_fullness(self._settings)
        exchange.note_wait()

    @contextmanager
    def _count(self, exchange: Exchange, key: ServiceKey) -> Iterator[None]:
        """Count a request of a service from its arrival to its end, also while it waits."""
        keeps_awake = exchange.is_work or exchange.request.tunnel
        if keeps_awake:
            self._activity.begin(key)
        ending = self._metrics.begin(key)
        try:
            yield
        except ModelNotFoundError:  # the service was deleted meanwhile
            exchange.outcome = Outcome.NO_REPLICA
            raise
        except RequestRefusedError as refusal:
            exchange.outcome = judge_refusal(refusal)
            raise
        finally:
            ending.end(exchange.outcome)
            if keeps_awake:
                self._activity.end(key)

    async def _read(self, exchange: Exchange, rule: HostRule) -> bytes:
        """Return the body, once the service is known and its namespace has room for the body."""
        request, share, route = exchange.request, exchange.share, rule.route
        comes_later = not request.is_complete
        try:
            body = await read_body(request, share, self._settings)
            if comes_later:
                rule = self.route_host(request)  # the service may be another one now, or gone
            addressed = self._address(request, rule, body)
            route = self._guard.narrow(addressed.route, self._catalogue.find)
            exchange.note_address(route, addressed)
            self._hold(exchange, 0 if comes_later else len(body))
        except BusyError:
            if route is not None:
                self._metrics.begin(route.sleeper.key).end(Outcome.REFUSED)
            raise
        return body

    def _hold(self, exchange: Exchange, num_bytes: int) -> None:
        """Count so many bytes of a body, and a long head, for the service's namespace. Raises BusyError."""
        share = exchange.share
        if not (share.assign(exchange.route.namespace, num_bytes=num_bytes) and share.hold_long_head()):
            raise describe_fullness(self._settings)

    def _prepare(self, exchange: Exchange, body: bytes) -> None:
        """Make the request for replicas, and its preference among several."""
        request, admission = exchange.request, exchange.admission
        if exchange.is_work and len(self._catalogue.ready_replicas(exchange.route)) != 1:
            salt = self._guard.find_salt(admission)
            session = request.header(_SESSION)
            exchange.preference = self._preferences.read(exchange.route.services[0].key, body, salt, session)
        exchange.upstream = UpstreamRequest(
            method=request.method,
            path=drop_credentials(request.target),
            lines=write_headers(self._headers.choose(request.headers)),
            body=body,
            model=exchange.model,
            share=exchange.share,
            on_report=admission.observe if admission is not None else None,
        )
        keep_read_later(request.headers)

    async def _serve_websocket(self, exchange: Exchange) -> None:
        """Connect a WebSocket to a replica. The Host names the service, or `model` in the query does."""
        request = exchange.request
        rule = self.route_host(request)
        model = find_query(request.target, "model")
        route = self._guard.narrow(
            rule.route or find_model(self._catalogue, model, rule), self._catalogue.find
        )
        exchange.route = route
        exchange.admission = self._guard.admit(exchange, 0)
        self._hold(exchange, 0)
        lines = write_headers(self._headers.choose_handshake(request.headers))
        path = drop_credentials(request.target)
        exchange.upstream = UpstreamRequest(
            request.method, path, lines, body=b"", model=None, share=exchange.share, is_handshake=True
        )
        keep_read_later(request.headers)
        with self._count(exchange, route.sleeper.key):
            await self._attempts.connect_websocket(exchange)

    def _address(self, request: Request, rule: HostRule, body: bytes) -> Addressed:
        encoding = request.header(b"content-encoding")
        if encoding is not None and encoding != b"identity":
            if rule.route:
                return Addressed(rule.route, None)
            raise UnsupportedEncodingError(
                "The body is compressed and the Host names no service: send it uncompressed."
            )
        return address(self._catalogue, body, rule)
