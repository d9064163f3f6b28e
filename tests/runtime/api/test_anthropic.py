"""POST /v1/messages as Anthropic's clients speak it, and the requests for tokens alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from millrace_runtime.api.request.anthropic import read_anthropic
from tests.runtime.api.scripted import CALL, SCHEMA, serve_answer
from tests.runtime.api.served import REPLY, Served

ASK: dict[str, Any] = {"max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
FIND = {"name": "find", "description": "Finds.", "input_schema": SCHEMA}


def read_events(text: str) -> list[dict[str, Any]]:
    events = []
    for block in text.strip().split("\n\n"):
        kind, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert events[-1]["type"] == kind.removeprefix("event: ")
    return events


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
ASK_ALONE = {"messages": ASK["messages"]}


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
        ask = ASK | {"tools": [FIND]}
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
        pieces: dict[int, str] = {}
        for event in events:
            if event["type"] == "content_block_delta":
                [text] = [value for key, value in event["delta"].items() if key != "type"]
                pieces[event["index"]] = pieces.get(event["index"], "") + text
        assert pieces[0] == whole["content"][0]["thinking"] == "Hm."
        assert pieces[1] == whole["content"][1]["text"]
        assert json.loads(pieces[2]) == call["input"]
        hidden = await served.client.post("/v1/messages", json=ask | {"thinking": {"type": "disabled"}})
        assert "thinking" not in [block["type"] for block in hidden.json()["content"]]


async def test_the_blocks_of_an_answer_keep_its_order(tmp_path: Path) -> None:
    async with serve_answer(tmp_path, f"First. {CALL}Then. {CALL}") as served:
        ask = ASK | {"tools": [FIND], "max_tokens": 160}
        whole = (await served.client.post("/v1/messages", json=ask)).json()
        shown = [block.get("text") or block["name"] for block in whole["content"]]
        assert shown == ["First. ", "find", "Then. ", "find"]


def test_blocks_become_the_messages_that_templates_know() -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "tool_use", "id": "1", "name": "find", "input": {"who": "x"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "none"}]},
                {"type": "text", "text": "So?"},
            ],
        },
    ]
    body = {"max_tokens": 1, "messages": messages, "system": [{"type": "text", "text": "S"}], "tools": [FIND]}
    job = read_anthropic(json.dumps(body).encode()).prompts
    assert job.messages == [  # type: ignore[union-attr]
        {"role": "system", "content": "S"},
        {"role": "user", "content": "a\nb"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "find", "arguments": {"who": "x"}}}
            ],
            "reasoning_content": "Hm.",
        },
        {"role": "tool", "tool_call_id": "1", "content": "none"},
        {"role": "user", "content": "So?"},
    ]
    assert job.tools == [  # type: ignore[union-attr]
        {"type": "function", "function": {"name": "find", "description": "Finds.", "parameters": SCHEMA}}
    ]


@pytest.mark.parametrize(
    ("change", "status", "kind", "said"),
    [
        ({"max_tokens": None}, 400, BAD, "max_tokens"),
        ({"model": "other"}, 404, "not_found_error", "use `tiny`"),
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            400,
            "invalid_request_error",
            "`user` or `assistant`",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            400,
            "invalid_request_error",
            "'image'",
        ),
        ({"container": "x"}, 400, BAD, "`container` is not known"),
    ],
)
async def test_refusals_have_the_dialects_shape(
    served: Served, change: dict[str, Any], status: int, kind: str, said: str
) -> None:
    answer = await served.client.post("/v1/messages", json=ASK | change)
    error = answer.json()
    assert (answer.status_code, error["type"], error["error"]["type"]) == (status, "error", kind)
    assert said in error["error"]["message"]


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
    for path, body, said in (
        ("/tokenize", {}, "either `prompt` or `messages`"),
        ("/tokenize", {"prompt": "a", "model": "other"}, "use `tiny`"),
        ("/detokenize", {"tokens": [999]}, "outside 0 to 261"),
    ):
        assert said in (await client.post(path, json=body)).json()["error"]["message"]
    assert (await client.get("/load")).json()["server_load"] == 0
    assert served.replica.admission.num_sequences == 0
