"""OpenAI's client."""

import json
from collections.abc import Iterator

import openai
import pytest
from pydantic import BaseModel
from replica import Replica

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture
def client(replica: Replica) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=replica.openai_url, max_retries=0) as client:
        yield client


def test_a_chat(client: openai.OpenAI) -> None:
    assert client.models.list().data[0].id == "scripted"
    answer = client.chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": "Say hello"}], logprobs=True, top_logprobs=2
    )
    [choice] = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("Hello, wörld 😀!", "stop")
    assert b"".join(bytes(token.bytes) for token in choice.logprobs.content).decode() == "Hello, wörld 😀!"
    assert answer.usage.completion_tokens > 0


def test_a_streamed_chat(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="scripted",
        messages=[{"role": "user", "content": "Say hello"}],
        stream_options={"include_usage": True},
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert text == final.choices[0].message.content == "Hello, wörld 😀!"
    assert final.usage.total_tokens == final.usage.prompt_tokens + final.usage.completion_tokens


def test_a_tool_is_called_and_its_result_read(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    message = (
        client.chat.completions.create(model="scripted", messages=messages, tools=[WEATHER])
        .choices[0]
        .message
    )
    [call] = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"}]
    last = client.chat.completions.create(model="scripted", messages=messages, tools=[WEATHER])
    assert last.choices[0].message.content == "It is 18 degrees in Paris."


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_streamed_call_may_be_forced(client: openai.OpenAI, choice: str) -> None:
    with client.chat.completions.stream(
        model="scripted",
        messages=[{"role": "user", "content": "the weather in Paris"}],
        tools=[WEATHER],
        tool_choice=choice,
    ) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
    assert [(event.name, json.loads(event.arguments)) for event in done] == [
        ("get_weather", {"city": "Paris"})
    ]


def test_an_answer_is_parsed(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="scripted", messages=[{"role": "user", "content": "Describe Ada"}], response_format=Person
    )
    assert answer.choices[0].message.parsed == Person(name="Ada", age=36)


def test_reasoning(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": "Think about it"}]
    )
    message = answer.choices[0].message
    assert (message.reasoning_content, message.content) == ("Two and two are four.", "Four.")
    assert answer.usage.completion_tokens_details.reasoning_tokens > 0


def test_a_completion_with_logprobs(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="scripted", prompt="Once upon", max_tokens=50, logprobs=2)
    [choice] = answer.choices
    assert choice.text == "".join(choice.logprobs.tokens) == " a time there was a fox."
    assert (
        len(choice.logprobs.tokens)
        == len(choice.logprobs.token_logprobs)
        == len(choice.logprobs.top_logprobs)
    )
    chunks = client.completions.create(model="scripted", prompt="Once upon", max_tokens=50, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text


def test_a_response_and_its_stream(client: openai.OpenAI) -> None:
    tool = {"type": "function", **WEATHER["function"]}
    whole = client.responses.create(model="scripted", input="the weather in Paris", tools=[tool])
    [call] = whole.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"}
    told = [{"role": "user", "content": "the weather in Paris"}, *whole.output, result]
    with client.responses.stream(model="scripted", input=told, tools=[tool]) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == "It is 18 degrees in Paris."
    parsed = client.responses.parse(model="scripted", input="Describe Ada", text_format=Person)
    assert parsed.output_parsed == Person(name="Ada", age=36)


def test_a_refusal_has_its_class(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="use `scripted`"):
        client.chat.completions.create(model="other", messages=[{"role": "user", "content": "Say hello"}])
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="scripted", messages=[])
    assert refused.value.param == "messages"
