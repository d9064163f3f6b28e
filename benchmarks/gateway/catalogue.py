"""`python -m benchmarks.gateway.catalogue`: what a large cluster costs the gateway's event loop.

The gateway's own sinks follow a fake API server's collections of 2,000 services and 8,000 pods, as large as
real ones, in a process of its own. The first lists, a relist and then single events are timed. A ticker on
the same loop notes its longest hold: a stream of tokens would wait so long. It prints a table, then one JSON
line.
"""

import argparse
import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson

from benchmarks.record import add_output, publish, read_commit, read_date
from benchmarks.runtime.machine import describe_machine
from millrace_gateway.route.cluster_sinks import PAGE
from millrace_gateway.route.objects import ServiceKey
from millrace_gateway.server import Gateway
from millrace_gateway.settings import Settings
from millrace_kubernetes.collection import Object, Sink, Source
from millrace_kubernetes.watch import Watch

PADDING = {"managedFields": [{"manager": "kubelet", "fieldsV1": {f"f:{i}": {"f:x": {}} for i in range(60)}}]}
"""About what the API server adds to each object."""
NUM_EVENTS = 1000
AIM_SECONDS = 0.020
"""For the longest hold of the loop."""


def make_service(number: int) -> Object:
    """Return a service as the API server has it."""
    namespace, name = f"team-{number % 100}", f"model-{number}"
    return {
        "metadata": {
            "namespace": namespace,
            "name": name,
            "uid": f"service-{number}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "resourceVersion": "1",
            **PADDING,
        },
        "spec": {"model": {"uri": "hf://org/model", "servedName": name}, "scaling": {"minReplicas": 0}},
        "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Serving"}]},
    }


def make_pod(number: int, num_services: int) -> Object:
    """Return a replica's pod as the API server has it."""
    service = number % num_services
    name = f"model-{service}"
    container = {
        "name": "replica",
        "args": ["--served-name", name],
        "env": [{"name": f"VARIABLE_{i}", "value": "value"} for i in range(30)],
    }
    return {
        "metadata": {
            "namespace": f"team-{service % 100}",
            "name": f"{name}-{number}",
            "uid": f"pod-{number}",
            "labels": {"millrace.dev/service": name, "millrace.dev/component": "replica"},
            "resourceVersion": "1",
            **PADDING,
        },
        "spec": {"containers": [container], "volumes": [{"name": f"volume-{i}"} for i in range(10)]},
        "status": {
            "podIP": f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}",
            "conditions": [
                {"type": kind, "status": "True"} for kind in ("Initialized", "PodScheduled", "Ready")
            ],
        },
    }


class Cluster:
    """The lists of an API server, page by page."""

    def __init__(self, num_services: int, num_pods: int) -> None:
        self._pages = {
            "inferenceservices": list(_cut(num_services, make_service)),
            "pods": list(_cut(num_pods, lambda number: make_pod(number, num_services))),
        }

    @asynccontextmanager
    async def request(
        self, _method: str, path: str, _seconds: float, *, parameters: dict[str, str]
    ) -> AsyncIterator["_Answer"]:
        """Answer a list's page, as `Connection.request`."""
        await asyncio.sleep(0)
        yield _Answer(self._pages[path.rpartition("/")[2]][int(parameters.get("continue", "0"))])


class _Answer:
    def __init__(self, body: bytes) -> None:
        self._body = body

    async def read(self) -> bytes:
        return self._body


