"""POST /v1/messages as Anthropic's clients speak it, and the requests for tokens alone."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from millrace_runtime.protocol.encoding import unpack_tokens
from testing.scripted_replica import SERVED_NAME, serve_script
from testing.text_model import END_TOKEN, TEMPLATE
from tests.runtime.api.scripted import CALL, SCHEMA, serve_answer
from tests.runtime.api.served import REPLY, Served

USER = {"role": "user", "content": "hi"}
ASK_ALONE: dict[str, Any] = {"messages": [USER]}
ASK = ASK_ALONE | {"max_tokens": 100}
FIND = {"name": "find", "description": "Finds.", "input_schema": SCHEMA}


def read_events(text: str) -> list[dict[str, Any]]:
    events = []
    for block in text.strip().split("\n\n"):
        kind, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert events[-1]["type"] == kind.removeprefix("event: ")
    return events


def join_blocks(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks of a stream, as Anthropic's client puts them together."""
    blocks: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(event["content_block"])
        elif event["type"] == "content_block_delta":
            [(key, piece)] = [item for item in event["delta"].items() if item[0] != "type"]
            blocks[event["index"]][key] = blocks[event["index"]].get(key, "") + piece
    return [
        block | {"input": json.loads(block.pop("partial_json"))} if "partial_json" in block else block
        for block in blocks
    ]


async def test_a_message_is_answered(served: Served) -> None:
    answer = await served.client.post("/v1/messages", json=ASK | {"system": "Be brief.", "metadata": {}})
    message = answer.json()
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "tiny")
    assert message["content"] == [{"type": "text", "text": REPLY}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    assert message["usage"]["output_tokens"] == 17
    counted = await served.client.post("/v1/messages/count_tokens", json={"system": "Be brief.", **ASK_ALONE})
    assert counted.json() == {"input_tokens": message["usage"]["input_tokens"]}


BAD = "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "ending"),
    [
        ({"stop_sequences": [" 😀"]}, ("stop_sequence", " 😀")),
        ({"max_tokens": 2}, ("max_tokens", None)),
    ],
)
async def test_why_a_message_ended(
    served: Served, fields: dict[str, Any], ending: tuple[str, str | None]
) -> None:
    message = (await served.client.post("/v1/messages", json=ASK | fields)).json()
    assert (message["stop_reason"], message["stop_sequence"]) == ending
    text = (await served.client.post("/v1/messages", json=ASK | fields | {"stream": True})).text
    last = read_events(text)[-2]
    assert last["type"] == "message_delta"
    assert (last["delta"]["stop_reason"], last["delta"]["stop_sequence"]) == ending


