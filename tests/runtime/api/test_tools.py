"""Tool calls and reasoning in chats, as OpenAI's client reads them."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from millrace_runtime.api.answer.anthropic import MessagesWriter
from millrace_runtime.api.answer.choice import Delta
from millrace_runtime.api.answer.envelope import Envelope
from millrace_runtime.api.answer.message import Message
from millrace_runtime.api.answer.responses import ResponsesWriter
from millrace_runtime.api.answer.writer import AnswerSpec
from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.answer_form import Reasoning, choose_form
from millrace_runtime.api.request.generation_request import AnswerWish
from millrace_runtime.api.request.openai import read_chat
from millrace_runtime.api.request.readers import READERS
from millrace_runtime.api.usage import Usage
from millrace_runtime.chat.jobs import RenderChat
from millrace_runtime.chat.parsers.registry import open_parser
from millrace_runtime.chat.tokenizer import Tokenizer
from testing.scripted_replica import MARKERS
from testing.text_model import build_byte_level, write_model
from tests.runtime.api.scripted import CALL, SCHEMA, serve_answer
from tests.runtime.api.served import Served

HI = [{"role": "user", "content": "hi"}]
BARE = {"name": "find"}
NAMED = {"type": "function", "function": {"name": "find"}}
FIND = {"type": "function", "function": {"name": "find", "parameters": SCHEMA}}


def allow(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


async def test_a_call_comes_whole_and_streamed(tmp_path: Path) -> None:
    async with serve_answer(tmp_path, "<think>\nHm.\n</think>\n\nI look.\n" + CALL + CALL) as served:
        chats = served.openai.chat.completions
        answer = await chats.create(model="tiny", messages=HI, tools=[FIND])
        [choice] = answer.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content.strip() == "I look."
        assert choice.message.reasoning_content == choice.message.reasoning == "Hm."
        calls = choice.message.tool_calls
        assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [
            ("find", {"who": "Zoë"})
        ] * 2
        assert len({call.id for call in calls}) == 2
        assert 0 < answer.usage.completion_tokens_details.reasoning_tokens < answer.usage.completion_tokens
        async with chats.stream(model="tiny", messages=HI, tools=[FIND]) as stream:
            whole = (await stream.get_final_completion()).choices[0]
        assert whole.finish_reason == "tool_calls"
        assert [call.function.arguments for call in whole.message.tool_calls] == [
            call.function.arguments for call in calls
        ]
        assert whole.message.content.strip() == "I look."
        one = await chats.create(model="tiny", messages=HI, tools=[FIND], parallel_tool_calls=False)
        assert len(one.choices[0].message.tool_calls) == 1
        again = [*HI, one.choices[0].message, {"role": "tool", "tool_call_id": "1", "content": "42"}]
        await chats.create(model="tiny", messages=again, tools=[FIND], max_tokens=1)


async def test_reasoning_is_split_off_unless_the_client_wants_it_otherwise(tmp_path: Path) -> None:
    async with serve_answer(tmp_path, "<think>\nHm.\n</think>\n\nHello") as served:
        seen = {}
        for name, fields in {
            "split": {},
            "hidden": {"include_reasoning": False},
            "whole": {"separate_reasoning": False},
        }.items():
            ask = {"messages": HI} | fields
            message = (await served.client.post("/v1/chat/completions", json=ask)).json()["choices"][0][
                "message"
            ]
            seen[name] = (message.get("reasoning_content"), message["content"])
        assert seen == {
            "split": ("Hm.", "Hello"),
            "hidden": (None, "Hello"),
            "whole": (None, "<think>\nHm.\n</think>\n\nHello"),
        }


async def test_a_prompt_may_open_the_reasoning(tmp_path: Path) -> None:
    async with serve_answer(tmp_path, "Hm.\n</think>\n\nHello") as served:
        ask = {"messages": HI, "chat_template_kwargs": {"thinks": True}}
        message = (await served.client.post("/v1/chat/completions", json=ask)).json()["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("Hm.", "Hello")


async def test_without_tools_a_marker_is_text(tmp_path: Path) -> None:
    async with serve_answer(tmp_path, CALL) as served:
        for fields in ({}, {"tools": [FIND], "tool_choice": "none"}):
            ask = {"messages": HI} | fields
            message = (await served.client.post("/v1/chat/completions", json=ask)).json()["choices"][0][
                "message"
            ]
            assert message["content"] == CALL
            assert "tool_calls" not in message


BAD = [
    ({"tools": [{"type": "function"}]}, "tools[0]", "missing required field `function`"),
    ({"tools": [{"function": {"name": "f"}}]}, "tools[0]", "missing required field `type`"),
    ({"tools": [{"type": "Function", "function": {"name": "f"}}]}, "tools[0].type", "Function"),
    ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice", "needs `tools`"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "matching"),
    ({"tools": [FIND, {"type": "custom", "custom": {"name": "f"}}]}, "tools[1].type", "make it a `function`"),
    ({"tool_choice": "required"}, "tool_choice", "needs `tools`"),
    ({"tool_choice": allow("auto", "find")}, "tool_choice", "needs `tools`"),
    ({"tools": [FIND], "tool_choice": allow("auto", "find", "no")}, "tool_choice", "names `no`"),
    ({"tools": [FIND], "tool_choice": allow("auto")}, "tool_choice.allowed_tools.tools", "length"),
    ({"tools": [FIND], "tool_choice": {"type": "custom"}}, "tool_choice.type", "custom"),
    (
        {"tools": [FIND], "tool_choice": {"type": "function", "function": {"name": "no"}}},
        "tool_choice",
        "names `no`",
    ),
]


@pytest.mark.parametrize(("fields", "param", "said"), BAD)
async def test_tools_that_are_none_are_refused(
    served: Served, fields: dict[str, Any], param: str, said: str
) -> None:
    error = (await served.client.post("/v1/chat/completions", json={"messages": HI} | fields)).json()["error"]
    assert error["param"] == param
    assert said in error["message"]


async def test_a_template_without_tools_takes_none(served: Served) -> None:
    with pytest.raises(openai.BadRequestError, match="knows no tools"):
        await served.openai.chat.completions.create(model="tiny", messages=HI, tools=[FIND])


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ messages }}", "knows no tools: leave `tools` out$"),
        ("{{ messages[0]['tools'] }}", "knows no tools"),
        (
            "{% if tools %}{{ tools }}{% endif %}",
            "writes tools, .* --tool-parser, one of deepseek_v3, .*granite",
        ),
        ("{{ tools }}<|tool_call|>start_of_role", "started with --tool-parser none"),
    ],
)
def test_without_a_format_the_template_says_what_to_do(tmp_path: Path, template: str, said: str) -> None:
    tokenizer = Tokenizer.load(write_model(tmp_path, build_byte_level(), template))
    wish = AnswerWish(tools=[FIND])
    with pytest.raises(BadRequestError, match=said):
        choose_form(wish, tokenizer, [], tool_format=None, reasoning_format=None)
    assert (
        choose_form(wish, tokenizer, [], tool_format="granite", reasoning_format=None).tool_format
        == "granite"
    )


@pytest.mark.parametrize(
    ("prompt", "reasoning"),
    [
        ("a", Reasoning.POSSIBLE),
        ("a<seed:think>\n", Reasoning.OPEN),
        ("a<seed:think><seed:cot_budget_reflect>", Reasoning.OPEN),
        ("a</seed:think>", Reasoning.OVER),
    ],
)
def test_a_prompt_of_seed_oss_may_open_the_reasoning(
    tmp_path: Path, prompt: str, reasoning: Reasoning
) -> None:
    native = build_byte_level()
    native.add_special_tokens(["<seed:think>", "</seed:think>", "<seed:cot_budget_reflect>"])
    tokenizer = Tokenizer.load(write_model(tmp_path, native))
    [tokens] = tokenizer.encode_batch([prompt], add_special_tokens=False)
    wish = AnswerWish(is_chat=True, splits_reasoning=True)
    form = choose_form(wish, tokenizer, tokens, tool_format="seed_oss", reasoning_format="seed_oss")
    assert form.reasoning is reasoning


async def test_a_marker_may_be_a_special_token(tmp_path: Path) -> None:
    """It is no text, but for the parser that looks for it."""
    answer = '<think>Hm.</think>[TOOL_CALLS][{"name": "find", "arguments": {"who": "x"}}]'
    specials = ["[TOOL_CALLS]", "<think>", "</think>"]
    async with serve_answer(tmp_path, answer, tool_format="mistral", specials=specials) as served:
        asked = await served.openai.chat.completions.create(model="tiny", messages=HI, tools=[FIND])
        message = asked.choices[0].message
        assert (message.reasoning_content, message.content) == ("Hm.", None)
        [call] = message.tool_calls
        assert (call.function.name, len(call.id)) == ("find", 9)
        plain = await served.openai.chat.completions.create(model="tiny", messages=HI)
        assert plain.choices[0].message.content.startswith("[{")


@pytest.mark.parametrize("path", ["messages", "responses"])
async def test_a_call_stays_one_where_text_comes_with_its_end(tmp_path: Path, path: str) -> None:
    envelope, opened = Envelope("id", 1, "m", includes_usage=False), lambda: Message(open_parser(
        "mistral", None))  # fmt: skip
    writer_type = MessagesWriter if path == "messages" else ResponsesWriter
    tokenizer = Tokenizer.load(write_model(tmp_path, build_byte_level()))
    writer = writer_type(AnswerSpec(envelope, tokenizer, open_message=opened))
    events = b"".join(
        writer.encode_delta(Delta(0, text, [], "stop" if text == "}." else None)) or b""
        for text in ("[TOOL_CALLS]", "f", '{"a"', ": 1", "}.")
    ) + writer.encode_end(Usage(1, 5))
    started = b"content_block_start" if path == "messages" else b"response.output_item.added"
    assert events.count(b"event: " + started) == 2, "one call, and the text behind it"


async def test_a_grammar_binds_the_answer_behind_the_reasoning(tmp_path: Path) -> None:
    async with serve_answer(tmp_path, 'Hm.\n</think>\n\n{"a":1}') as served:
        ask = {"messages": HI, "chat_template_kwargs": {"thinks": True}, "guided_choice": ['{"a":1}']}
        message = (await served.client.post("/v1/chat/completions", json=ask)).json()["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("Hm.", '{"a":1}')
        assert (bound := served.engine.seen[-1].grammar) is not None
        assert "</think>" in bound.text
        await served.client.post("/v1/chat/completions", json=ask | {"separate_reasoning": False})
        assert (bound := served.engine.seen[-1].grammar) is not None
        assert "</think>" not in bound.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": HI, "tools": [FIND]}),
        ("responses", {"input": "hi", "tools": [{"type": "function", "name": "find", "parameters": SCHEMA}]}),
        ("messages", {"max_tokens": 9, "messages": HI, "tools": [{"name": "find", "input_schema": SCHEMA}]}),
    ],
)
async def test_tools_bind_calls_and_strict_ones_by_their_schema(
    tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    async with serve_answer(tmp_path, "So. " + CALL, markers=MARKERS) as served:
        for is_strict in (True, False):
            [tool] = body["tools"]
            flag = {"strict": is_strict}
            strict = tool | ({"function": tool["function"] | flag} if "function" in tool else flag)
            answer = await served.client.post(f"/v1/{path}", json=body | {"model": "tiny", "tools": [strict]})
            assert answer.status_code == 200, answer.text
            bound = served.engine.seen[-1].grammar
            assert bound is not None
            assert ("who" in bound.text, bound.is_optimistic) == (is_strict, not is_strict)


@pytest.mark.parametrize(("mode", "forced"), [("auto", None), ("required", "")])
def test_the_allowed_tools_are_all_that_the_model_has(mode: str, forced: str | None) -> None:
    function = {**FIND["function"], "name": "other", "strict": True}
    body = {
        "messages": HI,
        "tools": [{**FIND, "function": function}, FIND],
        "tool_choice": allow(mode, "find"),
    }
    request, prompt = read_chat(json.dumps(body).encode())
    assert isinstance(prompt, RenderChat)
    assert prompt.tools == request.answer.tools == [FIND]
    assert (request.answer.forced, request.answer.strict) == (forced, ())


WEB = {"type": "web_search", "user_location": None}


@pytest.mark.parametrize(
    ("sent", "left"), [([WEB, FIND, {"type": "mcp", "server_url": "x"}], [FIND]), ([WEB], None)]
)
def test_tools_that_other_servers_run_are_left_out(sent: list[Any], left: list[Any] | None) -> None:
    request, prompt = read_chat(json.dumps({"messages": HI, "tools": sent, "tool_choice": "auto"}).encode())
    assert isinstance(prompt, RenderChat)
    assert prompt.tools == request.answer.tools == left


def write_tool(dialect: str, name: str) -> dict[str, Any]:
    written = {"messages": {"name": name}, "responses": {"type": "function", "name": name}}
    return written.get(dialect, {"type": "function", "function": {"name": name}})


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
def test_the_dialects_take_as_long_names_and_as_many_tools(dialect: str) -> None:
    """Agents write the name of a tool's server before its own."""

    def read(*names: str) -> Any:
        ask = {"input": "hi"} if dialect == "responses" else {"messages": HI}
        ask |= {"tools": [write_tool(dialect, name) for name in names]}
        ask |= {"max_tokens": 9} if dialect == "messages" else {}
        return READERS[dialect](json.dumps(ask).encode()).request.answer.tools

    names = [f"mcp__{number:0123}" for number in range(1025)]
    assert [tool["function"]["name"] for tool in read(*names[:1024])] == names[:1024]
    for wrong in (names, ["x" * 129], ["a b"]):
        with pytest.raises(BadRequestError, match="tools"):
            read(*wrong)


