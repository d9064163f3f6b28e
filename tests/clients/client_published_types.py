"""Answers, whole and streamed, are what the published types of OpenAI and Anthropic describe."""

from collections.abc import Iterator
from typing import Any

import anthropic.types
import httpx
import openai.types
import openai.types.chat
import openai.types.responses
import pytest
from pydantic import BaseModel, TypeAdapter
from replica import Replica

EXTENSIONS = {"reasoning", "reasoning_content", "stop_reason", "store", "name"}
"""Fields that the types do not have: reasoning by the names that clients know, vLLM's reason of an end, one
of OpenAI's server, and the function's name beside its whole arguments, which older clients know."""
NOT_YET = '"finish_reason":null'
"""Of a text's chunks, as OpenAI sends them. Its type is that of the last chunk."""
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "parameters": PARAMETERS}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


def ask(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 300}


CHATS = [
    ask("Say hello") | {"n": 2, "logprobs": True, "top_logprobs": 2},
    ask("Say hello") | {"max_tokens": 2, "user": "me"},
    ask("Think about it"),
    ask("the weather in Paris") | {"tools": [{"type": "function", "function": FUNCTION}]},
    ask("Describe Ada")
    | {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
]
CODEX: dict[str, Any] = {
    "instructions": "You are Codex.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Ask nobody."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "weather in Paris"}]},
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "gAAA"},
        {"type": "custom_tool_call", "call_id": "1", "name": "apply_patch", "input": "*** Begin Patch"},
        {"type": "custom_tool_call_output", "call_id": "1", "output": "done"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "weather in Paris"}]},
    ],
    "tools": [
        {"type": "function", "strict": False, **FUNCTION},
        {
            "type": "custom",
            "name": "apply_patch",
            "description": "Edits files.",
            "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
        },
        {"type": "namespace", "name": "mcp__files", "description": "Files.", "tools": [
            {"type": "function", "strict": False, **FUNCTION, "name": "read"}]},
        {"type": "web_search", "external_web_access": False},
        {"type": "tool_search", "execution": "client", "description": "", "parameters": {"type": "object"}},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "service_tier": "priority",
    "prompt_cache_key": "1234",
    "text": {"verbosity": "low"},
    "client_metadata": {"x-codex-installation-id": "1"},
}  # fmt: skip
"""What Codex sends, in the middle of a conversation."""
COMPLETIONS = [
    {"prompt": "Once upon", "max_tokens": 50},
    {"prompt": ["Once upon", "x"], "logprobs": 2, "n": 2, "seed": 1},
]
RESPONSES: list[dict[str, Any]] = [
    {"input": "Say hello", "instructions": "Be brief.", "temperature": 0.5, "metadata": {"a": "b"}},
    {"input": "Say hello", "max_output_tokens": 2},
    {"input": "Think about it"},
    {"input": "the weather in Paris", "tools": [{"type": "function", **FUNCTION}], "tool_choice": "required"},
    {"input": "Describe Ada", "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}},
    CODEX,
]
MESSAGES = [
    ask("Say hello") | {"system": "Be brief."},
    ask("Say hello") | {"max_tokens": 2},
    ask("Say hello") | {"stop_sequences": ["wör"]},
    ask("Think about it") | {"thinking": {"type": "enabled", "budget_tokens": 1024}},
    ask("the weather in Paris") | {"tools": [{"name": "get_weather", "input_schema": PARAMETERS}]},
]
ENDPOINTS: dict[str, tuple[Any, Any, list[dict[str, Any]]]] = {
    "chat/completions": (openai.types.chat.ChatCompletion, openai.types.chat.ChatCompletionChunk, CHATS),
    "completions": (openai.types.Completion, openai.types.Completion, COMPLETIONS),
    "responses": (openai.types.responses.Response, openai.types.responses.ResponseStreamEvent, RESPONSES),
    "messages": (anthropic.types.Message, anthropic.types.RawMessageStreamEvent, MESSAGES),
}
CASES = [(path, body) for path, (_, _, bodies) in ENDPOINTS.items() for body in bodies]


def check(kind: Any, text: str) -> Any:
    """Assert that JSON is of a type: each field that must be there is, with its type, and no unknown one."""
    value = TypeAdapter(kind).validate_json(text, strict=True)
    assert set(list_extras(value)) <= EXTENSIONS, text
    return value


def list_extras(value: Any) -> Iterator[str]:
    """Yield the fields that the types do not have."""
    if isinstance(value, BaseModel):
        yield from value.model_extra or {}
        for name in type(value).model_fields:
            yield from list_extras(getattr(value, name))
    elif isinstance(value, list):
        for item in value:
            yield from list_extras(item)


def post(replica: Replica, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{replica.openai_url}/{path}", json={"model": "scripted"} | body, timeout=60)


@pytest.mark.parametrize(("path", "body"), CASES)
def test_a_whole_answer(replica: Replica, path: str, body: dict[str, Any]) -> None:
    answer = post(replica, path, body)
    assert answer.status_code == 200, answer.text
    check(ENDPOINTS[path][0], answer.text)


@pytest.mark.parametrize(("path", "body"), CASES)
def test_each_event_of_a_stream(replica: Replica, path: str, body: dict[str, Any]) -> None:
    counted = {} if path in ("messages", "responses") else {"stream_options": {"include_usage": True}}
    answer = post(replica, path, body | counted | {"stream": True})
    assert answer.status_code == 200, answer.text
    data = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    if path not in ("messages", "responses"):
        assert data.pop() == "[DONE]"
    if path == "completions":
        data = [text.replace(NOT_YET, '"finish_reason":"stop"') for text in data]
    assert len([check(ENDPOINTS[path][1], text) for text in data]) > 1


def test_lists_counts_and_refusals(replica: Replica) -> None:
    for model in httpx.get(f"{replica.openai_url}/models").json()["data"]:
        openai.types.Model.model_validate(model, strict=True)
    counted = {"messages": ask("Say hello")["messages"]}
    check(anthropic.types.MessageTokensCount, post(replica, "messages/count_tokens", counted).text)
    for path in ("chat/completions", "completions", "responses"):
        refused = post(replica, path, {"top_p": "much"})
        assert refused.status_code == 400
        openai.types.ErrorObject.model_validate(refused.json()["error"], strict=True)
    refused = post(replica, "messages", {"top_p": "much"})
    check(anthropic.types.ErrorResponse, refused.text)
