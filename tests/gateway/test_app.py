"""What the gateway answers itself."""

import asyncio
import json

import aiohttp
import pytest
from aiohttp import web

from millrace_gateway.report.metrics import Outcome
from millrace_gateway.route.objects import ServiceKey
from millrace_gateway.server import Gateway
from millrace_gateway.settings import Settings
from testing.addresses import backlog_of, expected_backlog, needs_ipv6, url_of
from tests.gateway.conftest import Bench, running
from tests.gateway.test_proxy import BODY, CHAT, COMPLETIONS, FINISHED, IN_FLIGHT

INNER = ("/metrics", "/loads")


async def get(bench: Bench, path: str, host: str | None = None) -> tuple[int, str]:
    headers, url = {"Host": host} if host else {}, bench.metrics_url if path in INNER else bench.url
    async with bench.client.get(url + path, headers=headers) as response:
        return response.status, await response.text()


async def list_ids(bench: Bench, host: str | None = None) -> list[str]:
    headers = {"Host": host} if host else {}
    async with bench.client.get(f"{bench.url}/v1/models", headers=headers) as response:
        return [model["id"] for model in (await response.json())["data"]]


async def test_a_burst_of_connections_may_wait(bench: Bench) -> None:
    assert {backlog_of(site) for site in bench.sites} == {expected_backlog()}


@needs_ipv6
@pytest.mark.parametrize(
    ("address", "asked"), [("", ["127.0.0.1", "::1"]), ("::1", ["::1"]), ("127.0.0.1", ["127.0.0.1"])]
)
async def test_it_answers_on_ipv6_and_ipv4(address: str, asked: list[str]) -> None:
    async with Gateway(Settings(address, 0)).serve() as sites, aiohttp.ClientSession() as http:
        for host in asked:
            assert (await http.get(f"{url_of(sites.clients, host)}/livez")).status == 200


async def test_probes_tell_the_phase(bench: Bench) -> None:
    lifecycle = bench.gateway.lifecycle
    assert await get(bench, "/readyz") == (200, "ok\n")
    lifecycle._unsynced.add("pods")
    assert (await get(bench, "/readyz"))[0] == 503
    assert "starting" in (await get(bench, "/readyz"))[1]
    lifecycle.note_sync("pods")
    lifecycle.begin_drain()
    assert "draining" in (await get(bench, "/readyz"))[1]
    assert (await get(bench, "/livez"))[0] == 200


async def test_each_port_has_its_own_paths(bench: Bench) -> None:
    for path in INNER:
        assert (await bench.client.get(bench.url + path)).status == 404
    for path in ("/v1/models", "/readyz"):
        assert (await bench.client.get(bench.metrics_url + path)).status == 404


async def test_models_are_listed_as_far_as_the_host_reaches(bench: Bench) -> None:
    bench.add_service("team", "chat", served="llama")
    bench.add_service("other", "mine", served="llama", created="2026-03-01T00:00:00Z")
    assert await list_ids(bench, "mine.other.svc") == ["llama"]
    assert (await get(bench, "/v1/models", "gone.team.svc"))[0] == 404
    assert await list_ids(bench) == []


async def test_the_gateways_own_address_lists_what_the_platform_lets_it() -> None:
    pins = {"gpt": ServiceKey("team", "chat"), "gone": ServiceKey("team", "gone")}
    for list_all, expected in ((False, ["gpt"]), (True, ["gpt", "llama", "sql"])):
        settings = Settings("127.0.0.1", 0, short_names=pins, list_all_models=list_all)
        async with running(settings) as bench:
            bench.add_service("team", "chat", served="llama")
            bench.add_service("team", "sql")
            assert await list_ids(bench) == expected
            assert (await get(bench, "/v1/models/gpt"))[0] == 200


@pytest.mark.parametrize("bench", [{"allowed_origins": ("https://a.example",)}], indirect=True)
async def test_a_page_of_an_allowed_origin_may_call_every_service(bench: Bench) -> None:
    """The gateway answers for the services: a preflight names no model, and replicas do not decide."""

    async def answer(request: web.Request) -> web.Response:
        assert "Origin" not in request.headers
        return web.json_response({}, headers={"Access-Control-Allow-Origin": "*", "Vary": "Accept"})

    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", answer)
    preflight = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    async with bench.client.options(bench.url + COMPLETIONS, headers=preflight) as told:
        assert (told.status, told.headers["Access-Control-Allow-Origin"]) == (204, "https://a.example")
    for origin, allowed in (("https://a.example", ["https://a.example"]), ("https://b.example", [])):
        for body in (json.dumps(BODY), "no json"):
            async with bench.client.post(
                bench.url + COMPLETIONS, data=body, headers={"Origin": origin}
            ) as response:
                assert response.headers.getall("Access-Control-Allow-Origin", []) == allowed
                assert "Origin" in response.headers.getall("Vary")


