"""What clients and dashboards learn of the prefix cache: cached tokens in the usage, and counters."""

import json
from pathlib import Path
from typing import Any

from millrace_runtime.api.settings import ApiSettings
from millrace_runtime.protocol.messages import Stats, StepOutputs
from tests.runtime.api.served import Served, serve

HI = [{"role": "user", "content": "hi"}]
COMPLETION: tuple[str, dict[str, Any]] = ("completions", {"prompt": [1] * 40, "max_tokens": 3})
CHAT: tuple[str, dict[str, Any]] = ("chat/completions", {"messages": HI})
RESPONSE: tuple[str, dict[str, Any]] = ("responses", {"input": "hi"})
MESSAGE: tuple[str, dict[str, Any]] = ("messages", {"messages": HI, "max_tokens": 9})


async def ask(served: Served, path: str, body: dict[str, Any]) -> Any:
    answer = await served.client.post(f"/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def stream(served: Served, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    text = (await served.client.post(f"/v1/{path}", json=body | {"stream": True})).text
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


async def test_the_usage_of_openais_dialects_has_the_cached_tokens(served: Served) -> None:
    for path, asked in (COMPLETION, CHAT):
        for cached in (16, 0):
            served.engine.cached = [cached]
            usage = (await ask(served, path, asked))["usage"]
            assert usage["prompt_tokens_details"] == {"cached_tokens": cached}
            served.engine.cached = [cached]
            options = {"include_usage": True, "continuous_usage_stats": True}
            chunks = await stream(served, path, asked | {"stream_options": options})
            assert [chunk["usage"]["prompt_tokens_details"] for chunk in chunks] == [
                {"cached_tokens": cached}
            ] * len(chunks)
            assert chunks[-1]["usage"] == usage
            served.engine.cached = [cached]
            *chunks, last = await stream(served, path, asked | {"stream_options": {"include_usage": True}})
            assert last["usage"] == usage
    served.engine.cached = [16, 16]
    details = (await ask(served, *RESPONSE))["usage"]["input_tokens_details"]
    assert details == {"cached_tokens": 16, "cache_write_tokens": 0}
    events = await stream(served, *RESPONSE)
    assert events[-1]["response"]["usage"]["input_tokens_details"] == details


async def test_anthropics_input_tokens_are_those_that_were_not_cached(served: Served) -> None:
    served.engine.cached = [16, 16]
    whole = (await ask(served, *MESSAGE))["usage"]
    counted = await ask(served, "messages/count_tokens", {"messages": HI})
    assert whole["input_tokens"] + whole["cache_read_input_tokens"] == counted["input_tokens"]
    assert (whole["cache_read_input_tokens"], whole["cache_creation_input_tokens"]) == (16, 0)
    first, *_, last, _ = await stream(served, *MESSAGE)
    assert first["message"]["usage"] == whole | {"output_tokens": 0}
    assert last["usage"] == whole


async def test_a_message_that_waits_begins_with_its_usage(model_path: Path) -> None:
    """Comments come before its first event, so that this one knows what was cached."""
    settings = ApiSettings(served_name="tiny", sse_keep_alive_seconds=0.02)
    async with serve(model_path, settings) as served:
        served.engine.is_frozen, served.engine.cached = True, [16]
        asked = MESSAGE[1] | {"stream": True}
        async with served.client.stream("POST", "/v1/messages", json=asked) as answer:
            lines = answer.aiter_lines()
            assert await anext(lines) == ": waiting"
            served.engine.is_frozen = False
            events = [json.loads(line[6:]) async for line in lines if line.startswith("data: ")]
        assert events[0]["message"]["usage"]["cache_read_input_tokens"] == 16
        assert [event["type"] for event in events].count("message_start") == 1


async def test_of_a_prompts_choices_the_first_to_begin_counts(served: Served) -> None:
    served.engine.cached = [16, 32, 0, 32]
    prompts = [[1] * 40, [2] * 50]
    usage = (await ask(served, "completions", {"prompt": prompts, "n": 2, "max_tokens": 1}))["usage"]
    assert usage["prompt_tokens"] == 90
    assert usage["prompt_tokens_details"] == {"cached_tokens": 16}
    name = "millrace:request_computed_prompt_tokens"
    assert await served.metric(f"{name}_sum") == 180 - (16 + 32 + 0 + 32)
    assert await served.metric("vllm:request_prompt_tokens_sum") == 180
    assert await served.metric(f"{name}_count") == 4


async def test_the_engines_counts_of_hits_and_drafts_are_counters(served: Served) -> None:
    stats = Stats(
        *(0, 0, 16, 16, 0),
        num_prefix_queries=70,
        num_prefix_hits=48,
        num_drafts=5,
        num_drafted=20,
        num_accepted=11,
    )
    served.engine.send(StepOutputs([], stats, None))
    await served.until(lambda: served.replica.engine.stats.num_prefix_hits)
    for name, number in (
        ("vllm:prefix_cache_queries_total", 70),
        ("vllm:prefix_cache_hits_total", 48),
        ("vllm:spec_decode_num_drafts_total", 5),
        ("vllm:spec_decode_num_draft_tokens_total", 20),
        ("vllm:spec_decode_num_accepted_tokens_total", 11),
    ):
        assert await served.metric(name) == number
