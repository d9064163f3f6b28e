import json
import socket
from functools import cache
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from millrace_operator.app.metrics import Metrics
from millrace_operator.app.views import (
    OVERDUE_LIMIT_SECONDS,
    SILENT_LIMIT_SECONDS,
    STALL_LIMIT_SECONDS,
    Health,
    Views,
    build_app,
    is_loopback,
    serve,
)
from millrace_operator.autoscaler.decide.decide import decide
from millrace_operator.autoscaler.decide.evidence import render_decision
from millrace_operator.autoscaler.decide.memory import Memory
from millrace_operator.autoscaler.decide.policy import Objective, Policy
from millrace_operator.autoscaler.signals.answers import PodKey, Reading, Sample, sort_samples
from millrace_operator.autoscaler.signals.observation import Fleet
from millrace_operator.autoscaler.signals.queries import name_buckets
from millrace_operator.autoscaler.signals.reading import read_signals
from millrace_operator.controller.queue import WorkQueue
from millrace_operator.kube.errors import BadStartError
from millrace_operator.kube.kinds import ServiceKey
from testing.addresses import backlog_of, expected_backlog, needs_ipv6, url_of

NOW = 1_700_000_000.0
CHAT = ServiceKey("shop", "chat")


class State:
    watch, queue, silence, leads = 0.0, 0.0, 0.0, True


@cache
def decide_once() -> dict[str, Any]:
    """Return what the leader shows of a replica that reports, and is slower than the last bucket."""
    ttft = Objective("TimeToFirstToken", 95, 100.0)
    of_pod = {"age": NOW - 3, "running": 2.0, "waiting": 1.0, "kv_usage": 0.5}
    samples = [
        Sample({"namespace": "shop", "pod": "a", "signal": name}, value) for name, value in of_pod.items()
    ]
    of_service = {"service": "chat", "namespace": "shop"}
    samples.append(Sample({**of_service, "signal": ttft.name}, 101.0))
    samples += [
        Sample({**of_service, "signal": name_buckets(ttft.metric), "le": bound}, count)
        for bound, count in {"80.0": 95.0, "+Inf": 100.0}.items()
    ]
    reading = Reading(NOW, series=sort_samples(samples, {PodKey("shop", "a"): CHAT}))
    signals = read_signals(reading, CHAT, Fleet({"a": "one"}, frozenset({"a"}), desired=1), (ttft,))
    decision, memory = decide(Policy(1, 4, objectives=(ttft,)), signals, Memory(), NOW)
    return render_decision(decision, signals, memory)


def make_views(state: State, queue: WorkQueue | None = None) -> Views:
    metrics = Metrics()
    metrics.count_reconcile("success", 0.01)
    metrics.count_reconcile("error", 0.01)
    metrics.count_request("PATCH", 200)
    metrics.follow(WorkQueue() if queue is None else queue, lambda: 1.5, "lease", lambda: state.leads)
    return Views(
        metrics=metrics,
        read_health=lambda: Health(state.watch, state.queue, state.silence, state.leads, "pod-b"),
        read_decision=lambda key: decide_once() if key == CHAT else None,
    )


def client(state: State, queue: WorkQueue | None = None) -> TestClient:
    return TestClient(TestServer(build_app(make_views(state, queue))))


@needs_ipv6
@pytest.mark.parametrize(
    ("address", "asked"), [("", ["127.0.0.1", "::1"]), ("::1", ["::1"]), ("127.0.0.1", ["127.0.0.1"])]
)
async def test_it_answers_on_ipv6_and_ipv4(address: str, asked: list[str]) -> None:
    async with serve(make_views(State()), address, 0) as site, aiohttp.ClientSession() as http:
        for host in asked:
            assert (await http.get(f"{url_of(site, host)}/healthz")).status == 200


async def test_a_burst_of_connections_may_wait() -> None:
    async with serve(make_views(State()), "127.0.0.1", 0) as site:
        assert backlog_of(site) == expected_backlog()


