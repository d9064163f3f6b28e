"""What clients send in chats, as everybody else serves it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.messages import read_messages
from millrace_runtime.api.request.openai import read_chat, read_conversation
from millrace_runtime.api.request.openai_bodies import ChatBody
from millrace_runtime.api.settings import ApiSettings
from millrace_runtime.chat.errors import TokenizerError
from millrace_runtime.chat.jobs import RenderChat
from millrace_runtime.chat.model_files import AuthorDefaults, read_author_defaults
from millrace_runtime.protocol.encoding import count_tokens
from tests.runtime.api.served import REPLY, Served, serve

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


def test_a_call_without_arguments_or_a_type_is_read_as_clients_mean_it() -> None:
    for function in ({"name": "f"}, *({"name": "f", "arguments": empty} for empty in (None, "", "null"))):
        [message] = read_messages([{"role": "assistant", "tool_calls": [{"id": "a", "function": function}]}])
        assert message["tool_calls"] == [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": {}}}
        ]


def test_a_former_call_and_its_result_are_not_missing_in_the_prompt() -> None:
    former = {"name": "f", "arguments": '{"x": 1}'}
    messages = [
        HI,
        {"role": "assistant", "content": None, "function_call": former},
        {"role": "function", "name": "f", "content": "3"},
        {"role": "assistant", "content": "three", "function_call": None},
    ]
    call = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    body = msgspec.convert({"messages": messages}, ChatBody)
    assert read_conversation(body, None).messages[1:3] == [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call00001", "name": "f", "content": "3"},
    ]
    broken = [HI, {"role": "assistant", "function_call": {"arguments": "{}"}}]
    with pytest.raises(BadRequestError, match=r"messages\[1\]\.function_call"):
        read_conversation(msgspec.convert({"messages": broken}, ChatBody), None)


def test_the_template_gets_the_variables_of_the_request() -> None:
    body = (
        b'{"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"enable_thinking": false}'
        b', "documents": [{"title": "t"}], "add_generation_prompt": false}'
    )
    assert read_chat(body).prompts == RenderChat(
        messages=[{"role": "user", "content": "x"}],
        documents=[{"title": "t"}],
        add_generation_prompt=False,
        variables={"enable_thinking": False},
    )


ON: dict[str, Any] = {"enable_thinking": True, "thinking": True}
OFF: dict[str, Any] = {"enable_thinking": False, "thinking": False}


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({"reasoning_effort": None}, {}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none"} | OFF),
        ({"reasoning_effort": "max"}, {"reasoning_effort": "max"} | ON),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True, "x": 1}},
            {"reasoning_effort": "none", "enable_thinking": True, "x": 1},
        ),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"thinking": True}},
            {"reasoning_effort": "none", "thinking": True},
        ),
        ({"enable_thinking": False}, OFF),
        ({"enable_thinking": False, "chat_template_kwargs": {"enable_thinking": 1}}, {"enable_thinking": 1}),
        ({"thinking": {"type": "disabled"}}, OFF),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, ON),
        ({"thinking": {"type": "disabled"}, "enable_thinking": True}, ON),
        ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"} | ON),
        ({"reasoning": {"enabled": False, "summary": "auto"}}, OFF),
        ({"reasoning": {"enabled": False, "max_tokens": 2000}}, OFF),
        ({"reasoning": {"max_tokens": 2000}}, ON),
        ({"reasoning": {"max_tokens": 0}}, OFF),
        (
            {"reasoning": {"effort": "low"}, "reasoning_effort": "none", "thinking": {"type": "adaptive"}},
            {"reasoning_effort": "none"} | ON,
        ),
    ],
)
def test_the_template_gets_the_effort_and_the_clients_own_variables_win(
    fields: dict[str, Any], variables: dict[str, Any]
) -> None:
    prompt = read_chat(json.dumps({"messages": [HI]} | fields).encode()).prompts
    assert isinstance(prompt, RenderChat)
    assert prompt.variables == variables


def test_an_image_in_a_tools_result_is_left_out() -> None:
    """It is in each later request of an agent: a refusal would end the conversation."""
    parts = [{"type": "text", "text": "a page"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    called = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}

    def read(role: str) -> Any:
        messages = [HI, called, {"role": role, "tool_call_id": "1", "content": parts}]
        prompt = read_chat(json.dumps({"messages": messages}).encode()).prompts
        assert isinstance(prompt, RenderChat)
        return [part["text"] for part in prompt.messages[-1]["content"]]

    for role in ("tool", "function"):
        assert read(role) == ["a page", "[image left out: this model reads text alone]"]
    with pytest.raises(BadRequestError, match="image_url"):
        read("user")


def test_a_client_may_hide_the_reasoning_that_it_asks_for() -> None:
    for fields, is_shown in (({"effort": "low", "exclude": True}, False), ({"exclude": False}, True)):
        request = read_chat(json.dumps({"messages": [HI], "reasoning": fields}).encode()).request
        assert request.answer.shows_reasoning is is_shown


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
    ask |= {"stop": "ends<|end|>", "include_stop_str_in_output": True}
    for hides, end in ((False, "<|end|>"), (True, "")):  # as vLLM does with a stop token that is kept
        kept = await served.client.post("/v1/completions", json=ask | {"skip_special_tokens": hides})
        assert kept.json()["choices"][0]["text"] == REPLY + end


async def test_the_authors_sampling_counts_where_the_request_says_nothing(model_path: Path) -> None:
    author = AuthorDefaults(temperature=0.01, top_k=1, top_p=0.5, max_new_tokens=3)
    async with serve(model_path, ApiSettings(served_name="tiny", author_defaults=author)) as served:
        chats = served.openai.chat.completions
        answer = await chats.create(model="tiny", messages=[HI])
        assert answer.usage.completion_tokens == 3
        await chats.create(model="tiny", messages=[HI], temperature=1, top_p=1, max_tokens=5)
        for kept, length in ((-1, 197), (198, 198)):  # -1 leaves room for as many as the author says
            long = [HI | {"content": "a" * 500}]
            await chats.create(model="tiny", messages=long, extra_body={"truncate_prompt_tokens": kept})
            assert count_tokens(served.engine.seen.pop().prompt) == length
        drawn = [prompt.sequences[0].sampling for prompt in served.engine.seen]
        assert [(d.temperature, d.top_k, d.top_p) for d in drawn] == [(0.01, 1, 0.5), (1.0, 1, 1.0)]
        listed = (await served.client.get("/v1/models")).json()["data"][0]["default_sampling"]
        assert listed == {"temperature": 0.01, "top_k": 1, "top_p": 0.5, "max_new_tokens": 3}


def test_the_authors_file_is_read_within_the_bounds_of_a_request(tmp_path: Path) -> None:
    assert read_author_defaults(tmp_path) == AuthorDefaults()
    file = tmp_path / "generation_config.json"
    file.write_text('{"do_sample": true, "temperature": 0.6, "top_k": 20, "eos_token_id": [1]}')
    assert str(read_author_defaults(tmp_path)) == "temperature 0.6, top_k 20"
    file.write_text('{"temperature": -1}')
    with pytest.raises(TokenizerError, match=r"generation_config\.json .* --generation-config none"):
        read_author_defaults(tmp_path)


async def test_a_stream_that_waits_is_not_silent(model_path: Path) -> None:
    """Load balancers cut a connection of which they see nothing, not even its status."""
    settings = ApiSettings(served_name="tiny", sse_keep_alive_seconds=0.05)
    async with serve(model_path, settings) as served:
        served.engine.is_frozen = True
        ask = {"prompt": "a", "stream": True}
        async with served.client.stream("POST", "/v1/completions", json=ask) as answer:
            pieces = answer.aiter_lines()
            assert answer.status_code == 200
            assert [await anext(pieces) for _ in range(4)] == [": waiting", ""] * 2
            served.engine.is_frozen = False
            lines = [line async for line in pieces if line.startswith("data")]
            assert lines[-1] == "data: [DONE]"
        await served.until(lambda: served.replica.admission.num_event_bytes == 0)


@pytest.mark.parametrize(
    ("path", "ask", "opening"),
    [
        ("/v1/chat/completions", {"messages": [HI]}, '"role":"assistant"'),
        ("/v1/responses", {"input": "hi"}, "response.created"),
        ("/v1/messages", {"messages": [HI], "max_tokens": 5}, None),
    ],
)
async def test_a_stream_that_waits_is_open_unless_its_opening_has_the_usage(
    model_path: Path, path: str, ask: dict[str, object], opening: str | None
) -> None:
    settings = ApiSettings(served_name="tiny", sse_keep_alive_seconds=0.05)
    async with serve(model_path, settings) as served:
        served.engine.is_frozen = True
        async with served.client.stream("POST", path, json=ask | {"stream": True}) as answer:
            pieces = answer.aiter_text()
            waiting = ""
            while waiting.count(": waiting") < 2:  # a piece may have a part of the opening alone
                waiting += await anext(pieces)
            assert "data: " not in waiting if opening is None else waiting.count(opening) >= 1
            served.engine.is_frozen = False
            assert "data: " in "".join([piece async for piece in pieces])


@pytest.mark.parametrize("padding", ["", "x" * 200_000])
async def test_a_stream_is_not_silent_while_its_prompt_is_rendered(model_path: Path, padding: str) -> None:
    """A large body is read in the text worker too. The status is sent, so the failure is an event."""
    settings = ApiSettings(served_name="tiny", sse_keep_alive_seconds=0.05)
    async with serve(model_path, settings, job_seconds=0.4) as served:
        ask = {"messages": [HI | {"content": "loop"}], "user": padding}
        silent = await served.client.post("/v1/chat/completions", json=ask)
        assert silent.status_code == (400 if padding else 503)
        told = await served.client.post("/v1/chat/completions", json=ask | {"stream": True})
        assert told.status_code == 200
        *comments, last, end = told.text.split("\n\n")
        assert set(comments) == {": waiting"}
        assert len(comments) > 3
        assert json.loads(last.removeprefix("data: "))["error"]["message"] in silent.text
        assert end == ""
        again = await served.client.post("/v1/chat/completions", json={"messages": [HI], "stream": True})
        assert again.text.endswith("data: [DONE]\n\n")


async def test_an_answer_that_is_held_until_it_is_whole_counts_as_memory(served: Served) -> None:
    served.engine.pauses_after = 5
    ask = {"prompt": "a", "logprobs": 1, "max_tokens": 50}
    asked = asyncio.create_task(served.client.post("/v1/completions", json=ask))
    await served.until(lambda: served.replica.admission.num_event_bytes > 100)
    served.engine.pauses_after = None
    assert (await asked).status_code == 200
    await served.until(lambda: served.replica.admission.num_event_bytes == 0)


async def test_what_a_request_asks_of_the_draw_reaches_the_engine(served: Served) -> None:
    ask = {
        "prompt": "a",
        "logit_bias": {"5": -100, "7": 2.5},
        "allowed_token_ids": [0, 9, 261],
        "repetition_penalty": 99.5,
        "min_tokens": 3,
        "max_tokens": 8,
        "stop": "p",
    }
    answer = await served.client.post("/v1/completions", json=ask)
    assert answer.json()["choices"][0]["text"] == "the stö"
    sampling = served.engine.seen[-1].sequences[0].sampling
    assert (sampling.bias, sampling.repetition_penalty) == ({5: -100, 7: 2.5}, 99.5)
    assert (sampling.min_tokens, sampling.held_back) == (3, (261,))
    bits = int.from_bytes(sampling.allowed, "little")
    assert [token for token in range(288) if bits >> token & 1] == [0, 9, 261]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"270": 1}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias[...]"),
        ({"allowed_token_ids": [270]}, "allowed_token_ids"),
        ({"allowed_token_ids": [999_999]}, "allowed_token_ids"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"stop_token_ids": [2_000_000_000], "min_tokens": 1}, "stop_token_ids"),
    ],
)
async def test_a_draw_that_can_not_be_is_refused(served: Served, fields: dict[str, Any], param: str) -> None:
    answer = await served.client.post("/v1/completions", json={"prompt": "a"} | fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_top_p_of_zero_counts_before_the_authors_temperature(model_path: Path) -> None:
    author = AuthorDefaults(temperature=0.6)
    async with serve(model_path, ApiSettings(served_name="tiny", author_defaults=author)) as served:
        await served.client.post("/v1/completions", json={"prompt": "a", "top_p": 0, "max_tokens": 1})
        assert served.engine.seen[-1].sequences[0].sampling.temperature == 0


@pytest.mark.parametrize("size", [0, 200_000], ids=["small", "in the text worker"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": [HI | {"weight": 2**70}]}),
        ("chat/completions", {"messages": [HI], "chat_template_kwargs": {"x": 2**70}}),
        ("completions", {"prompt": "a", "logit_bias": {str(2**70): 1}}),
        ("responses", {"input": [{"type": "function_call_output", "call_id": "a", "output": 5}]}),
        ("messages", {"max_tokens": 1, "messages": [{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": 5}]}]}),
        ("messages", {"max_tokens": 1, "top_k": 2**70, "messages": [HI]}),
    ],
)  # fmt: skip
async def test_what_no_message_can_hold_is_the_clients_fault(
    served: Served, path: str, body: dict[str, Any], size: int
) -> None:
    """It neither is a 500 nor ends the text worker, for which others wait."""
    padded = json.dumps(body) + " " * size
    answer = await served.client.post(f"/v1/{path}", content=padded)
    assert answer.status_code == 400 or size, answer.text  # where it is rendered, a template may write it
    assert answer.status_code in (200, 400)
    assert "ended" not in answer.text
    assert (await served.client.post("/v1/completions", json={"prompt": "a" * 10})).status_code == 200
    assert served.replica.engine.num_open == 0


async def test_a_variable_of_a_template_may_have_any_name(served: Served) -> None:
    ask = {"messages": [HI], "chat_template_kwargs": {"self": 1}}
    assert (await served.client.post("/v1/chat/completions", json=ask)).status_code == 200
