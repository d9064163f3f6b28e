"""Several tokens in one output, as an accepted draft brings them, are answered and counted as one by one."""

from typing import Any

import pytest

from tests.runtime.api.served import Served

ASK: dict[str, Any] = {"prompt": "a", "max_tokens": 60, "logprobs": 1, "return_token_ids": True}
"""The reply has 17 tokens: the first comes alone, then four a step."""


async def complete(served: Served, burst: int, **fields: Any) -> dict[str, Any]:
    served.engine.burst = burst
    answer: dict[str, Any] = (await served.client.post("/v1/completions", json=ASK | fields)).json()
    return {name: answer[name] for name in ("choices", "usage")}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_tokens": 7},
        {"stop": "töp"},
        {"stop": ["töp", "nds"], "min_tokens": 9},
        {"stop": "<|end|>"},
        {"stop": [" 😀"], "include_stop_str_in_output": True},
        {"stop": "st", "logprobs": None},
        {"stop": "ends!", "n": 2},
    ],
)
async def test_an_answer_is_the_same_however_many_tokens_come_at_once(
    served: Served, fields: dict[str, Any]
) -> None:
    plain = await complete(served, 1, **fields)
    for burst in (2, 4, 16):
        assert await complete(served, burst, **fields) == plain


async def test_latencies_are_those_of_outputs_and_of_tokens(served: Served) -> None:
    """As in vLLM: between two outputs the time itself, and an answer's time over all of its tokens."""
    await complete(served, 4)
    assert await served.metric("vllm:inter_token_latency_seconds_count") == 4
    between = await served.metric("vllm:inter_token_latency_seconds_sum")
    assert await served.metric("vllm:request_time_per_output_token_seconds_count") == 1
    average = await served.metric("vllm:request_time_per_output_token_seconds_sum")
    assert average == pytest.approx(between / 16)
    assert await served.metric("vllm:generation_tokens_total") == 17


@pytest.mark.parametrize(("max_tokens", "num_later"), [(3, 0), (17, 13)])
async def test_tokens_that_come_with_the_first_one_take_no_time(
    served: Served, max_tokens: int, num_later: int
) -> None:
    served.engine.first_burst = 4
    await complete(served, 1, max_tokens=max_tokens)
    between = await served.metric("vllm:inter_token_latency_seconds_sum")
    assert await served.metric("vllm:request_time_per_output_token_seconds_count") == (num_later > 0)
    average = await served.metric("vllm:request_time_per_output_token_seconds_sum")
    assert average * max(num_later, 1) == pytest.approx(between)
