"""What clients send in chats, as everybody else serves it."""

import json
from typing import Any

import pytest

from millrace_runtime.api.request.messages import read_messages
from millrace_runtime.api.request.reading import read_chat
from millrace_runtime.chat.jobs import RenderChat
from tests.runtime.api.conftest import REPLY, Served

HI = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    "message",
    [
        {"type": "text"},
        {"id": 7, "opts": {"visible": False}},
        {"metadata": {"k": "v"}},
        {"role": "assistant", "reasoning_content": "Hm."},
        {"role": "assistant", "message_id": "m", "tool_calls": []},
        {"role": "tool", "tool_call_id": "y"},
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}, "you"]},
    ],
)
async def test_a_message_may_say_more_than_we_know(served: Served, message: dict[str, Any]) -> None:
    answer = await served.client.post("/v1/chat/completions", json={"messages": [HI | message, HI]})
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == REPLY


def test_the_template_gets_the_message_as_it_was_sent() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": [1]}'}}
    bad = {"id": "b", "type": "function", "function": {"name": "f", "arguments": "{"}}
    messages = [
        HI | {"weight": 1},
        {"role": "assistant", "content": None, "tool_calls": [call, bad]},
        {"role": "user", "content": None},
        {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {}}]},
    ]
    assert read_messages(messages) == [
        HI | {"weight": 1},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{**call, "function": {"name": "f", "arguments": {"x": [1]}}}, bad],
        },
        {"role": "user", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {}}]},
    ]


def test_the_template_gets_the_variables_of_the_request() -> None:
    body = (
        b'{"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"enable_thinking": false},'
        b'"documents": [{"title": "t"}], "add_generation_prompt": false}'
    )
    assert read_chat(body).prompts == RenderChat(
        messages=[{"role": "user", "content": "x"}],
        documents=[{"title": "t"}],
        add_generation_prompt=False,
        variables={"enable_thinking": False},
    )


async def test_each_chunk_has_the_usage_so_far_where_it_is_asked_for(served: Served) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    for path, body in (("chat/completions", {"messages": [HI]}), ("completions", {"prompt": "a"})):
        text = (
            await served.client.post(
                f"/v1/{path}", json=body | {"stream": True, "stream_options": options, "max_tokens": 4}
            )
        ).text
        lines = [line for line in text.splitlines() if line.startswith("data: {")]
        usages = [served_usage(line) for line in lines]
        assert usages == sorted(usages)
        assert usages[-1] == 4
        assert usages[0] < 4


def served_usage(line: str) -> int:
    return int(json.loads(line.removeprefix("data: "))["usage"]["completion_tokens"])


async def test_top_p_of_zero_is_the_most_likely_token(served: Served) -> None:
    answer = await served.client.post("/v1/completions", json={"prompt": "a", "top_p": 0, "max_tokens": 1})
    assert answer.status_code == 200
    assert served.engine.seen[-1].sequences[0].sampling.temperature == 0


async def test_a_stop_string_may_be_kept_and_special_tokens_shown(served: Served) -> None:
    ask = {"prompt": "a", "stop": " 😀", "include_stop_str_in_output": True}
    answer = await served.client.post("/v1/completions", json=ask)
    assert answer.json()["choices"][0]["text"] == "the stöp 😀"
    ask = {"prompt": "a", "skip_special_tokens": False, "ignore_eos": True, "max_tokens": 100}
    shown = await served.client.post("/v1/completions", json=ask)
    assert REPLY + "<|end|>" in shown.json()["choices"][0]["text"]
