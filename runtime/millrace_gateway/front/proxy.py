"""Serves one request under `/v1/`: finds the service, picks a replica, streams the answer, counts.

The gateway holds a request's body, within a limit, so that it can send the body to a second replica. It never
holds an answer. It tries a second replica only if the first has not begun: it refused the connection, or
answered 503 with the draining header. If a replica closes an idle connection just as the gateway reuses it,
the replica has not failed: the gateway sends the request again, but only once. More retries could carry a
request that kills its replica to all of them.
"""

import time
from contextlib import nullcontext
from http import HTTPStatus
from typing import NamedTuple, TypeVar

import aiohttp
from aiohttp import hdrs, web

from millrace_gateway.errors import (
    BusyError,
    ModelNotFoundError,
    NoReplicaError,
    NotSyncedError,
    ReplicaRefusedError,
    RequestRefusedError,
    SlowBodyError,
    StaleConnectionError,
    UnsupportedEncodingError,
    UpstreamFailedError,
)
from millrace_gateway.front.body_budget import BodyBudget
from millrace_gateway.front.exchange import (
    UpstreamRequest,
    ask,
    begin_answer,
    describe_failure,
    describe_fullness,
    read_body,
    relay,
)
from millrace_gateway.front.headers import RequestHeaders, drop_credentials
from millrace_gateway.front.holding import Awaited, Holder
from millrace_gateway.lifecycle import Lifecycle, Phase
from millrace_gateway.report.metrics import Metrics, Outcome
from millrace_gateway.report.report import Activity
from millrace_gateway.route.balance import Balancer
from millrace_gateway.route.catalogue import Catalogue, Route
from millrace_gateway.route.objects import Replica
from millrace_gateway.route.routing import (
    Addressed,
    HostPolicy,
    HostRule,
    address,
    describe_absence,
    describe_unknown,
    find_port,
    route_host,
)
from millrace_gateway.settings import Settings
from millrace_runtime.contract import PATHS_WORK

REFUSED_SECONDS = 1.0
"""Before a replica that refused is tried again, if the request may wait and there is no other."""
Response = TypeVar("Response", bound=web.StreamResponse)


class Served(NamedTuple):
    """The response that the client got, and the request's outcome."""

    response: web.StreamResponse
    outcome: Outcome


