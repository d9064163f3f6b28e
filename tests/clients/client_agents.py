"""OpenAI's Agents SDK and Pydantic AI: loops that call a tool until the model answers."""

import asyncio

import openai
import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
)
from pydantic import BaseModel
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.openai import OpenAIResponsesModel as PydanticResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from replica import Replica

QUESTION = "What is the weather in Paris?"
ANSWER = "It is 18 degrees in Paris."


class Person(BaseModel):
    """A person."""

    name: str
    age: int


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"18 degrees in {city}"


@pytest.mark.parametrize("kind", [OpenAIChatCompletionsModel, OpenAIResponsesModel])
def test_openai_agents(replica: Replica, kind: type) -> None:
    client = openai.AsyncOpenAI(base_url=replica.openai_url, max_retries=0)
    agent = Agent(
        name="Weather",
        instructions="Ask the tool.",
        model=kind("scripted", openai_client=client),
        model_settings=ModelSettings(temperature=0),
        tools=[function_tool(get_weather)],
    )

    async def run_twice() -> None:
        assert (await Runner.run(agent, QUESTION)).final_output == ANSWER
        streamed = Runner.run_streamed(agent, QUESTION)
        async for _ in streamed.stream_events():
            pass
        assert streamed.final_output == ANSWER

    asyncio.run(run_twice())


@pytest.mark.parametrize("kind", [OpenAIChatModel, PydanticResponsesModel])
def test_pydantic_ai(replica: Replica, kind: type) -> None:
    model = kind("scripted", provider=OpenAIProvider(base_url=replica.openai_url, api_key="none"))
    assert PydanticAgent(model, tools=[get_weather]).run_sync(QUESTION).output == ANSWER


def test_pydantic_ai_has_a_typed_output(replica: Replica) -> None:
    model = OpenAIChatModel("scripted", provider=OpenAIProvider(base_url=replica.openai_url, api_key="none"))
    agent = PydanticAgent(model, output_type=NativeOutput(Person))
    assert agent.run_sync("Describe Ada").output == Person(name="Ada", age=36)
    agent = PydanticAgent(model, output_type=ToolOutput(Person, name="Person"))
    assert agent.run_sync("Record Ada").output == Person(name="Ada", age=36)
