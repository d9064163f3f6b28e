"""The operator's HTTP: /metrics, /healthz and /decisions/NAMESPACE/NAME."""

import dataclasses
import ipaddress
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from millrace_operator.app.metrics import Metrics
from millrace_operator.kube.errors import BadStartError
from millrace_operator.kube.kinds import ServiceKey
from millrace_runtime.contract import ENV_BIND_ADDRESS
from millrace_runtime.listener import BACKLOG, describe_failure, open_listener

STALL_LIMIT_SECONDS = 300.0
OVERDUE_LIMIT_SECONDS = 60.0
SILENT_LIMIT_SECONDS = 300.0
"""A live watch shows life within 145 s: after a silent stream and a pause. A long list takes more time."""
NOT_LOCAL = (
    "decisions are shown only to clients in this pod; write: kubectl -n NAMESPACE port-forward pod/NAME "
    "8090, with the namespace and the pod of the leading operator, and ask 127.0.0.1:8090"
)


@dataclasses.dataclass(frozen=True)
class Health:
    """The health of this replica of the operator."""

    overdue_seconds: float
    """For how long the event after a write of ours has been missing."""
    stalled_seconds: float
    """For how long keys have waited while no worker took or ended one."""
    silent_seconds: float
    """For how long the quietest of our watches has shown no life."""
    is_leader: bool
    leader: str
    """The holder of the Lease; empty while it is unknown."""

    @property
    def is_well(self) -> bool:
        """Whether every watch lives, events come back in time, and a leader's workers make progress."""
        is_moving = self.stalled_seconds < STALL_LIMIT_SECONDS or not self.is_leader
        is_hearing = self.overdue_seconds < OVERDUE_LIMIT_SECONDS
        return is_hearing and self.silent_seconds < SILENT_LIMIT_SECONDS and is_moving


@dataclasses.dataclass(frozen=True)
class Views:
    """What the server shows, read at each request."""

    metrics: Metrics
    read_health: Callable[[], Health]
    read_decision: Callable[[ServiceKey], dict[str, Any] | None]
    """Returns the last decision for a service, with its inputs."""


@asynccontextmanager
async def serve(views: Views, address: str, port: int) -> AsyncIterator[web.BaseSite]:
    """Serve while entered. Raises BadStartError if the address can't be bound."""
    try:
        listener = open_listener(address, port)
    except OSError as error:
        raise BadStartError(
            describe_failure(error, address, port, address_setting=ENV_BIND_ADDRESS)
        ) from error
    runner = web.AppRunner(build_app(views), access_log=None)
    await runner.setup()
    try:
        site = web.SockSite(runner, listener, backlog=BACKLOG)
        await site.start()
        yield site
    finally:
        await runner.cleanup()


def is_loopback(address: str | None) -> bool:
    """Whether a peer is in this pod. An IPv6 socket shows IPv4 peers as ::ffff:127.0.0.1."""
    try:
        parsed = ipaddress.ip_address(address or "")
    except ValueError:
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def build_app(views: Views) -> web.Application:
    """Return the HTTP application."""
    app, pages = web.Application(), Pages(views)
    app.router.add_get("/metrics", pages.render_metrics)
    app.router.add_get("/healthz", pages.render_health)
    app.router.add_get("/decisions/{namespace}/{name}", pages.render_decision)
    return app


class Pages:
    """The answers to each path."""

    def __init__(self, views: Views) -> None:
        self._views = views

    async def render_metrics(self, _request: web.Request) -> web.Response:
        """Return the metrics in Prometheus's text format."""
        body = generate_latest(self._views.metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def render_health(self, _request: web.Request) -> web.Response:
        """Return the facts: with status 200 while this replica is healthy, else 503."""
        health = self._views.read_health()
        fields = ("overdue_seconds", "stalled_seconds", "silent_seconds", "is_leader")
        facts = {field: getattr(health, field) for field in fields}
        return web.json_response(facts, status=200 if health.is_well else 503)

    async def render_decision(self, request: web.Request) -> web.Response:
        """Return the last decision for a service, with its inputs; 503 from a replica that does not lead.

        Only peers in this pod get an answer, others a 403: a decision shows one tenant's load, and any pod of
        the cluster may reach this port. `kubectl port-forward` comes from within the pod, and needs a right.
        """
        if not is_loopback(request.remote):
            return web.json_response({"error": NOT_LOCAL}, status=403)
        health = self._views.read_health()
        key = ServiceKey(request.match_info["namespace"], request.match_info["name"])
        if not health.is_leader:
            leader = health.leader.partition("_")[0]
            text = f"this replica does not lead; ask {leader or 'the leader, once there is one'}"
            return web.json_response({"error": text}, status=503)
        decision = self._views.read_decision(key)
        if decision is None:
            text = f"no decision for {key}: it does not exist, is in mode External, or is new"
            return web.json_response({"error": text}, status=404)
        return web.json_response(decision)