async def test_a_taken_port_is_named_with_the_flag_that_moves_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BadStartError, match=rf"can't listen on 127\.0\.0\.1:{port}: .*another --port"):
            async with serve(make_views(State()), "127.0.0.1", port):
                pass


async def test_an_address_of_another_machine_is_named_with_the_variable_that_gave_it() -> None:
    with pytest.raises(BadStartError, match=r"Cannot assign .*another address with MILLRACE_BIND_ADDRESS$"):
        async with serve(make_views(State()), "192.0.2.1", 0):
            pass


async def test_metrics_have_controller_runtimes_names_and_labels() -> None:
    queue = WorkQueue()
    with queue.opened():
        for name in "abc":
            queue.add(ServiceKey("shop", name))
        async with client(State(), queue) as http:
            text = await (await http.get("/metrics")).text()
    for line in (
        'controller_runtime_reconcile_total{controller="inferenceservice",result="success"} 1.0',
        'controller_runtime_reconcile_errors_total{controller="inferenceservice"} 1.0',
        'rest_client_requests_total{code="200",method="PATCH"} 1.0',
        'controller_runtime_active_workers{controller="inferenceservice"} 0.0',
        'workqueue_depth{controller="inferenceservice",name="inferenceservice"} 3.0',
        'workqueue_adds_total{controller="inferenceservice",name="inferenceservice"} 3.0',
        'workqueue_retries_total{controller="inferenceservice",name="inferenceservice"} 0.0',
        "watch_last_event_age_seconds 1.5",
        'leader_election_master_status{name="lease"} 1.0',
    ):
        assert line in text


async def test_health_is_of_watches_and_of_the_leaders_queue() -> None:
    state = State()
    async with client(state) as http:
        assert (await http.get("/healthz")).status == 200
        state.watch = OVERDUE_LIMIT_SECONDS + 1
        assert (await http.get("/healthz")).status == 503
        state.watch, state.queue = 0, STALL_LIMIT_SECONDS + 1
        assert (await http.get("/healthz")).status == 503
        state.leads = False
        assert (await http.get("/healthz")).status == 200
        state.silence = SILENT_LIMIT_SECONDS + 1
        assert (await http.get("/healthz")).status == 503


async def test_the_leader_explains_its_decisions_and_others_name_it() -> None:
    state = State()
    async with client(state) as http:
        shown = await http.get("/decisions/shop/chat")
        decision = json.loads(await shown.text(), parse_constant=pytest.fail)
        assert (shown.status, decision["signals"]["reporting"], decision["desired"]) == (200, ["a"], 2)
        missing = await http.get("/decisions/shop/other")
        assert (missing.status, "mode External" in await missing.text()) == (404, True)
        state.leads = False
        other = await http.get("/decisions/shop/chat")
        assert (other.status, "pod-b" in await other.text()) == (503, True)


@needs_ipv6
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_decisions_are_shown_within_the_pod(host: str) -> None:
    async with serve(make_views(State()), "", 0) as site, aiohttp.ClientSession() as http:
        assert (await http.get(f"{url_of(site, host)}/decisions/shop/chat")).status == 200


async def test_decisions_are_shown_to_no_other_pod_while_metrics_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web.BaseRequest, "remote", "10.1.2.3")
    async with client(State()) as http:
        for name in ("chat", "other"):  # nor does it tell which services there are
            refused = await http.get(f"/decisions/shop/{name}")
            assert refused.status == 403
            assert "port-forward" in (await refused.json())["error"]
        assert (await http.get("/metrics")).status == 200
        assert (await http.get("/healthz")).status == 200


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.4.2", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.1.2.3", False),
        ("::ffff:10.1.2.3", False),
        ("fd00::1", False),
        ("", False),
        (None, False),
    ],
)
def test_loopback_is_told_from_other_addresses(address: str | None, *, expected: bool) -> None:
    assert is_loopback(address) is expected
