"""A real Prometheus scrapes real metrics, set up by our PodMonitor or as docs/how-to/install.md says.

The pods are servers of this process; only their discovery is written by hand.
"""

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import yaml
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from millrace_gateway.report.metrics import Metrics as GatewayMetrics
from millrace_gateway.report.metrics import Outcome
from millrace_gateway.route.objects import ServiceChanges
from millrace_gateway.route.objects import ServiceKey as GatewayKey
from millrace_operator.app.metrics import Metrics as OperatorMetrics
from millrace_operator.autoscaler.decide.policy import Objective
from millrace_operator.autoscaler.run.prometheus import Prometheus, fetch_reading
from millrace_operator.autoscaler.run.settings import Access, PrometheusSettings
from millrace_operator.autoscaler.signals.answers import PodKey
from millrace_operator.autoscaler.signals.observation import Fleet, Signals
from millrace_operator.autoscaler.signals.queries import Scope, build_questions
from millrace_operator.autoscaler.signals.reading import read_signals
from millrace_operator.autoscaler.signals.scrapes import DEFAULT_WINDOWS
from millrace_operator.controller.queue import WorkQueue
from millrace_runtime.api.engine_client import EngineClient
from millrace_runtime.api.metrics import ReplicaMetrics
from millrace_runtime.protocol.messages import EngineReady
from millrace_runtime.protocol.step import Placement
from testing.world import KEY
from tests.monitoring.chart import OPERATOR_API, ROOT, render
from tests.monitoring.prometheus_operator import POD, render_scrape_configs
from tests.monitoring.prometheus_process import run_prometheus
from tests.operator.app.test_service_metrics import make_collector

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
OBJECTIVES = (
    Objective("TimeToFirstToken", 95, 2.0),
    Objective("EndToEndLatency", 95, 10.0),
    Objective("QueueTime", 50, 0.5),
)
REPLICA = "chat-0123456789-5d8f7c9b6d-x7k2p"
"""A pod as Kubernetes names those of a Deployment of ours."""
PATIENCE_SECONDS = 60.0
PLACEMENT = Placement("cpu", "avx2", "float32", "FromCheckpoint", 1)
ANSWER: Any = SimpleNamespace(
    finish_reason="stop", num_prompt_tokens=9, num_cached_tokens=0, num_tokens=300, first_token_at=None
)
Render = Callable[[], bytes]


class Replica:
    """A replica's own metrics; each scrape finds a few requests more."""

    def __init__(self, engine: EngineClient) -> None:
        engine.ready = EngineReady(1, 1, 16, 16, 1, 1, PLACEMENT, {"imports": 0.0})
        self._metrics = ReplicaMetrics(engine, "model")
        self._registry = CollectorRegistry()
        self._registry.register(self._metrics)

    def render(self) -> bytes:
        """Three requests in time for 2 s or less, one surely not."""
        self._metrics.num_received += 4
        for seconds in (0.2, 0.2, 0.2, 30.0):
            self._metrics.queue_time.observe(seconds / 4)
            self._metrics.time_to_first_token.observe(seconds)
            self._metrics.finish(ANSWER, 0.0, 2 * seconds)
        return generate_latest(self._registry)


@contextmanager
def make_replica() -> Iterator[Render]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Replica(EngineClient(ours)).render


def make_gateway(key: GatewayKey, outcome: Outcome = Outcome.COMPLETED) -> Render:
    metrics = GatewayMetrics()
    metrics.track(ServiceChanges(added=[key]))

    def render_more() -> bytes:
        for _ in range(4):
            metrics.begin(key).end(outcome)
        return metrics.render()

    return render_more


def make_operator() -> Render:
    metrics = OperatorMetrics()
    metrics.follow(WorkQueue(), float, "millrace-operator", lambda: True)
    metrics.registry.register(make_collector())
    return lambda: generate_latest(metrics.registry)


@asynccontextmanager
async def serve(text: Render) -> AsyncIterator[int]:
    """Serve this at /metrics, and yield the port."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


def target(port: int, namespace: str, pod: str, port_name: str, **labels: str) -> dict[str, Any]:
    """One container port as Prometheus' discovery of pods describes it."""
    found = {
        "__meta_kubernetes_namespace": namespace,
        f"{POD}_name": pod,
        f"{POD}_phase": labels.pop("phase", "Running"),
        f"{POD}_container_name": "main",
        f"{POD}_container_port_name": port_name,
    }
    for name, value in labels.items():
        found |= {
            f"{POD}_label_millrace_dev_{name}": value,
            f"{POD}_labelpresent_millrace_dev_{name}": "true",
        }
    return {"targets": [f"127.0.0.1:{port}"], "labels": found}


MONITOR, PAGE = "the chart's PodMonitor", "the page's configuration"


