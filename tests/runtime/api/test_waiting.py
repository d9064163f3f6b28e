"""A request is waiting or running from its first byte on, and counted once, at every scrape."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp

from millrace_runtime.api.settings import ApiSettings
from millrace_runtime.protocol.messages import Stats, StepOutputs
from tests.runtime.api.served import MUCH, Served, serve
from tests.runtime.api.test_bodies import CHUNKED, Upload
from tests.runtime.api.test_failures import read_conserved


async def waiting_and_running(served: Served) -> tuple[float, float]:
    return read_conserved((await served.client.get("/metrics")).text)


async def test_a_request_waits_while_it_is_read_and_tokenised_and_until_the_engine_runs_it(
    served: Served,
) -> None:
    async with Upload(served, CHUNKED) as upload:
        await served.until(lambda: served.replica.admission.num_sequences)
        assert await waiting_and_running(served) == (1, 0)
        await upload.send_chunk(b'{"prompt": ')
        assert await waiting_and_running(served) == (1, 0)
        served.engine.is_frozen = True
        await upload.send_chunk(b'["a", "b"], "n": 2, "max_tokens": 2}')
        upload.end()
        await served.until(lambda: served.replica.admission.num_sequences == 4)
        assert await waiting_and_running(served) == (4, 0)
        served.engine.send(StepOutputs([], Stats(4, 0, 16, 16, 0), None))  # it knows of them
        assert await waiting_and_running(served) == (4, 0)
        served.engine.send(StepOutputs([], Stats(1, 3, 16, 16, 0), None))
        await served.until(lambda: served.replica.engine.stats.num_running)
        assert await waiting_and_running(served) == (1, 3)
        served.engine.is_frozen = False
        assert "200 ok" in await upload.answer()
    assert await waiting_and_running(served) == (0, 0)


async def test_the_time_in_the_queue_is_from_arrival_to_the_first_step_of_each_sequence(
    served: Served,
) -> None:
    """The body comes slowly, and then the engine is busy. Of one that leaves before nothing is counted."""
    served.engine.is_frozen = True
    async with Upload(served, CHUNKED) as upload:
        async with Upload(served, CHUNKED) as gone:
            await asyncio.sleep(0.2)
            for one in (upload, gone):
                await one.send_chunk(b'{"prompt": ["a", "b"], "max_tokens": 20}')
                one.end()
            await served.until(lambda: served.replica.admission.num_sequences == 4)
            await asyncio.sleep(0.2)
        await served.until(lambda: served.replica.admission.num_sequences == 2)
        assert await served.metric("vllm:request_queue_time_seconds_count") == 0
        served.engine.is_frozen = False
        assert "200 ok" in await upload.answer()
    assert await served.metric("vllm:request_queue_time_seconds_count") == 2
    waited = await served.metric("vllm:request_queue_time_seconds_sum")
    assert 0.8 <= waited < await served.metric("vllm:time_to_first_token_seconds_sum") + 0.01


async def test_a_request_waits_while_its_template_is_rendered(served: Served) -> None:
    loop = {"messages": [{"role": "user", "content": "loop"}], "n": 3}
    answer = asyncio.create_task(served.client.post("/v1/chat/completions", json=loop))
    await served.until(lambda: served.replica.admission.num_sequences == 3)
    assert await waiting_and_running(served) == (3, 0)
    assert (await answer).status_code == 503
    assert await waiting_and_running(served) == (0, 0)


async def test_what_the_engine_has_not_heard_to_have_ended_does_not_hide_who_waits(served: Served) -> None:
    served.engine.pauses_after = 2
    body = {"prompt": "a", "n": 2, "stream": True}
    async with served.client.stream("POST", "/v1/completions", json=body) as answer:
        pieces = answer.aiter_bytes()
        await anext(pieces)
        assert await waiting_and_running(served) == (0, 2)
        served.engine.is_frozen = True
    await served.until(lambda: not served.replica.admission.num_sequences)
    assert await waiting_and_running(served) == (0, 0)
    async with Upload(served, CHUNKED):
        await served.until(lambda: served.replica.admission.num_sequences)
        assert await waiting_and_running(served) == (1, 0)
    served.engine.is_frozen = False


async def test_a_slow_reader_looks_neither_like_a_queue_nor_like_slow_tokens(served: Served) -> None:
    served.engine.reply = [1]
    body = MUCH | {"stream": True}
    began = time.monotonic()
    async with served.client.stream("POST", "/v1/completions", json=body) as answer:
        pieces = answer.aiter_bytes(1)
        await anext(pieces)
        await served.until(lambda: not served.engine.running)
        await asyncio.sleep(0.1)  # its last word comes
        computed = time.monotonic() - began
        await asyncio.sleep(0.5)
        assert served.replica.admission.num_sequences == 0
        assert served.replica.admission.num_event_bytes > 100_000  # its answer is not read yet
        assert await waiting_and_running(served) == (0, 0)
    assert await served.metric("vllm:request_success_total", finished_reason="length") == 128
    assert await served.metric("vllm:e2e_request_latency_seconds_sum") / 128 <= computed
    assert await served.metric("vllm:request_time_per_output_token_seconds_sum") / 128 <= computed / 189


async def test_an_answer_that_is_read_slowly_keeps_nobody_from_an_idle_engine(model_path: Path) -> None:
    async with serve(model_path, ApiSettings(served_name="tiny", max_requests=128)) as served:
        served.engine.reply = [1]
        body = MUCH | {"stream": True}
        async with served.client.stream("POST", "/v1/completions", json=body) as slow:
            await served.until(lambda: served.engine.num_steps and not served.engine.running)
            other = await served.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
            assert other.status_code == 200
            served.replica.begin_drain()
            idle = asyncio.create_task(served.replica.wait_idle())
            await asyncio.sleep(0.1)
            assert not idle.done()
            assert (await slow.aread()).endswith(b"data: [DONE]\n\n")
        await idle
        assert served.replica.admission.num_event_bytes == 0


async def test_nothing_is_lost_or_counted_twice_at_any_scrape_under_load(model_path: Path) -> None:
    """Refusals of each kind, whole answers and streams, clients that leave, failures, and a WebSocket."""
    settings = ApiSettings(served_name="tiny", max_requests=60, sse_keep_alive_seconds=0.01)
    async with serve(model_path, settings) as served:
        await load_and_scrape(served)


async def load_and_scrape(served: Served) -> None:
    chance = random.Random(5)
    chat = [{"role": "user", "content": "hi"}]
    many = {"prompt": "a", "n": 3, "stream": True, "ignore_eos": True, "max_tokens": 100}

    async def post(body: dict[str, object], path: str = "completions") -> None:
        await served.client.post(f"/v1/{path}", json=body)

    async def leave() -> None:
        async with served.client.stream("POST", "/v1/completions", json=many) as answer:
            await anext(answer.aiter_bytes())

    async def fail() -> None:
        served.engine.fails_sequences = True
        await post({"prompt": "a", "n": 2})
        served.engine.fails_sequences = False

    async def talk() -> None:
        url = f"{served.client.base_url}/v1/stream".replace("//v1", "/v1")
        async with aiohttp.ClientSession() as session, session.ws_connect(url) as socket:
            for request_id in "abc":
                await socket.send_json({"id": request_id, "request": many})
            await socket.send_json({"cancel": "a"})
            await socket.receive()  # then the connection ends with what is left

    kinds: list[Callable[[], Awaitable[None]]] = [
        lambda: post({"prompt": ["a", "b"], "n": 2, "max_tokens": 5}),
        lambda: post({"prompt": "a", "stop": "the", "max_tokens": 50, "stream": True}),
        lambda: post({"prompt": "a", "n": 129}),
        lambda: post({"prompt": "a", "model": "other"}),
        lambda: post({"prompt": "a b" * 100}),
        lambda: post({"prompt": "a", "n": 16, "user": "x" * 200_000}),
        lambda: post({"prompt": "a", "guided_regex": "(", "stream": True}),
        lambda: post({"prompt": "a", "bad_words": ["stop"], "n": 16}),
        lambda: post({"messages": [{"role": "villain", "content": "x"}]}, "chat/completions"),
        lambda: post({"messages": chat, "max_tokens": 9, "stream": True}, "messages"),
        lambda: post({"input": "hi"}, "responses"),
        leave,
        fail,
        talk,
    ]
    load = asyncio.gather(*(chance.choice(kinds)() for _ in range(120)))
    num_busy = 0
    while not load.done():
        num_busy += sum(await waiting_and_running(served)) > 0
    await load
    for one in (kinds[0], kinds[1], leave, fail):  # under load each of them may be refused
        await one()
    await served.replica.wait_idle()
    assert await waiting_and_running(served) == (0, 0)
    assert num_busy > 0
    metrics = served.replica.metrics
    assert all(metrics.finished[reason] for reason in ("stop", "length", "abort", "error"))
    assert all(metrics.rejected[reason] for reason in ("bad_request", "model_not_found", "overloaded"))
    assert metrics.num_received == metrics.finished.total() + metrics.rejected.total()
    assert served.replica.admission.num_sequences == served.replica.admission.num_event_bytes == 0