FORCED: list[tuple[str, dict[str, Any]]] = [
    ("chat/completions", {"messages": HI, "tools": [FIND], "tool_choice": "required"}),
    ("chat/completions", {"messages": HI, "tools": [FIND], "tool_choice": NAMED}),
    (
        "responses",
        {"input": "hi", "tools": [{"type": "function", "name": "find"}], "tool_choice": "required"},
    ),
    (
        "messages",
        {"max_tokens": 9, "messages": HI, "tools": [{"name": "find"}], "tool_choice": {"type": "any"}},
    ),
]


@pytest.mark.parametrize(("path", "body"), FORCED)
async def test_a_call_may_be_forced(tmp_path: Path, path: str, body: dict[str, Any]) -> None:
    async with serve_answer(tmp_path, CALL) as served:
        answer = await served.client.post(f"/v1/{path}", json=body | {"model": "tiny"})
        assert answer.status_code == 200, answer.text
        grammar = served.engine.seen[-1].grammar
        assert grammar is not None
        assert "<tool_call>" in grammar.text
        assert "find" in grammar.text


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize("is_strict", [True, False])
async def test_a_schema_that_can_not_be_kept_is_refused_if_it_is_strict(
    tmp_path: Path, choice: Any, *, is_strict: bool
) -> None:
    schema = {**SCHEMA, "if": {"required": ["who"]}, "then": {"required": ["why"]}}
    tool = {"type": "function", "function": {"name": "find", "parameters": schema, "strict": is_strict}}
    async with serve_answer(tmp_path, CALL) as served:
        ask = {"messages": HI, "tools": [tool], "tool_choice": choice}
        answer = await served.client.post("/v1/chat/completions", json=ask)
        assert answer.status_code == (400 if is_strict else 200), answer.text


