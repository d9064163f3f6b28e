"""What clients write and read where the gateway's choice is measured on real replicas."""

import time

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks.routing.live.clients import Words, ask, open_session, read_load
from benchmarks.routing.workload import SHARED, Writer
from millrace_runtime.contract import METRIC_RUNNING, METRIC_WAITING

SCRAPE = f"""
# TYPE {METRIC_WAITING} gauge
{METRIC_WAITING}{{model_name="chat"}} 3.0
{METRIC_RUNNING}{{model_name="chat"}} 4.0
{METRIC_RUNNING}_other 9.0
"""
EVENTS = (
    '{"choices":[{"delta":{"role":"assistant","content":""}}]}',
    '{"choices":[{"delta":{"content":"a"}}]}',
    '{"choices":[],"usage":{"prompt_tokens":70,"prompt_tokens_details":{"cached_tokens":64}}}',
    "[DONE]",
)


def test_conversations_share_their_system_prompts_and_nothing_else() -> None:
    writer = Writer(SHARED, 1)
    first = writer.write()
    other = next(one for one in iter(writer.write, None) if one.system != first.system)
    same = next(one for one in iter(writer.write, None) if one.system == first.system)
    words = Words(1)
    assert words.write_system(first) == words.write_system(same) != words.write_system(other)
    assert len(words.write_system(first)) == first.system_tokens
    assert words.write(40) != words.write(40)
    assert Words(2).write_system(first) != words.write_system(first)


async def test_a_client_notes_its_first_token_and_what_the_prefix_cache_had() -> None:
    async def chat(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer key"
        return web.Response(text="".join(f"data: {event}\n\n" for event in EVENTS))

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=SCRAPE)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_get("/metrics", metrics)
    async with TestServer(app) as server, open_session("key") as session:
        address = str(server.make_url("")).rstrip("/")
        seen: list[float] = []
        hi = [{"role": "user", "content": "hi"}]
        answer = await ask(session, address, hi, 1, lambda: seen.append(time.monotonic()))
        assert [answer.first_token_at] <= seen <= [answer.ended_at]
        assert (answer.num_prompt_tokens, answer.num_found_tokens) == (70, 64)
        assert answer.sent_at < answer.first_token_at <= answer.ended_at
        assert await read_load(session, address) == 7.0


async def test_a_client_refuses_an_answer_that_is_no_success() -> None:
    async with TestServer(web.Application()) as server, open_session("key") as session:
        with pytest.raises(aiohttp.ClientResponseError, match="404"):
            await ask(session, str(server.make_url("")).rstrip("/"), [], 1)
