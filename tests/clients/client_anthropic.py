"""Anthropic's client."""

from collections.abc import Iterator

import anthropic
import pytest
from anthropic.types.beta.message_create_params import MessageCreateParamsBase
from pydantic import BaseModel
from replica import Replica

WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture
def client(replica: Replica) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=replica.url, max_retries=0) as client:
        yield client


SENT_AS_HEADERS = {"betas", "user_profile_id", "workspace_id"}


def ask(text: str) -> dict[str, object]:
    return {"model": "scripted", "max_tokens": 500, "messages": [{"role": "user", "content": text}]}


def test_a_message(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**ask("Say hello"), system="Be brief.")
    [block] = message.content
    assert (block.type, block.text, message.stop_reason) == ("text", "Hello, wörld 😀!", "end_turn")
    cut = client.messages.create(**ask("Say hello"), stop_sequences=["wör"])
    assert (cut.content[0].text, cut.stop_reason, cut.stop_sequence) == ("Hello, ", "stop_sequence", "wör")


def test_a_tool_is_called_and_its_result_read(client: anthropic.Anthropic) -> None:
    question = ask("What is the weather in Paris?")
    message = client.messages.create(**question, tools=[WEATHER])
    [use] = message.content
    assert (use.name, use.input, message.stop_reason) == ("get_weather", {"city": "Paris"}, "tool_use")
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "18 degrees"}
    turns = [*question["messages"], {"role": "assistant", "content": message.content}]
    turns.append({"role": "user", "content": [result]})
    last = client.messages.create(**question | {"messages": turns}, tools=[WEATHER])
    assert last.content[0].text == "It is 18 degrees in Paris."


@pytest.mark.parametrize("choice", ["any", "tool"])
def test_a_streamed_call_may_be_forced(client: anthropic.Anthropic, choice: str) -> None:
    named = {"type": choice} | ({"name": "get_weather"} if choice == "tool" else {})
    with client.messages.stream(**ask("the weather in Paris"), tools=[WEATHER], tool_choice=named) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        [use] = stream.get_final_message().content
    assert pieces
    assert use.input == {"city": "Paris"}


def test_thinking_is_streamed(client: anthropic.Anthropic) -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    question = ask("Think about it") | {"max_tokens": 2000}
    with client.messages.stream(**question, thinking=thinking) as stream:
        kinds = [event.type for event in stream]
        thought, text = stream.get_final_message().content
    assert {"thinking", "text"} <= set(kinds)
    assert (thought.thinking, text.text) == ("Two and two are four.", "Four.")
    turns = [
        *question["messages"],
        {"role": "assistant", "content": [thought, text]},
        *ask("Say hello")["messages"],
    ]
    again = client.messages.create(**question | {"messages": turns}, thinking=thinking)
    assert again.content[-1].text == "Hello, wörld 😀!"


def test_the_beginning_of_an_answer_may_be_given(client: anthropic.Anthropic) -> None:
    question = ask("Say hello")
    turns = [*question["messages"], {"role": "assistant", "content": "Hello, "}]
    assert client.messages.create(**question | {"messages": turns}).content[0].text == "wörld 😀!"


def test_an_agent_has_tools_of_anthropics_and_finds_its_own(client: anthropic.Anthropic) -> None:
    """As Claude Code asks, with a reminder behind the result."""
    found = [{"type": "tool_reference", "tool_name": "get_weather"}]
    turns = [
        *ask("Which tools know the weather?")["messages"],
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "1", "name": "ToolSearch", "input": {}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": found}]},
        {"role": "system", "content": "Now ask for the weather in Paris."},
    ]
    tools = [
        {"name": "ToolSearch", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        WEATHER | {"defer_loading": True},
    ]
    with client.beta.messages.stream(
        **ask("") | {"messages": turns, "tools": tools},
        betas=["advanced-tool-use-2025-11-20", "context-management-2025-06-27"],
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        metadata={"user_id": "user_1_account__session_2"},
        thinking={"type": "adaptive"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        output_config={"effort": "high"},
    ) as stream:
        [use] = stream.get_final_message().content
    assert (use.name, use.input) == ("get_weather", {"city": "Paris"})


def test_each_parameter_is_known(client: anthropic.Anthropic) -> None:
    absent = dict.fromkeys(MessageCreateParamsBase.__annotations__.keys() - SENT_AS_HEADERS)
    assert client.messages.create(**ask("Say hello"), extra_body=absent | ask("Say hello")).content


def test_text_is_streamed(client: anthropic.Anthropic) -> None:
    with client.messages.stream(**ask("Say hello")) as stream:
        assert "".join(stream.text_stream) == "Hello, wörld 😀!"
        assert stream.get_final_message().usage.output_tokens > 0


def test_an_answer_is_parsed(client: anthropic.Anthropic) -> None:
    class Person(BaseModel):
        name: str
        age: int

    message = client.messages.parse(**ask("Describe Ada"), output_format=Person)
    assert message.parsed_output == Person(name="Ada", age=36)


def test_tokens_are_counted(client: anthropic.Anthropic) -> None:
    question = {key: value for key, value in ask("Say hello").items() if key != "max_tokens"}
    counted = client.messages.count_tokens(**question, tools=[WEATHER])
    usage = client.messages.create(**ask("Say hello"), tools=[WEATHER]).usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_a_refusal_has_its_class(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**ask("Say hello") | {"model": "other"})
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(**ask("Say hello") | {"max_tokens": 0})