@pytest.mark.parametrize(("num_tools", "num_letters"), [(1023, 1), (100, 2000)])
@pytest.mark.parametrize("dialect", ["chat", "messages"])
async def test_of_many_or_large_tools_only_strict_ones_are_called_by_their_schema(
    tmp_path: Path, dialect: str, num_tools: int, num_letters: int
) -> None:
    large = {**SCHEMA, "properties": {"who": {"const": "x" * num_letters}, "why": {"type": "integer"}}}
    functions: list[dict[str, Any]] = [
        {"name": "find", "parameters": SCHEMA, "strict": True},
        *({"name": f"mcp__server__tool_{number}", "parameters": large} for number in range(num_tools)),
    ]
    asks = {
        "chat": {
            "tools": [{"type": "function", "function": function} for function in functions],
            "tool_choice": "required",
        },
        "messages": {
            "tools": [
                {name.replace("parameters", "input_schema"): value for name, value in function.items()}
                for function in functions
            ],
            "tool_choice": {"type": "any"},
            "max_tokens": 9,
        },
    }
    path = {"chat": "chat/completions"}.get(dialect, dialect)
    async with serve_answer(tmp_path, CALL) as served:
        answer = await served.client.post(
            f"/v1/{path}", json={"model": "tiny", "messages": HI} | asks[dialect]
        )
        assert answer.status_code == 200, answer.text
        assert (bound := served.engine.seen[-1].grammar) is not None
        assert f"mcp__server__tool_{num_tools - 1}" in bound.text
        assert ("who" in bound.text, "why" in bound.text) == (True, False)


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_so_many_strict_tools_are_refused_that_the_parser_fails_at_them(
    tmp_path: Path, choice: str
) -> None:
    tools = [
        {"type": "function", "function": {"name": f"f{number}", "parameters": SCHEMA, "strict": True}}
        for number in range(257)
    ]
    async with serve_answer(tmp_path, CALL) as served:
        for sent, status in ((tools, 400), (tools[1:], 200)):
            ask = {"messages": HI, "tools": sent, "tool_choice": choice}
            answer = await served.client.post("/v1/chat/completions", json=ask)
            assert answer.status_code == status, answer.text
            assert status == 200 or "257 of them are strict" in answer.json()["error"]["message"]


