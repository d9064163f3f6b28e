"""What a model's prompt is for a body of POST /v1/messages."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.anthropic.body import Ignored, read_anthropic, read_anthropic_prompt
from millrace_runtime.api.request.reasoning import choose_variables
from millrace_runtime.chat.jobs import RenderChat
from millrace_runtime.chat.template import ChatTemplate
from tests.runtime.api.scripted import SCHEMA

TEMPLATES = Path(__file__).parents[1] / "chat" / "templates"
USER = {"role": "user", "content": "hi"}
ASK_ALONE: dict[str, Any] = {"messages": [USER]}
ASK = ASK_ALONE | {"max_tokens": 100}
FIND = {"name": "find", "description": "Finds.", "input_schema": SCHEMA}
RESULT = {"type": "tool_result", "tool_use_id": "1", "content": "none"}
USE = {"type": "tool_use", "id": "1", "name": "find", "input": {}}
USED = {"id": "1", "type": "function", "function": {"name": "find", "arguments": {}}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [USED]}
SAID = {"role": "assistant", "content": "So"}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def model(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": [{"type": "text", "text": text}]}


def result(text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "1", "content": text}


def read_job(**fields: Any) -> RenderChat:
    job = read_anthropic(json.dumps(ASK | fields).encode()).prompts
    assert isinstance(job, RenderChat)
    assert read_anthropic_prompt(json.dumps(ASK_ALONE | fields).encode()).prompts == job
    return job


def render(template: str, job: RenderChat) -> str:
    source = (TEMPLATES / f"{template}.jinja").read_text()
    return ChatTemplate({"default": source}, {"bos_token": "<s>", "eos_token": "</s>"}).render(job)


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
    ("messages", "read"),
    [
        ([system("A"), USER], [USER]),
        ([USER, system("A")], [user("hi\nA")]),
        ([USER, system("A"), USER, SAID, SAID], [user("hi\nA\nhi"), SAID | {"content": "So\nSo"}]),
        ([USER, SAID, system("A"), USER], [USER, SAID, user("A\nhi")]),
        ([USER, SAID, system("A")], [USER, SAID, user("A")]),
        ([{"role": "ctx", "content": "hi"}, SAID, {"role": "msg", "content": "hi"}], [USER, SAID, USER]),
        ([USER, model(USE), system("A"), user([RESULT])], [USER, CALLED, result("none\nA")]),
        (
            [USER, model(USE), user([RESULT]), system("A"), USER],
            [USER, CALLED, result("none"), user("A\nhi")],
        ),
        ([USER, {"role": "assistant", "content": ""}], [USER]),
        ([USER, model({"type": "redacted_thinking", "data": "x"})], [USER]),
    ],
)
def test_turns_alternate_behind_one_system_message(messages: list[Any], read: list[Any]) -> None:
    prompt = read_job(messages=messages, system="S").messages
    assert prompt == [{"role": "system", "content": "S\nA" if messages[0] == system("A") else "S"}, *read]


def test_templates_that_know_one_system_message_render_an_agents_reminders() -> None:
    talk = [USER, system("Hurry."), SAID, USER, system("Now.")]
    assert render("inst", read_job(messages=talk, system="S")).endswith("[INST] hi\nNow. [/INST]")
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    loop = [USER, model(thought, USE), user([RESULT])]
    before, after = (
        render("thinking", read_job(messages=turns)) for turns in (loop, [*loop, system("Now.")])
    )
    assert "<think>\nHm." in before
    assert after.startswith(before.split("\n</r>")[0]), "the prefix is computed once"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("x-anthropic-billing-header: cc_version=2.1.9; cch=0a1b2;", []),
        ("x-anthropic-billing-header: cch=0a1b2;\nYou are.", ["You are."]),
        ("x-anthropic-billing-header: is what?", ["x-anthropic-billing-header: is what?"]),
        ("The x-anthropic-billing-header: cch=0a1b2;", ["The x-anthropic-billing-header: cch=0a1b2;"]),
    ],
)
def test_the_hash_before_a_system_prompt_is_left_out(text: str, left: list[str]) -> None:
    for spelled in (text, system(text)["content"]):
        for fields in ({"system": spelled}, {"messages": [{"role": "system", "content": spelled}, USER]}):
            assert [read["content"] for read in read_job(**fields).messages] == [*left, "hi"]


@pytest.mark.parametrize("template", ["chatml", "headers", "inst", "mistral", "thinking", "glm45", "harmony"])
def test_the_model_goes_on_with_a_text_of_its_own(template: str) -> None:
    job = read_job(messages=[USER, {"role": "assistant", "content": "The answer is ("}])
    assert render(template, job).endswith("The answer is (")


@pytest.mark.parametrize(
    "blocks",
    [
        [USE],
        [{"type": "text", "text": "So"}, USE],
        [{"type": "thinking", "thinking": "Hm.", "signature": "x"}],
        [{"type": "thinking", "thinking": "", "signature": "x"}],
        "",
    ],
)
def test_what_is_no_text_is_not_gone_on_with(blocks: Any) -> None:
    job = read_job(messages=[USER, {"role": "assistant", "content": blocks}])
    assert (job.continue_final_message, job.add_generation_prompt) == (False, True)


WEB = {"type": "web_search_20250305", "name": "web_search"}
BASH = {"type": "bash_20250124", "name": "bash", "strict": True}
LATER = FIND | {"name": "later", "defer_loading": True}
SEARCH = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
MANY = [FIND | {"name": f"mcp__{'x' * 120}{place:03}"} for place in range(200)]


@pytest.mark.parametrize(
    ("tools", "choice", "loaded"),
    [
        (MANY, None, [tool["name"] for tool in MANY]),
        ([WEB, FIND | {"type": "custom", "cache_control": {"type": "ephemeral"}}, BASH], None, ["find"]),
        ([WEB, BASH, {"type": "mcp_toolset", "mcp_server_name": "x"}], "auto", None),
        ([FIND], "none", None),
        ([FIND, LATER], None, ["find"]),
        ([FIND, LATER], "later", ["find", "later"]),
        ([FIND, LATER, SEARCH], None, ["find", "later"]),
        ([LATER], None, ["later"]),
    ],
)
def test_the_tools_of_a_prompt(tools: list[Any], choice: str | None, loaded: list[str] | None) -> None:
    kinds = {"auto": {"type": "auto"}, "none": {"type": "none"}, "later": {"type": "tool", "name": "later"}}
    shown = read_job(tools=tools, **({"tool_choice": kinds[choice]} if choice else {})).tools
    assert (None if shown is None else [tool["function"]["name"] for tool in shown]) == loaded


def test_a_result_that_refers_to_a_tool_loads_it() -> None:
    found = [{"type": "tool_reference", "tool_name": name} for name in ("later", "find")]
    messages = [USER, model(USE), user([RESULT | {"content": found}])]
    body = ASK | {"messages": messages, "tools": [FIND, LATER | {"strict": True}, BASH]}
    request, job = read_anthropic(json.dumps(body).encode())
    assert isinstance(job, RenderChat)
    description, name = job.messages[-1]["content"].split("\n")
    assert [tool["function"]["name"] for tool in request.answer.tools or []] == ["find", "later"]
    assert request.answer.strict == ("later",)
    assert (json.loads(description), name) == ((request.answer.tools or [])[1], "find")


def test_a_tool_is_written_out_once() -> None:
    found = [{"type": "tool_reference", "tool_name": "later"}] * 2
    turn = [model(USE), user([RESULT | {"content": found}, RESULT | {"content": found}])]
    job = read_job(messages=[USER, *turn, *turn], tools=[FIND, LATER])
    texts = "\n".join(message["content"] for message in job.messages if message["role"] == "tool").split("\n")
    assert json.loads(texts[0])["function"]["name"] == "later"
    assert texts[1:] == ["later"] * 7


def test_what_is_no_text_in_a_result_is_left_out_and_said() -> None:
    seen = [{"type": "text", "text": "See"}, {"type": "image", "source": {}}, {"type": "document"}]
    searched = [{"type": "server_tool_use", "id": "2"}, {"type": "web_search_tool_result", "content": []}]
    job = read_job(messages=[USER, model(*searched, USE), user([RESULT | {"content": seen}])])
    assert job.messages[1] == CALLED
    assert job.messages[2]["content"].split("\n") == [
        "See",
        "[image left out: this model reads text alone]",
        "[document left out: this model reads text alone]",
    ]


TEXT = {"type": "text", "text": "Snow."}
DOCUMENT = {"type": "document", "title": "Weather", "source": {"type": "text", "data": "Snow."}}
FOUND = {"type": "search_result", "source": "https://x", "title": "Weather", "content": [TEXT]}
IMAGE = {"type": "image", "source": {}}


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (DOCUMENT, "Weather\nSnow."),
        (DOCUMENT | {"title": None, "context": "Of today."}, "Of today.\nSnow."),
        (DOCUMENT | {"source": {"type": "content", "content": "Snow."}}, "Weather\nSnow."),
        (
            DOCUMENT | {"source": {"type": "content", "content": [TEXT, IMAGE]}},
            "Weather\nSnow.\n[image left out: this model reads text alone]",
        ),
        (FOUND, "Weather\nhttps://x\nSnow."),
    ],
)
def test_documents_and_search_results_of_text_are_read(block: dict[str, Any], text: str) -> None:
    assert read_job(messages=[user([block])]).messages == [user(text)]
    messages = [USER, model(USE), user([RESULT | {"content": [block]}])]
    assert read_job(messages=messages).messages == [USER, CALLED, result(text)]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"content": ""}, "error"),
        ({"content": []}, "error"),
        ({}, "none"),
        ({"is_error": False, "content": ""}, ""),
    ],
)
def test_an_error_without_a_text_is_an_error(fields: dict[str, Any], text: str) -> None:
    turn = user([RESULT | {"is_error": True} | fields])
    assert read_job(messages=[USER, model(USE), turn]).messages[-1] == result(text)


def test_the_input_of_a_call_is_as_deep_as_a_schema() -> None:
    for depth, name in ((60, "arguments"), (70, None)):
        nested: dict[str, Any] = {}
        for _ in range(depth):
            nested = {"x": nested}
        messages = [USER, model(USE | {"input": nested})]
        if name is None:
            with pytest.raises(BadRequestError, match="goes more than 64 levels deep"):
                read_job(messages=messages)
        else:
            assert read_job(messages=messages).messages[1]["tool_calls"][0]["function"][name] == nested


def test_a_refused_format_is_named_as_it_was_sent() -> None:
    for fields, name in (
        ({"output_config": {"format": FORMAT}}, "output_config.format"),
        ({"output_format": FORMAT}, "output_format"),
    ):
        grammar = read_anthropic(json.dumps(ASK | fields).encode()).request.grammar
        assert grammar is not None
        assert grammar.field == name


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({}, {}),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1024}},
            {"enable_thinking": True, "thinking": True},
        ),
        ({"output_config": {"effort": "max", "task_budget": {}}}, choose_variables("max")),
        (
            {"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}},
            {"enable_thinking": False, "thinking": False, "reasoning_effort": "low"},
        ),
        (
            {"thinking": {"type": "adaptive", "display": "omitted"}, "output_config": {"effort": "none"}},
            {"enable_thinking": True, "thinking": True, "reasoning_effort": "none"},
        ),
    ],
)
def test_the_templates_variables(fields: dict[str, Any], variables: dict[str, Any]) -> None:
    assert read_job(**fields).variables == variables


FORMAT = {"type": "json_schema", "schema": SCHEMA}
GIVEN = [USER, SAID]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"thread": {"type": "create"}}, "send the whole conversation"),
        ({"compaction": {"type": "summarize"}}, "ask for the summary"),
        ({"messages": GIVEN, "output_config": {"format": FORMAT}}, "leave out `output_config.format`"),
        ({"messages": GIVEN, "output_format": FORMAT}, "end `messages` with one of the user"),
        ({"messages": [system("S")]}, "needs a message of role `user`"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "`assistant` or `system`"),
        ({"messages": [{"role": "user"}]}, "a text or a list of blocks"),
        ({"messages": [user([{"type": "document"}])]}, "send what it says as `text`"),
        ({"messages": [user([{"type": "container_upload"}])]}, "only text, thinking"),
        (
            {"messages": [user([{"type": "search_result"}])]},
            "`search_result` needs a list `content` of texts",
        ),
        ({"messages": [user([DOCUMENT | {"source": {"type": "base64"}}])]}, "send what it says as `text`"),
        ({"system": [{"type": "tool_addition"}]}, "'tool_addition' is not supported here, only text"),
        (
            {"messages": [model({"type": "tool_use", "id": "1", "name": "find"})]},
            "`tool_use` needs `id`, `name` and an object `input`",
        ),
        ({"messages": [user([{"type": "text"}])]}, "`text` needs a text `text`"),
        ({"tools": [FIND | {"name": "x" * 129}]}, "`tools[0]`"),
        ({"tools": [FIND, FIND | {"description": "x"}]}, "two `tools` are `find`"),
        ({"tools": [{"type": "function", "function": FIND}]}, "`name` and an `input_schema`"),
        ({"tools": [BASH], "tool_choice": {"type": "any"}}, "has none of Anthropic's"),
        ({"tools": [FIND, BASH], "tool_choice": {"type": "tool", "name": "bash"}}, "names `bash`"),
        ({"tool_choice": {"type": "any"}}, "needs `tools`"),
        ({"tools": [FIND], "tool_choice": {"type": "tool"}}, "needs a `name`"),
        ({"output_config": {"effort": "huge"}}, "huge"),
    ],
)
def test_what_is_refused_is_named(fields: dict[str, Any], said: str) -> None:
    for read, ask in ((read_anthropic, ASK), (read_anthropic_prompt, ASK_ALONE)):
        with pytest.raises(BadRequestError, match=re.escape(said)):
            read(json.dumps(ask | fields).encode())


def test_the_page_has_each_field_that_is_ignored() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "requests.md").read_text()
    section = page.split("## Claude Code and Anthropic's clients")[1].split("\n## ")[0]
    ignored = section.split("Ignored:")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", ignored)) == set(Ignored.__struct_fields__)
    assert read_job(**{name: {"x": 1} for name in Ignored.__struct_fields__}) == read_job()
