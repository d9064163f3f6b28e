"""Real upstreams on addresses of pods, and a gateway before them."""

import itertools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, Protocol

import aiohttp
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from e2e.cluster.nodes.network.addresses import claim_block
from millrace_gateway.front.body_budget import BodyBudget, BodyShare
from millrace_gateway.route.objects import Replica, ServiceKey
from millrace_gateway.server import Gateway, Sites
from millrace_gateway.settings import Settings
from millrace_runtime.contract import PATH_LOAD, PORT_HTTP
from testing.addresses import url_of
from testing.polling import wait_until_async

NUMBERS = itertools.count(1)
BLOCK = claim_block()
"""Of addresses, which no other run of these tests and no local cluster has."""


def make_service(
    namespace: str,
    name: str,
    *,
    served: str | None = None,
    created: str = "2026-01-01T00:00:00Z",
    uid: str | None = None,
    ready: dict[str, str] | None = None,
) -> dict[str, Any]:
    metadata = {"namespace": namespace, "name": name, "uid": uid or f"{namespace}-{name}"}
    return {
        "metadata": metadata | {"creationTimestamp": created, "resourceVersion": "1"},
        "spec": {"model": {"uri": "file:///m"} | ({"servedName": served} if served else {})},
        "status": {"conditions": [{"type": "Ready", **ready}] if ready else []},
    }


def make_pod(
    namespace: str,
    service: str,
    uid: str,
    *,
    address: str = "127.9.8.250",
    ready: bool = True,
    served: str | None = None,
) -> dict[str, Any]:
    labels = {"millrace.dev/service": service, "millrace.dev/component": "replica"}
    return {
        "metadata": {
            "namespace": namespace,
            "name": uid,
            "uid": uid,
            "labels": labels,
            "resourceVersion": "1",
        },
        "spec": {"containers": [{"name": "replica", "args": ["--served-name", served] if served else []}]},
        "status": {
            "podIP": address,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


class Counter(Protocol):
    """Counts what begins and ends."""

    def begin(self, what: Any) -> object: ...

    def end(self, what: Any) -> None: ...


def build_replicas(num: int) -> tuple[Replica, ...]:
    """Return Ready replicas of one service: p0, p1 and so on."""
    key = ServiceKey("a", "chat")
    return tuple(Replica(f"p{i}", key, f"p{i}", f"127.9.8.{i}", is_ready=True) for i in range(num))


@contextmanager
def counted(counter: Counter, what: Any) -> Iterator[None]:
    """Count one request while entered."""
    counter.begin(what)
    try:
        yield
    finally:
        counter.end(what)


@contextmanager
def shared(budget: BodyBudget, namespace: str | None) -> Iterator[BodyShare]:
    """Yield a share of the memory of bodies, and release it at the exit."""
    share = budget.open_share(namespace)
    try:
        yield share
    finally:
        share.release()


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def refuse_load(_request: web.Request) -> web.Response:
    """Answer the question for a busy replica's load, which comes where a request takes 0.25 s or more."""
    return web.Response(status=404)


class Bench:
    """A gateway, the upstreams that a test starts, and a client."""

    def __init__(self, gateway: Gateway, client: aiohttp.ClientSession, stack: AsyncExitStack) -> None:
        self.gateway = gateway
        self.client = client
        self.sites: Sites
        self.url = ""
        self.metrics_url = ""
        self._stack = stack

    async def start(self) -> None:
        self.sites = await self._stack.enter_async_context(self.gateway.serve())
        self.url, self.metrics_url = (url_of(site, "127.0.0.1") for site in self.sites)

    def add_service(self, namespace: str, name: str, **fields: Any) -> None:
        self.gateway.service_sinks[0].apply(make_service(namespace, name, **fields))

    def remove_services(self) -> None:
        """Tell the gateway that there is no service."""
        for _ in self.gateway.service_sinks[0].replace([], "1"):
            pass

    def add_pod(
        self, namespace: str, service: str, uid: str, address: str, served: str | None = None
    ) -> None:
        """Add a replica that runs with the name which its service has now, unless another is given."""
        route = self.gateway.catalogue.find(ServiceKey(namespace, service))
        served = served or (route.served_name if route else None)
        self.gateway.catalogue.apply_replica(
            make_pod(namespace, service, uid, address=address, served=served)
        )

    async def add_upstream(
        self,
        namespace: str,
        service: str,
        handler: Handler,
        address: str | None = None,
        listener: socket.socket | None = None,
        *,
        reports_load: bool = False,
    ) -> str:
        """Start a replica, at an address of its own unless one is given, and return its pod's uid.

        `listener`: its socket, if it isn't to be at the port of replicas. `reports_load`: whether the handler
        gets the gateway's questions for the load of a busy replica, too.
        """
        app = web.Application(client_max_size=2**26)
        if not reports_load:
            app.router.add_get(PATH_LOAD, refuse_load)
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        uid = f"{service}-{next(NUMBERS)}"
        address = address or next_address()
        site = web.SockSite(runner, listener) if listener else web.TCPSite(runner, address, PORT_HTTP)
        await site.start()
        self.add_pod(namespace, service, uid, address)
        return uid

    def value(self, name: str, **labels: str) -> float | None:
        families = text_string_to_metric_families(self.gateway.metrics.render().decode())
        samples = (sample for family in families for sample in family.samples)
        return next((one.value for one in samples if (one.name, one.labels) == (name, labels)), None)

    async def until(self, condition: Callable[[], object]) -> None:
        await wait_until_async("the gateway as awaited", condition)


SERVICES = "/apis/millrace.dev/v1alpha1/inferenceservices"
PODS = "/api/v1/pods"


def next_address() -> str:
    """An address of its own for each upstream: a closed one's connections can't reach the next."""
    return BLOCK.allocate(f"upstream-{next(NUMBERS)}")


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Bench]:
    gateway = Gateway(settings)
    gateway.lifecycle.note_sync(SERVICES)
    gateway.lifecycle.note_sync(PODS)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(aiohttp.ClientSession())
        found = Bench(gateway, client, stack)
        await found.start()
        yield found