async def test_one_model_is_found_by_every_name_it_has(bench: Bench) -> None:
    bench.add_service("team", "chat", served="llama")
    for name in ("llama", "team/chat", "team%2Fchat"):
        status, text = await get(bench, f"/v1/models/{name}")
        assert (status, '"created": 1767225600' in text) == (200, True)
    for name, status in (("llama", 200), ("team/chat", 200), ("gpt", 404)):
        assert (await get(bench, f"/v1/models/{name}", "chat.team.svc"))[0] == status
    assert (await get(bench, "/v1/models/gpt"))[0] == 404


async def test_a_new_service_has_its_series_at_zero_and_a_deleted_one_none(bench: Bench) -> None:
    bench.add_service("team", "chat")
    labels = '{namespace="team",service="chat"}'
    assert f"millrace_gateway_requests_received_total{labels} 0\n" in (await get(bench, "/metrics"))[1]
    bench.remove_services()
    assert 'service="chat"' not in (await get(bench, "/metrics"))[1]


async def begin_held_request(bench: Bench) -> tuple[asyncio.Task[aiohttp.ClientResponse], asyncio.Event]:
    """Send a request that its replica answers once the event is set."""
    release = asyncio.Event()

    async def hold(_request: web.Request) -> web.Response:
        await release.wait()
        return web.json_response({})

    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", hold)
    call = asyncio.create_task(bench.client.post(bench.url + COMPLETIONS, json=BODY))
    await bench.until(lambda: bench.gateway.lifecycle.num_in_flight)
    return call, release


async def test_a_service_deleted_under_its_request_does_no_harm(bench: Bench) -> None:
    call, release = await begin_held_request(bench)
    bench.remove_services()
    bench.gateway.metrics.begin(ServiceKey("team", "chat")).end(Outcome.COMPLETED)
    release.set()
    async with await call as response:
        assert response.status == 200
    assert 'service="chat"' not in (await get(bench, "/metrics"))[1]


async def test_a_service_made_anew_begins_at_zero_whatever_still_runs(bench: Bench) -> None:
    call, release = await begin_held_request(bench)
    bench.remove_services()
    bench.add_service("team", "chat")
    release.set()
    async with await call:
        assert bench.value(IN_FLIGHT, **CHAT) == 0
        assert bench.value(FINISHED, **CHAT, outcome="completed") == 0


async def test_a_drain_takes_late_requests_and_ends_with_the_last_stream(bench: Bench) -> None:
    early, release = await begin_held_request(bench)
    drain = asyncio.create_task(bench.gateway.drain(bench.sites))
    await asyncio.sleep(0)
    late = asyncio.create_task(bench.client.post(bench.url + COMPLETIONS, json=BODY))
    await bench.until(lambda: bench.gateway.lifecycle.num_in_flight == 2)
    await asyncio.sleep(3 * bench.gateway.settings.drain_notice_seconds)
    assert not drain.done()
    assert (await get(bench, "/loads"))[0] == 401  # a leader that takes over must be able to ask still
    release.set()
    async with asyncio.timeout(5), await early as first, await late as second:
        await drain
        assert (first.status, second.status) == (200, 200)
        assert first.headers["Connection"] == second.headers["Connection"] == "close"


@pytest.mark.parametrize("bench", [{"drain_idle_seconds": 1.0}], indirect=True)
async def test_a_drain_answers_who_asks_again_at_the_end_of_a_stream(bench: Bench) -> None:
    """The answer began before the drain, so it did not say that the connection closes."""

    async def stream(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await release.wait()
        return answer

    release = asyncio.Event()
    bench.add_service("team", "chat")
    await bench.add_upstream("team", "chat", stream)
    async with bench.client.post(bench.url + COMPLETIONS, json=BODY) as first:
        drain = asyncio.create_task(bench.gateway.drain(bench.sites))
        await asyncio.sleep(3 * bench.gateway.settings.drain_notice_seconds)
        release.set()
        await first.read()
    await asyncio.sleep(0.05)
    async with bench.client.post(bench.url + COMPLETIONS, json=BODY) as again:
        assert (again.status, again.headers["Connection"]) == (200, "close")
    await drain