def configure(way: str, monitor: dict[str, Any], targets: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The jobs, once a second."""
    if way == MONITOR:
        return render_scrape_configs(monitor, targets)
    text = (ROOT / "docs" / "how-to" / "install.md").read_text()
    (found,) = re.findall(r"^```yaml\n(scrape_configs:.*?)^```", text, re.MULTILINE | re.DOTALL)
    (job,) = yaml.safe_load(found)["scrape_configs"]
    del job["kubernetes_sd_configs"]
    times = {"scrape_interval": "1s", "scrape_timeout": "1s"}
    return [{**job, **times, "static_configs": targets}]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[MONITOR, PAGE])
async def url(
    request: pytest.FixtureRequest, programs: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[str]:
    """A Prometheus that scrapes what the chart says, once a second, and evaluates its rules as often."""
    folder = tmp_path_factory.mktemp("prometheus")
    manifests = render(programs["helm"], *OPERATOR_API, "--set", "monitoring.podMonitor.interval=1s")
    rules = manifests[("PrometheusRule", "millrace")]["spec"]
    for group in rules["groups"]:
        group["interval"] = "1s"
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    async with AsyncExitStack() as stack:
        replicas = ExitStack()
        stack.callback(replicas.close)
        replica, ended, foreign, live = (replicas.enter_context(make_replica()) for _ in range(4))
        liar = make_gateway(GatewayKey(*KEY), Outcome.NO_REPLICA)
        ports = [
            await stack.enter_async_context(serve(text))
            for text in (replica, make_gateway(GatewayKey(*KEY)), make_operator(), liar, ended, foreign, live)
        ]
        targets = [
            target(ports[0], "shop", REPLICA, "http", component="replica", service="chat"),
            target(ports[1], "millrace", "gateway-1", "metrics", component="gateway"),
            target(1, "millrace", "gateway-1", "http", component="gateway"),
            target(ports[2], "millrace", "operator-1", "metrics", component="operator"),
            target(ports[4], "shop", "chat-0", "http", component="replica", service="chat", phase="Failed"),
            target(ports[5], "shop", "vllm-1", "http"),
            target(ports[6], "shop", REPLICA, "live", component="replica", service="chat"),
        ]
        if request.param == MONITOR:  # the page cannot know the release's namespace
            targets.append(target(ports[3], "shop", "liar", "metrics", component="gateway"))
        jobs = configure(request.param, manifests[("PodMonitor", "millrace")], targets)
        config = {"rule_files": [str(folder / "rules.yaml")], "scrape_configs": jobs}
        yield await stack.enter_async_context(run_prometheus(programs["prometheus"], folder, config))


async def ask(url: str, query: str) -> list[dict[str, Any]]:
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"{url}/api/v1/query", params={"query": query}) as got,
    ):
        body = await got.json()
    assert body["status"] == "success", body
    return list(body["data"]["result"])


async def ask_until_answered(url: str, query: str) -> list[dict[str, Any]]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                if found := await ask(url, query):
                    return found
            except aiohttp.ClientError:
                pass  # it starts
            await asyncio.sleep(0.2)


async def read_until_known(url: str) -> Signals:
    """Read what the autoscaler reads, until it knows the load."""
    async with asyncio.timeout(PATIENCE_SECONDS), aiohttp.ClientSession() as http:
        while True:
            prometheus = Prometheus(http, Access(PrometheusSettings(url)))
            questions = build_questions(OBJECTIVES, DEFAULT_WINDOWS, Scope())
            owners = {PodKey(KEY.namespace, REPLICA): KEY}
            reading = await fetch_reading(prometheus, questions, owners, time.time(), DEFAULT_WINDOWS)
            fleet = Fleet({REPLICA: "one"}, frozenset({REPLICA}))
            signals = read_signals(reading, KEY, fleet, OBJECTIVES)
            if None not in (signals.arrivals_per_second, signals.running) and signals.latencies:
                return signals
            await asyncio.sleep(0.2)


async def test_the_autoscaler_finds_its_signals(url: str) -> None:
    signals = await read_until_known(url)
    assert signals.reporting == {REPLICA}
    assert signals.running == 0
    assert signals.arrivals_per_second is not None
    assert signals.arrivals_per_second > 0
    bounds = {each.objective.metric: each.bracket for each in signals.latencies}
    assert {metric: (found.lower, found.upper) for metric, found in bounds.items() if found} == {
        "TimeToFirstToken": (2.0, 2.0),
        "EndToEndLatency": (10.0, 10.0),
        "QueueTime": (0.5, 0.5),
    }
    assert all(found and found.lower_share == pytest.approx(0.75) for found in bounds.values())
    assert signals.answer_lengths is not None
    assert 256 < signals.answer_lengths.quantile(0.5) < signals.answer_lengths.quantile(1.0) == 300


async def test_every_series_has_the_labels_of_the_service_that_it_speaks_of(url: str) -> None:
    await read_until_known(url)
    await ask_until_answered(url, "service:millrace_requests:rate5m")
    pods = await ask(url, "up")
    assert {(s["metric"]["namespace"], s["metric"]["pod"], s["metric"]["component"]) for s in pods} == {
        ("shop", REPLICA, "replica"),
        ("millrace", "gateway-1", "gateway"),
        ("millrace", "operator-1", "operator"),
    }
    for name in ("vllm:num_requests_running", "millrace_gateway_requests_in_flight", "millrace_max_replicas"):
        (series,) = await ask(url, name)
        assert (series["metric"]["namespace"], series["metric"]["service"]) == KEY
    assert not await ask(url, '{exported_namespace!=""}')


async def test_the_rules_find_the_service_s_objectives_and_requests(url: str) -> None:
    """The lying pod's failures are not among them."""
    first = 'metric="TimeToFirstToken"'
    ((missed),) = await ask_until_answered(url, f"service_objective:millrace_misses:ratio5m{{{first}}}")
    assert missed["metric"]["percentile"] == "95"
    assert float(missed["value"][1]) == pytest.approx(0.25)
    (doubted,) = await ask(url, f"service_objective:millrace_doubts:ratio5m{{{first}}}")
    assert float(doubted["value"][1]) == 0
    (failed,) = await ask_until_answered(url, "service:millrace_failures:ratio5m")
    assert (failed["metric"], float(failed["value"][1])) == (
        {"__name__": "service:millrace_failures:ratio5m", "namespace": "shop", "service": "chat"},
        0,
    )