async def test_a_call_in_the_reasoning_is_one(tmp_path: Path) -> None:
    async with serve_answer(tmp_path, f"<think>\nI look.\n{CALL}") as served:
        chats = served.openai.chat.completions
        for sent, num_calls in (({"tools": [FIND]}, 1), ({}, 0)):
            [choice] = (await chats.create(model="tiny", messages=HI, **sent)).choices
            assert len(choice.message.tool_calls or ()) == num_calls
            assert choice.finish_reason == ("tool_calls" if num_calls else "stop")
            assert choice.message.reasoning_content == f"I look.\n{CALL}"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"response_format": {"type": "json_object"}}, "exclude each other"),
        ({"tool_choice": {"type": "function", "function": {"name": "no"}}}, "names `no`"),
    ],
)
async def test_a_call_that_can_not_be_forced_is_refused(
    tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    async with serve_answer(tmp_path, CALL) as served:
        ask = {"messages": HI, "tools": [FIND], "tool_choice": "required"} | fields
        answer = await served.client.post("/v1/chat/completions", json=ask)
        assert answer.status_code == 400
        assert said in answer.json()["error"]["message"]


BESIDE = [
    ("chat/completions", {"messages": HI, "tools": [FIND], "response_format": {
        "type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}),
    ("responses", {"input": "hi", "tools": [{"type": "function", "name": "find", "parameters": SCHEMA}],
        "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}}),
    ("messages", {"max_tokens": 9, "messages": HI, "tools": [{"name": "find", "input_schema": SCHEMA}],
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body"), BESIDE)
@pytest.mark.parametrize("tool_format", ["hermes", "llama3", "harmony"])
async def test_a_typed_answer_may_be_a_call_instead(
    tmp_path: Path, tool_format: str, path: str, body: dict[str, Any]
) -> None:
    async with serve_answer(tmp_path, CALL, tool_format=tool_format) as served:
        answer = await served.client.post(f"/v1/{path}", json=body | {"model": "tiny"})
        assert answer.status_code == 200, answer.text
        assert (bound := served.engine.seen[-1].grammar) is not None
        assert "@answer" in bound.text
        assert "find" in bound.text


async def test_calls_without_a_marker_and_a_form_that_is_no_schema_exclude_each_other(tmp_path: Path) -> None:
    async with serve_answer(tmp_path, CALL, tool_format="llama3") as served:
        ask = {"messages": HI, "tools": [FIND], "guided_regex": "a"}
        error = (await served.client.post("/v1/chat/completions", json=ask)).json()["error"]
        assert (error["param"], "exclude each other" in error["message"]) == ("guided_regex", True)


async def test_a_forced_tool_whose_arguments_the_format_can_not_name_is_refused(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"x[0]": {}}}
    tool = {"type": "function", "function": {"name": "find", "parameters": schema}}
    async with serve_answer(tmp_path, CALL, tool_format="pythonic") as served:
        for choice, status in (("required", 400), ("auto", 200)):
            ask = {"messages": HI, "tools": [tool], "tool_choice": choice}
            answer = await served.client.post("/v1/chat/completions", json=ask)
            assert answer.status_code == status
            assert status == 200 or "in `find`, `#/properties/x[0]`" in answer.json()["error"]["message"]


async def test_a_tool_of_many_nested_definitions_is_refused(tmp_path: Path) -> None:
    links = {
        f"d{number}": {"items": {"$ref": f"#/$defs/d{number + 1}"}, "type": "array"} for number in range(400)
    }
    schema = {**SCHEMA, "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": links}
    tool = {"type": "function", "function": {"name": "find", "parameters": schema}}
    async with serve_answer(tmp_path, CALL, tool_format="functiongemma") as served:
        ask = {"messages": HI, "tools": [tool], "tool_choice": "required"}
        answer = await served.client.post("/v1/chat/completions", json=ask)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_grammar")
