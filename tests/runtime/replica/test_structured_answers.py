"""The shipped model answers in JSON that a schema describes, and without bad words; calls are well-formed."""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy
from tokenizers import Tokenizer

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


MARKER = "<tool_call>"
TOOLS = [{"type": "function", "function": {"name": "find"}}]


def write_with_marker(folder: Path, model_path: Path) -> Tokenizer:
    """Write the model with one more token and its weights, and return its tokenizer."""
    shutil.copytree(model_path, folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([MARKER])
    tokenizer.save(str(folder / "tokenizer.json"))
    weights = safetensors.numpy.load_file(folder / "model.safetensors")
    rows = weights["model.embed_tokens.weight"]
    weights["model.embed_tokens.weight"] = np.concatenate([rows, rows[:1]])
    safetensors.numpy.save_file(weights, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": tokenizer.get_vocab_size()}))
    return tokenizer


def test_calls_have_well_formed_json_in_any_company(
    start: Callable[..., "Replica"],  # noqa: F821  conftest's
    client: httpx.Client,
    model_path: Path,
    tmp_path: Path,
) -> None:
    """The weights are random and the cache is small: many draws do not fit, and sequences are preempted."""
    tokenizer = write_with_marker(tmp_path / "marked", model_path)
    likely = {MARKER: 4, "</s>": -100} | dict.fromkeys('{}[]":,', 3)
    bias = {str(tokenizer.token_to_id(text)): value for text, value in likely.items()}
    cache = ("--kv-cache-memory", "300000", "--speculative-tokens", "4")
    replica = start("--model", str(tmp_path / "marked"), "--tool-parser", "hermes", *cache)
    ask: dict[str, Any] = {"tools": TOOLS, "max_tokens": 300, "logit_bias": bias, "return_token_ids": True}

    def draw(seed: int) -> list[int]:
        messages = [{"role": "user", "content": f"Find {seed}."}]
        body = ask | {"messages": messages, "seed": seed, "temperature": 1.0 if seed % 3 else 0.0}
        answer = client.post(f"{replica.address}/v1/chat/completions", json=body).json()
        return list(answer["choices"][0]["token_ids"])

    with ThreadPoolExecutor(8) as threads:
        crowded = list(threads.map(draw, range(16)))
    assert [draw(seed) for seed in range(4)] == crowded[:4]
    texts = [tokenizer.decode(tokens, skip_special_tokens=False) for tokens in crowded]
    whole = [part.lstrip(" \n") for text in texts for part in text.split(MARKER)[1:-1]]
    begun = [part for part in whole if part.startswith(("{", "["))]
    assert len(begun) > 8
    for part in begun:
        json.JSONDecoder().raw_decode(part)