class Proxy:
    """The data path: connects routing and balancing to the connections of client and replica."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
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
        self._session = session
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

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        with self._lifecycle.count_request():
            try:
                return await self._serve(request)
            except RequestRefusedError as refusal:
                return self.refuse(refusal)
            except ConnectionError:  # the client disconnected before its request was read
                return web.Response()

    def route_host(self, request: web.Request) -> HostRule:
        """Return the rule of the request's Host. Raises ModelNotFoundError and NotSyncedError."""
        if not self._lifecycle.is_synced:
            raise NotSyncedError(
                "The gateway has just started. Send the request again.", retry_after_seconds=1
            )
        return route_host(self._catalogue, request.host, self._host_policy)

    def refuse(self, refusal: RequestRefusedError) -> web.Response:
        """Return the response for a refusal, and count it."""
        self._metrics.refusals.labels(refusal.code).inc()
        response = web.Response(
            body=refusal.body(),
            status=refusal.status,
            headers=refusal.headers,
            content_type="application/json",
        )
        if isinstance(refusal, SlowBodyError):
            response.force_close()  # the rest of the body may never arrive
        return self._close_when_draining(response)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        rule = self.route_host(request)
        route = rule.route
        with self._bodies.share(route.services[0].key.namespace if route else None) as share:
            try:
                body = await read_body(request, share, self._settings)
                route, model = self._address(request, rule, body)
                if not share.assign(route.services[0].key.namespace):
                    raise describe_fullness(self._settings)
            except BusyError:
                self._count_refused(route)
                raise
            headers = self._headers.choose(request.headers)
            upstream_request = UpstreamRequest(
                method=request.method,
                path=drop_credentials(request.rel_url.raw_path_qs),
                headers=headers,
                body=body,
                model=model,
                share=share,
            )
            del body  # upstream_request owns it, and releases it
            return await self._serve_and_count(request, upstream_request, route)

    def _count_refused(self, route: Route | None) -> None:
        """Count a request without room for its body in the metrics of its service."""
        if route is not None:
            with self._metrics.count_request(route.sleeper.key) as ending:
                ending.outcome = Outcome.REFUSED

    def _address(self, request: web.Request, rule: HostRule, body: bytes) -> Addressed:
        if request.headers.get(hdrs.CONTENT_ENCODING, "identity") != "identity":
            if rule.route:
                return Addressed(rule.route, None)
            raise UnsupportedEncodingError(
                "The body is compressed and the Host names no service: send it uncompressed."
            )
        return address(self._catalogue, body, rule)

    async def _serve_and_count(
        self, request: web.Request, upstream_request: UpstreamRequest, route: Route
    ) -> web.StreamResponse:
        replica = self._pick(route, set())
        key = replica.key if replica else route.sleeper.key
        counted = self._activity.count_request(key) if is_work(request) else nullcontext()
        with counted, self._metrics.count_request(key) as ending:
            try:
                served = await self._exchange(request, upstream_request, route, replica)
            except (NoReplicaError, ModelNotFoundError):
                ending.outcome = Outcome.NO_REPLICA
                raise
            except UpstreamFailedError:
                ending.outcome = Outcome.UPSTREAM_ERROR
                raise
            ending.outcome = served.outcome
            return served.response

    async def _exchange(
        self, request: web.Request, upstream_request: UpstreamRequest, route: Route, first: Replica | None
    ) -> Served:
        tried: set[str] = set()
        can_repeat, replica = True, first
        may_wait = is_work(request)
        deadline = time.monotonic() + route.sleeper.hold_seconds
        while True:
            if may_wait and self._waits_for_another(route, replica, tried):
                may_wait = await self._hold(route, deadline, tried)
                replica = self._pick(route, tried)
            if replica is None:
                raise self._describe_absence(route, len(tried), request.host)
            try:
                return await self._ask_one(request, upstream_request, replica)
            except ReplicaRefusedError:
                tried.add(replica.uid)
            except StaleConnectionError as error:
                if not can_repeat:
                    raise describe_failure() from error
                can_repeat = False
            replica = self._pick(route, tried)

    def _waits_for_another(self, route: Route, replica: Replica | None, tried: set[str]) -> bool:
        """Whether the request waits for a new replica: the service may rest, and has none that stays."""
        is_going = replica is None or (replica.is_leaving and not tried)
        return is_going and route.sleeper.hold_seconds > 0

    async def _hold(self, route: Route, deadline: float, tried: set[str]) -> bool:
        """Wait until a replica that stays can take a request. Return whether another wait may help.

        A replica that refused is tried again after REFUSED_SECONDS: by then the gateway knows that it is
        gone, or it accepts the request.
        """

        def may_go() -> bool:
            replica, present = self._pick(route, tried), self._catalogue.renew(route)
            is_there = replica is not None and not replica.is_leaving
            return is_there or present is None or not present.sleeper.hold_seconds

        awaited = Awaited([service.key for service in route.services], may_go)
        key, now = route.sleeper.key, time.monotonic()
        if now >= deadline or not self._holder.has_room(key):
            return False
        if tried:
            pause = min(REFUSED_SECONDS, deadline - now)
            if not await self._holder.wait(key, pause, awaited):
                tried.clear()
        if not await self._holder.wait(key, deadline - time.monotonic(), awaited):
            return False
        present = self._catalogue.renew(route)
        return present is not None and present.sleeper.hold_seconds > 0

    async def _ask_one(
        self, request: web.Request, upstream_request: UpstreamRequest, replica: Replica
    ) -> Served:
        try:
            with self._balancer.count_request(replica):
                upstream = await ask(self._session, upstream_request, replica)
                upstream_request.release()
                return await self._answer(request, upstream, replica)
        except (ReplicaRefusedError, StaleConnectionError, UpstreamFailedError):
            self._suspect(replica)
            raise

    async def _answer(
        self, request: web.Request, upstream: aiohttp.ClientResponse, replica: Replica
    ) -> Served:
        answer = self._close_when_draining(begin_answer(upstream))
        try:
            is_whole = await relay(request, upstream, answer)
        except ConnectionError:
            return Served(answer, Outcome.CLIENT_LEFT)
        finally:
            upstream.close()  # before the answer's end, this cancels the generation
        if not is_whole:
            self._suspect(replica)
        return Served(answer, judge(upstream.status, is_whole=is_whole))

    def _describe_absence(self, route: Route, num_refused: int, host: str) -> RequestRefusedError:
        """Return the refusal, with the present state of the services."""
        present = self._catalogue.renew(route)
        if present is None:
            return ModelNotFoundError(describe_unknown(route.served_name, find_port(host)))
        return NoReplicaError(describe_absence(present, num_refused), self._settings.retry_after_seconds)

    def _suspect(self, replica: Replica) -> None:
        self._balancer.suspect(replica, time.monotonic())

    def _pick(self, route: Route, tried: set[str]) -> Replica | None:
        return self._balancer.pick(self._catalogue.ready_replicas(route), tried, time.monotonic())

    def _close_when_draining(self, response: Response) -> Response:
        if self._lifecycle.phase is Phase.DRAINING:
            response.force_close()
        return response


def is_work(request: web.Request) -> bool:
    """Whether a request asks for a generation. No other request wakes a service or keeps it awake."""
    return request.method == hdrs.METH_POST and request.path in PATHS_WORK


def judge(status: int, *, is_whole: bool) -> Outcome:
    """Return the outcome of a request whose client has got a replica's answer."""
    if status >= 500 or not is_whole:
        return Outcome.UPSTREAM_ERROR
    return Outcome.REFUSED if status == HTTPStatus.TOO_MANY_REQUESTS else Outcome.COMPLETED
