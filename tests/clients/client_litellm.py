"""LiteLLM, by both dialects."""

import json

import litellm
import pytest
from replica import Replica

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture(params=["openai", "hosted_vllm", "anthropic"])
def where(request: pytest.FixtureRequest, replica: Replica) -> dict[str, str]:
    url = replica.url if request.param == "anthropic" else replica.openai_url
    return {"model": f"{request.param}/scripted", "api_base": url, "api_key": "none"}


def test_a_chat_and_its_stream(where: dict[str, str]) -> None:
    messages = [{"role": "user", "content": "Say hello"}]
    answer = litellm.completion(**where, messages=messages, max_tokens=100)
    assert answer.choices[0].message.content == "Hello, wörld 😀!"
    chunks = litellm.completion(**where, messages=messages, max_tokens=100, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello, wörld 😀!"


def test_a_call(where: dict[str, str]) -> None:
    answer = litellm.completion(
        **where,
        messages=[{"role": "user", "content": "the weather in Paris"}],
        tools=[WEATHER],
        tool_choice="required",
        max_tokens=200,
    )
    [call] = answer.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
