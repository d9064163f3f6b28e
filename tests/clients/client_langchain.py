"""LangChain's `ChatOpenAI`."""

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from replica import Replica


class Person(BaseModel):
    """A person."""

    name: str
    age: int


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"18 degrees in {city}"


@pytest.fixture
def model(replica: Replica) -> ChatOpenAI:
    return ChatOpenAI(model="scripted", base_url=replica.openai_url, temperature=0, max_retries=0)


def test_a_bound_tool_is_called(model: ChatOpenAI) -> None:
    bound = model.bind_tools([get_weather])
    question = HumanMessage("What is the weather in Paris?")
    answer = bound.invoke([question])
    [call] = answer.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    result = get_weather.invoke(call)
    assert isinstance(result, ToolMessage)
    assert bound.invoke([question, answer, result]).content == "It is 18 degrees in Paris."


@pytest.mark.parametrize(
    ("method", "question"),
    [("json_schema", "Describe Ada"), ("json_mode", "Describe Ada"), ("function_calling", "Record Ada")],
)
def test_an_answer_has_its_structure(model: ChatOpenAI, method: str, question: str) -> None:
    assert model.with_structured_output(Person, method=method).invoke(question) == Person(name="Ada", age=36)


def test_a_stream(model: ChatOpenAI) -> None:
    chunks = list(model.stream("Say hello", stream_usage=True))
    assert "".join(chunk.content for chunk in chunks) == "Hello, wörld 😀!"
    assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) > 0


def test_a_streamed_call(model: ChatOpenAI) -> None:
    whole = None
    for chunk in model.bind_tools([get_weather], tool_choice="any").stream("the weather in Paris"):
        whole = chunk if whole is None else whole + chunk
    assert [call["args"] for call in whole.tool_calls] == [{"city": "Paris"}]


def test_the_responses_api(replica: Replica) -> None:
    model = ChatOpenAI(model="scripted", base_url=replica.openai_url, use_responses_api=True, max_retries=0)
    assert model.invoke("Say hello").text == "Hello, wörld 😀!"
    assert "".join(chunk.text for chunk in model.stream("Say hello")) == "Hello, wörld 😀!"
