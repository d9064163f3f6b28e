"""The shipped model answers in JSON that a schema describes, and without bad words."""

import json
from collections.abc import Callable

import httpx
import pytest

pytestmark = pytest.mark.slow
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
CHAT = {"messages": [{"role": "user", "content": "Tell me of a fox."}], "max_tokens": 300}


def assert_fits(text: str) -> None:
    person = json.loads(text)
    assert person.keys() == {"name", "age", "tags"}
    assert isinstance(person["name"], str)
    assert len(person["name"]) <= 20
    assert person["age"] in range(1, 100)
    assert len(person["tags"]) <= 3
    assert set(person["tags"]) <= {"red", "blue"}


def test_every_choice_fits_its_schema_streamed_too(
    start: Callable[..., "Replica"],  # noqa: F821  conftest's
    client: httpx.Client,
) -> None:
    address = start("--demo").address
    url = f"{address}/v1/chat/completions"
    answer = client.post(url, json=CHAT | {"response_format": FORMAT, "n": 4, "temperature": 1.5}).json()
    for choice in answer["choices"]:
        assert choice["finish_reason"] == "stop"
        assert_fits(choice["message"]["content"])
    body = CHAT | {"response_format": FORMAT, "stream": True}
    with client.stream("POST", url, json=body) as stream:
        lines = [line.removeprefix("data: ") for line in stream.iter_lines() if line.startswith("data: {")]
    choices = [json.loads(line)["choices"][0] for line in lines]
    assert_fits("".join(choice["delta"].get("content") or "" for choice in choices))
    assert choices[-1]["finish_reason"] == "stop"
    refused = client.post(url, json=CHAT | {"guided_json": {"type": "integer", "minimum": 2, "maximum": 1}})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "guided_json")
    chosen = client.post(url, json=CHAT | {"guided_choice": ["fox", "hen"]}).json()["choices"][0]
    assert chosen["message"]["content"] in {"fox", "hen"}
    assert_no_bad_words(client, address)


def assert_no_bad_words(client: httpx.Client, address: str) -> None:
    """The first pairs of the likeliest answer's tokens are banned from another one."""
    ask = {"prompt": "Once upon a time", "max_tokens": 30, "temperature": 0, "return_token_ids": True}

    def complete(words: list[str]) -> list[int]:
        answer = client.post(f"{address}/v1/completions", json=ask | {"bad_words": words})
        return list(answer.json()["choices"][0]["token_ids"])

    free, words, banned = complete([]), [], []
    for place in range(6):
        pair = {"tokens": free[place : place + 2]}
        words.append(client.post(f"{address}/detokenize", json=pair).json()["prompt"].strip())
        text = {"prompt": words[-1], "add_special_tokens": False}
        banned.append(client.post(f"{address}/tokenize", json=text).json()["tokens"])
    said = complete(words)
    assert said != free
    assert max(map(len, banned)) > 1
    for word in banned:
        assert word not in [said[place : place + len(word)] for place in range(len(said))]


def test_a_forced_call_fits_its_tool(
    start: Callable[..., "Replica"],  # noqa: F821  conftest's
    client: httpx.Client,
) -> None:
    properties = {
        "kind": {"enum": ["fox", "hen"], "type": "string"},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
    }
    parameters = {"type": "object", "properties": properties, "required": ["kind", "age"]}
    tools = [{"type": "function", "function": {"name": "add", "parameters": parameters}}]
    url = f"{start('--demo', '--tool-parser', 'qwen3_coder').address}/v1/chat/completions"
    answer = client.post(url, json=CHAT | {"tools": tools, "tool_choice": "required"})
    assert answer.status_code == 200, answer.text
    [choice] = answer.json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    call = choice["message"]["tool_calls"][0]["function"]
    arguments = json.loads(call["arguments"])
    assert (call["name"], arguments["kind"] in {"fox", "hen"}, arguments["age"] in range(1, 100)) == (
        "add",
        True,
        True,
    )