def _cut(num: int, make: Callable[[int], Object]) -> Iterator[bytes]:
    """Yield the pages of a list."""
    for start in range(0, num, PAGE):
        end = min(start + PAGE, num)
        metadata = {"resourceVersion": "1", "continue": str(end // PAGE) if end < num else ""}
        yield orjson.dumps({"metadata": metadata, "items": [make(number) for number in range(start, end)]})


class Ticker:
    """Notes the longest hold of the event loop while it runs."""

    def __init__(self) -> None:
        self.longest_seconds = 0.0

    async def run(self) -> None:
        """Tick until cancelled."""
        before = time.perf_counter()
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter()
            self.longest_seconds = max(self.longest_seconds, now - before)
            before = now


async def _time(work: Callable[[], Any]) -> tuple[float, float]:
    """Run `work`, a coroutine function. Return its seconds, and the longest hold of the loop."""
    ticker = Ticker()
    ticking = asyncio.create_task(ticker.run())
    await asyncio.sleep(0)
    began = time.perf_counter()
    await work()
    seconds = time.perf_counter() - began
    await asyncio.sleep(0)
    ticking.cancel()
    with suppress(asyncio.CancelledError):
        await ticking
    return seconds, ticker.longest_seconds


async def measure(num_services: int, num_pods: int) -> dict[str, float]:
    """Return seconds by figure."""
    cluster, gateway = Cluster(num_services, num_pods), Gateway(Settings("127.0.0.1", 0))
    gc.collect()
    gc.freeze()  # what the benchmark itself has in memory is none of the gateway's
    sinks: list[Sink] = [gateway.service_sinks[0], gateway.replica_sinks[0]]
    sources: list[Source] = [gateway.service_sinks[0].source, gateway.replica_sinks[0].source]

    async def list_all() -> None:
        for source, sink in zip(sources, sinks, strict=True):
            await Watch(cluster, source, sink)._list()  # type: ignore[arg-type]  # noqa: SLF001

    figures: dict[str, float] = {}
    for name in ("first_list", "relist"):
        figures[f"{name}_seconds"], figures[f"{name}_longest_hold_seconds"] = await _time(list_all)
    figures["pod_event_seconds"] = _time_events(gateway, num_services, num_pods)
    figures["service_event_seconds"] = _time_service_events(gateway, num_services)
    figures["find_seconds"] = _time_lookups(gateway, num_services)
    gateway.catalogue.check_integrity()
    return figures


def _time_events(gateway: Gateway, num_services: int, num_pods: int) -> float:
    """Return the seconds of a pod's event: each pod turns unready, and ready again."""
    sink = gateway.replica_sinks[0]
    pods = [make_pod(number, num_services) for number in range(0, num_pods, max(1, num_pods // NUM_EVENTS))]
    unready = [pod | {"status": {"podIP": "10.0.0.1"}} for pod in pods]
    began = time.perf_counter()
    for one, other in zip(unready, pods, strict=True):
        sink.apply(sink.source.trim(one))
        sink.apply(sink.source.trim(other))
    return (time.perf_counter() - began) / (2 * len(pods))


def _time_service_events(gateway: Gateway, num_services: int) -> float:
    sink = gateway.service_sinks[0]
    step = max(1, num_services // NUM_EVENTS)
    services = [make_service(number) for number in range(0, num_services, step)]
    began = time.perf_counter()
    for service in services:
        sink.delete(sink.source.trim(service))
        sink.apply(sink.source.trim(service))
    return (time.perf_counter() - began) / (2 * len(services))


def _time_lookups(gateway: Gateway, num_services: int) -> float:
    """Return the seconds to find the route of a request, and its replicas."""
    keys = [
        ServiceKey(f"team-{number % 100}", f"model-{number}") for number in range(min(1000, num_services))
    ]

    def find(key: ServiceKey) -> None:
        route = gateway.catalogue.find(key)
        assert route
        gateway.catalogue.ready_replicas(route)

    for key in keys:
        find(key)  # the first one after an event rebuilds the list
    began = time.perf_counter()
    for key in keys:
        find(key)
    return (time.perf_counter() - began) / len(keys)


def main() -> int:
    """Print the table and the line. Return 1 if the loop is held too long."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway.catalogue", description=__doc__)
    parser.add_argument("--services", type=int, default=2000)
    parser.add_argument("--pods", type=int, default=8000)
    add_output(parser)
    flags = parser.parse_args()
    figures = asyncio.run(measure(flags.services, flags.pods))
    for name, seconds in figures.items():
        scale, unit = (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")
        print(f"{name.removesuffix('_seconds').replace('_', ' '):28}{seconds * scale:9.1f} {unit}")
    longest = max(figures["first_list_longest_hold_seconds"], figures["relist_longest_hold_seconds"])
    result = {
        "commit": read_commit(),
        "date": read_date(),
        "services": flags.services,
        "pods": flags.pods,
        "machine": describe_machine(),
        "figures": figures,
        "meets_aim": longest <= AIM_SECONDS,
    }
    publish(result, flags.output)
    return 0 if longest <= AIM_SECONDS else 1


if __name__ == "__main__":
    raise SystemExit(main())