async def test_thinking_and_calls_are_blocks_whole_and_streamed(tmp_path: Path) -> None:
    async with serve_answer(tmp_path, "<think>\nHm.\n</think>\n\nI look.\n" + CALL) as served:
        ask = ASK | {"tools": [FIND], "thinking": {"type": "enabled", "budget_tokens": 1024}}
        whole = (await served.client.post("/v1/messages", json=ask)).json()
        kinds = [block["type"] for block in whole["content"]]
        assert kinds == ["thinking", "text", "tool_use"]
        assert whole["stop_reason"] == "tool_use"
        call = whole["content"][2]
        assert (call["name"], call["input"]) == ("find", {"who": "Zoë"})
        events = read_events((await served.client.post("/v1/messages", json=ask | {"stream": True})).text)
        assert [event["type"] for event in events if "delta" not in event["type"]] == [
            "message_start",
            *["content_block_start", "content_block_stop"] * 3,
            "message_stop",
        ]
        assert events[0]["message"]["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
        streamed = join_blocks(events)
        assert streamed[0]["thinking"] == whole["content"][0]["thinking"] == "Hm."
        assert streamed[0]["signature"]
        assert whole["content"][0]["signature"], "a client sends no thought back that has none"
        assert streamed[1] == whole["content"][1]
        assert streamed[2]["input"] == call["input"]
        for thinking in (None, {"type": "disabled"}):
            hidden = await served.client.post("/v1/messages", json=ask | {"thinking": thinking})
            assert [block["type"] for block in hidden.json()["content"]] == ["text", "tool_use"]


@pytest.mark.parametrize("thinking", [None, {"type": "adaptive"}])
async def test_an_answer_without_text_has_the_same_blocks_whole_and_streamed(
    tmp_path: Path, thinking: dict[str, Any] | None
) -> None:
    async with serve_answer(tmp_path, "<think>\n" + "Hm. " * 20) as served:
        ask = ASK | {"max_tokens": 30, "thinking": thinking}
        whole = (await served.client.post("/v1/messages", json=ask)).json()["content"]
        streamed = read_events((await served.client.post("/v1/messages", json=ask | {"stream": True})).text)
    assert [block["type"] for block in whole] == ["thinking", "text"][thinking is None :]
    assert [block | {"signature": ""} for block in join_blocks(streamed)] == [
        block | {"signature": ""} for block in whole
    ]
    kinds = [event["type"] for event in streamed if event["type"].startswith("content_block_st")]
    assert kinds == ["content_block_start", "content_block_stop"] * len(whole)


async def test_the_blocks_of_an_answer_keep_its_order(tmp_path: Path) -> None:
    async with serve_answer(tmp_path, f"First. {CALL}Then. {CALL}") as served:
        ask = ASK | {"tools": [FIND], "max_tokens": 160}
        whole = (await served.client.post("/v1/messages", json=ask)).json()
        shown = [block.get("text") or block["name"] for block in whole["content"]]
        assert shown == ["First. ", "find", "Then. ", "find"]


async def test_a_number_keeps_its_digits_whole_and_streamed(tmp_path: Path) -> None:
    digits = "25000000000000000001"
    async with serve_answer(tmp_path, CALL.replace('"Zoë"', digits)) as served:
        ask = ASK | {"tools": [FIND]}
        for streams in (False, True):
            answer = await served.client.post("/v1/messages", json=ask | {"stream": streams})
            assert digits in re.sub(r'"}}\n\n.*?"partial_json":"', "", answer.text, flags=re.DOTALL)


@pytest.mark.parametrize(
    ("change", "status", "kind", "said"),
    [
        ({"max_tokens": None}, 400, BAD, "max_tokens"),
        ({"model": "other"}, 404, "not_found_error", "use `tiny`"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, BAD, "`assistant` or `system`"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, BAD, "'image'"),
        ({"guided_json": {}}, 400, BAD, "`guided_json` is not known"),
        ({"messages": [USER | {"content": "x" * 90}]}, 400, BAD, "exceed context limit: 106 + 100 > 200: "),
        (
            {"messages": [USER | {"content": "x" * 300}]},
            400,
            BAD,
            "prompt is too long: the prompt has at least 311 ",
        ),
    ],
)
async def test_refusals_have_the_dialects_shape(
    served: Served, change: dict[str, Any], status: int, kind: str, said: str
) -> None:
    answer = await served.client.post("/v1/messages", json=ASK | change)
    error = answer.json()
    assert (answer.status_code, error["type"], error["error"]["type"]) == (status, "error", kind)
    assert said in error["error"]["message"]


ANSWERS = {
    "weather in Paris": "<think>\nI look.\n</think>\n\n"
    '<tool_call>\n{"name": "mcp__weather__read", "arguments": {"city": "Paris"}}\n</tool_call>',
    "18 degrees": "<think>\nWarm.\n</think>\n\nIt is 18 degrees in Paris.",
}
AGENT: dict[str, Any] = {
    "model": SERVED_NAME,
    "max_tokens": 1000,
    "system": [
        {
            "type": "text",
            "text": "x-anthropic-billing-header: cc_version=2.1.9; cc_entrypoint=cli; cch=0a1b2;",
        },
        {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "\nBe brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
    ],
    "tools": [
        {
            "name": "mcp__weather__read",
            "description": "Reads the weather.",
            "input_schema": {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            },
            "eager_input_streaming": True,
        },
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
    ],
    "metadata": {"user_id": "user_1_account__session_2"},
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "temperature": 1,
}
"""What Claude Code sends, shortened."""
HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,context-management-2025-06-27",
}


@pytest.mark.parametrize("streams", [False, True])
async def test_claude_code_calls_a_tool_and_reads_its_result(tmp_path: Path, *, streams: bool) -> None:
    async with serve_script(tmp_path, ANSWERS) as replica, httpx.AsyncClient(base_url=replica.url) as client:

        async def ask(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
            body = AGENT | {"messages": messages} | ({"stream": True} if streams else {})
            answer = await client.post("/v1/messages?beta=true", json=body, headers=HEADERS)
            assert answer.status_code == 200, answer.text
            return join_blocks(read_events(answer.text)) if streams else answer.json()["content"]

        question = {"type": "text", "text": "the weather in Paris?", "cache_control": {"type": "ephemeral"}}
        messages: list[dict[str, Any]] = [{"role": "user", "content": [question]}]
        thought, use = blocks = await ask(messages)
        assert (thought["type"], thought["thinking"]) == ("thinking", "I look.")
        assert (use["type"], use["name"], use["input"]) == (
            "tool_use",
            "mcp__weather__read",
            {"city": "Paris"},
        )
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": "18 degrees", "is_error": False}
        messages += [
            {"role": "assistant", "content": blocks},
            {"role": "user", "content": [result | {"cache_control": {"type": "ephemeral"}}]},
            {
                "role": "system",
                "content": [{"type": "text", "text": "<total_tokens>900 tokens left</total_tokens>"}],
            },
        ]
        _, text = await ask(messages)
        assert text == {"type": "text", "text": "It is 18 degrees in Paris."}


async def test_an_answer_begins_behind_the_text_that_was_given(served: Served) -> None:
    given = ASK | {"max_tokens": 50, "messages": [USER, {"role": "assistant", "content": "the "}]}
    answer = (await served.client.post("/v1/messages", json=given)).json()
    assert answer["content"] == [{"type": "text", "text": REPLY}]
    prompt = list(unpack_tokens(served.engine.seen[-1].prompt))
    assert served.replica.tokenizer.decode(prompt, hides_special=False) == "user: hi\nassistant: the "


async def test_texts_and_conversations_are_tokenised_and_back(served: Served) -> None:
    client = served.client
    plain = (await client.post("/tokenize", json={"prompt": "the stop"})).json()
    assert plain["count"] == len(plain["tokens"])
    assert plain["max_model_len"] == 200
    back = await client.post("/detokenize", json={"tokens": plain["tokens"]})
    assert back.json() == {"prompt": "the stop"}
    chat = (await client.post("/tokenize", json={"messages": ASK["messages"]})).json()
    shown = await client.post("/detokenize", json={"tokens": chat["tokens"]})
    assert shown.json() == {"prompt": "user: hi\nassistant:"}
    info = (await client.get("/tokenizer_info")).json()
    assert info == {"eos_token": END_TOKEN, "chat_template": TEMPLATE}
    for path, body, said in (
        ("/tokenize", {}, "either `prompt` or `messages`"),
        ("/tokenize", {"prompt": "a", "model": "other"}, "use `tiny`"),
        ("/detokenize", {"tokens": [999]}, "outside 0 to 269"),
    ):
        assert said in (await client.post(path, json=body)).json()["error"]["message"]
    assert (await client.get("/load")).json()["server_load"] == 0
    assert served.replica.admission.num_sequences == 0
