"""Calls in each format, from the engine to the client: whole, streamed token by token, and with drafts."""

from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from millrace_runtime.chat.parsers.registry import HARMONY, TOOL_FORMATS
from testing.scripted_replica import serve_script
from tests.runtime.chat.answers import ANSWERS, TOOLS

FORMATS = sorted(TOOL_FORMATS.keys() - {HARMONY})
"""Harmony's answers have the tokens that the script's own turns begin with."""
ASKED = ("hermes", "qwen3_coder")
"""For each run of `make test`."""
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
STOP = "stop here"


def describe(choice: dict[str, Any], message: dict[str, Any]) -> tuple[Any, ...]:
    """What a client has of an answer; ids are random."""
    calls = [one["function"] for one in message.get("tool_calls") or []]
    named = [(call["name"], call["arguments"]) for call in calls]
    return message.get("content") or "", named, choice["finish_reason"]


async def ask(client: httpx.AsyncClient, body: dict[str, Any]) -> tuple[Any, ...]:
    answer = (await client.post("/v1/chat/completions", json=body)).raise_for_status().json()
    (choice,) = answer["choices"]
    return describe(choice, choice["message"])


async def stream(client: httpx.AsyncClient, body: dict[str, Any]) -> tuple[Any, ...]:
    """Join what comes in chunks."""
    message: dict[str, Any] = {"content": "", "tool_calls": []}
    choice: dict[str, Any] = {"finish_reason": None}
    text = (await client.post("/v1/chat/completions", json=body | {"stream": True})).text
    for line in text.split("\n\n"):
        if not line.startswith("data: {"):
            continue
        for one in msgspec.json.decode(line.removeprefix("data: "))["choices"]:
            choice["finish_reason"] = one["finish_reason"] or choice["finish_reason"]
            message["content"] += one["delta"].get("content") or ""
            for call in one["delta"].get("tool_calls") or []:
                if call["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append({"function": {"name": "", "arguments": ""}})
                function = message["tool_calls"][call["index"]]["function"]
                for field, value in call["function"].items():
                    function[field] += value or ""
    return describe(choice, message)


def list_bodies(texts: list[str]) -> list[dict[str, Any]]:
    """Requests for each answer; one more ends at a stop string, and one has a schema of its own."""
    asked = [[{"role": "user", "content": f"cue {number}."}] for number in range(len(texts))]
    bodies: list[dict[str, Any]] = [
        {"messages": messages, "tools": TOOLS, "temperature": 0, "max_tokens": 300} for messages in asked
    ]
    cut = [{"role": "user", "content": "the cut one"}]
    bodies.append({"messages": cut, "tools": TOOLS, "stop": [STOP], "max_tokens": 300})
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    bodies.append({"messages": [{"role": "user", "content": "a number"}], "response_format": form})
    return bodies


@pytest.mark.parametrize(
    "tool_format", [pytest.param(name, marks=[] if name in ASKED else pytest.mark.long) for name in FORMATS]
)
async def test_an_answer_is_the_same_whole_streamed_and_with_drafts(tmp_path: Path, tool_format: str) -> None:
    texts = [text for name, text, _, _ in ANSWERS if name == tool_format]
    answers = {f"cue {number}.": text for number, text in enumerate(texts)}
    answers |= {"the cut one": f"Before. {STOP} and after.", "a number": '{"n": 12}'}
    found = []
    for has_drafts in (False, True):
        folder = tmp_path / str(has_drafts)
        folder.mkdir()
        async with (
            serve_script(folder, answers, tool_format=tool_format, has_drafts=has_drafts) as replica,
            httpx.AsyncClient(base_url=replica.url, timeout=30) as client,
        ):
            bodies = [{"model": "scripted"} | body for body in list_bodies(texts)]
            found += [[await get(client, body) for body in bodies] for get in (ask, stream)]
    assert found[1:] == found[:1] * 3
    *calling, cut, bound = found[0]
    assert any(calls for _, calls, _ in calling)
    assert (cut, bound) == (("Before. ", [], "stop"), ('{"n": 12}', [], "stop"))
