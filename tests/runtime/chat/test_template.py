"""Prompts are what transformers' `apply_chat_template` renders, for templates in served models' idioms."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

from millrace_runtime.api.request.messages import read_messages
from millrace_runtime.api.request.openai import read_chat
from millrace_runtime.chat.adaptation import list_forms
from millrace_runtime.chat.errors import BrokenTemplateError, TemplateError, TokenizerError
from millrace_runtime.chat.jobs import RenderChat
from millrace_runtime.chat.model_files import read_text_config
from millrace_runtime.chat.parsers.registry import open_parser
from millrace_runtime.chat.template import ChatTemplate
from millrace_runtime.chat.tokenizer import Tokenizer
from testing.text_model import build_byte_level, write_model

FOLDER = Path(__file__).with_name("templates")
TEMPLATES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.jinja"))}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
WITHOUT_CALLS = {"chatml", "generation", "idioms", "model", "none", "parts"}
RESULT_ROLES = {"glm4": "observation", "glm4_items": "observation", "phi4_mini_card": "tool_response"}
"""Those of templates that know no role `tool`."""
USER = [{"role": "user", "content": "<hé>"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "description": "Finds <things> & more.",
            "parameters": {"type": "object", "properties": {"who": {"type": "string"}}, "required": ["who"]},
        },
    }
]
CALLED = [
    {"role": "system", "content": "Be brief. "},
    {"role": "user", "content": "Who?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "abc123def", "type": "function", "function": {"name": "find", "arguments": {"who": "Zoë"}}}
        ],
    },
    {"role": "tool", "tool_call_id": "abc123def", "name": "find", "content": "none"},
]
TALKED = [
    {"role": "user", "content": " Hi "},
    {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nHello", "reasoning_content": "Hm."},
    {"role": "user", "content": "More\n", "type": "text", "opts": {"visible": False}},
]
CHATS: dict[str, dict[str, Any]] = {
    "one message": {"conversation": USER},
    "a talk": {"conversation": TALKED},
    "no answer begun": {"conversation": TALKED, "add_generation_prompt": False},
    "continued": {"conversation": TALKED[:2], "continue_final_message": True},
    "tools": {"conversation": USER, "tools": TOOLS},
    "tools called": {"conversation": CALLED, "tools": TOOLS},
    "documents": {"conversation": USER, "documents": [{"title": "T", "text": "t"}]},
    "a variable": {"conversation": TALKED, "enable_thinking": False},
    "no role known": {"conversation": [{"role": "villain", "content": "x"}]},
}


@cache
def compile_template(source: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, SPECIAL)


@cache
def open_oracle() -> transformers.PreTrainedTokenizerFast:
    return transformers.PreTrainedTokenizerFast(tokenizer_object=build_byte_level(), **SPECIAL)


def render(source: str, chat: dict[str, Any]) -> str:
    known = {"tools", "documents", "add_generation_prompt", "continue_final_message"}
    variables = {key: value for key, value in chat.items() if key not in {*known, "conversation"}}
    fields = {key: value for key, value in chat.items() if key in known}
    return compile_template(source).render(RenderChat(chat["conversation"], **fields, variables=variables))


def render_by_transformers(source: str, chat: dict[str, Any]) -> str:
    begins = not chat.get("continue_final_message")
    prompt = open_oracle().apply_chat_template(
        **{"add_generation_prompt": begins} | chat, chat_template=source, tokenize=False
    )
    return str(prompt).replace("CONTINUE_FINAL_MESSAGE_TAG ", "")  # left where a message is written twice


def render_in_any_form(source: str, chat: dict[str, Any]) -> str:
    """The first form of a conversation that transformers renders."""
    messages = chat["conversation"]
    for form in [messages, *list_forms(messages, may_join=False)]:
        for written in (form, write_calls(form), write_calls(form, content="")):
            with suppress(Exception):
                return render_by_transformers(source, chat | {"conversation": written})
    raise AssertionError("each form is refused")


def write_calls(messages: Sequence[dict[str, Any]], **fields: str) -> list[dict[str, Any]]:
    """The messages with arguments as JSON, and with other fields beside calls."""
    return [
        message | fields | {"tool_calls": [write_call(call) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else message
        for message in messages
    ]


def write_call(call: dict[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return call | {"function": call["function"] | {"arguments": arguments}}


def outcome(of: Any, source: str, chat: dict[str, Any]) -> str | None:
    """The prompt, or None where it is refused."""
    try:
        return str(of(source, chat))
    except Exception:  # noqa: BLE001  transformers raises any
        return None


@pytest.mark.parametrize("name", TEMPLATES)
def test_prompts_are_those_of_transformers(name: str) -> None:
    source, chats = TEMPLATES[name], dict(CHATS)
    # It asks for a null content, which transformers 5 leaves out; the others forget calls, or tools.
    if name in {"deepseek_r1", "granite", "glm4", "glm4_items", "phi4_mini_card"}:
        del chats["tools called"]
    if name in {"glm4_items", "phi4_mini_card"}:
        del chats["tools"]
    if name == "phi4_mini_json":  # it would write an object as Python does
        chats["tools called"] = {"conversation": write_calls(CALLED), "tools": TOOLS}
    assert {chat: outcome(render, source, fields) for chat, fields in chats.items()} == {
        chat: outcome(render_in_any_form, source, fields) for chat, fields in chats.items()
    }


def test_a_null_content_reaches_a_template_that_asks_for_it() -> None:
    assert render(TEMPLATES["deepseek_r1"], {"conversation": CALLED[1:]}) == (
        "<s><｜User｜>Who?<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>find\n"
        '```json\n{"who": "Zoë"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜></s>'
        "<｜tool▁output▁begin｜>none<｜tool▁output▁end｜>"
    )


@pytest.mark.parametrize("name", TEMPLATES)
@given(
    messages=st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": st.text()},
            optional={"name": st.text(), "reasoning_content": st.text(), "weight": st.integers()},
        ),
        min_size=1,
        max_size=5,
    )
)
def test_any_messages_are_rendered_as_by_transformers(name: str, messages: list[dict[str, Any]]) -> None:
    renamed = [m | {"role": RESULT_ROLES.get(name, "tool")} if m["role"] == "tool" else m for m in messages]
    expected = outcome(render_in_any_form, TEMPLATES[name], {"conversation": renamed})
    assert outcome(render, TEMPLATES[name], {"conversation": messages}) == expected


def test_a_developer_is_the_system_unless_the_template_names_one() -> None:
    chat = {"conversation": [{"role": "developer", "content": "Kites only."}, *USER]}
    assert "<|system|>Kites only." in render(
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}", chat
    )
    mentioned = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% endif %}{% endfor %} developers"
    )
    assert "Kites only." in render(mentioned, chat)
    named = "{% for m in messages %}{{ 'D:' if m.role == 'developer' else 'O:' }}{{ m.content }}{% endfor %}"
    assert render(named, chat) == "D:Kites only.O:<hé>"


@pytest.mark.parametrize(
    ("source", "prompt"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "a\nb"),
        ("{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}", "[a][b]"),
    ],
)
def test_parts_reach_a_template_that_reads_them_and_text_the_others(source: str, prompt: str) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render(source, {"conversation": [{"role": "user", "content": parts}]}) == prompt


def test_text_reaches_a_template_that_knows_parts_alone() -> None:
    source = (
        "{% for m in messages %}{{ m.content[0]['text'] }}{{ 1 // (m.content[0] is mapping) }}{% endfor %}"
    )
    assert render(source, {"conversation": USER}) == "<hé>1"


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_call_that_the_model_wrote_wrong_is_read_again(name: str) -> None:
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "find", "arguments": '{"who": Zo'}}
    messages = [*USER, {"role": "assistant", "content": "", "tool_calls": [call]}, TOOL]
    try:
        prompt = render(TEMPLATES[name], {"conversation": messages})
    except TemplateError:
        return  # it refuses every result
    assert "Zo" in prompt or "find" not in prompt, "some templates write no calls"


TOOL = {"role": "tool", "tool_call_id": "abcdefghi", "name": "find", "content": "none"}


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}], ids=str)
@pytest.mark.parametrize("arguments", ['{"who": "Zoë"}', {"who": "Zoë"}], ids=["text", "object"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_calls_reach_every_template_that_writes_them(
    name: str, arguments: Any, content: dict[str, Any]
) -> None:
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "find", "arguments": arguments}}
    messages = read_messages([*USER, {"role": "assistant", **content, "tool_calls": [call]}, TOOL])
    with suppress(TemplateError):  # of a template that refuses results
        assert "Zoë" in render(TEMPLATES[name], {"conversation": messages}) or name in WITHOUT_CALLS


def said_call(content: Any, arguments: Any = {"who": "Zoë"}) -> dict[str, Any]:  # noqa: B006
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "find", "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def test_text_beside_a_call_is_a_message_of_its_own_where_the_template_reads_one_of_them() -> None:
    for content in ("I look.", [{"type": "text", "text": "I look."}]):
        prompt = render(TEMPLATES["deepseek_r1"], {"conversation": [*USER, said_call(content), TOOL]})
        assert 0 < prompt.find("I look.</s>") < prompt.find("Zoë") < prompt.find("none<")
    blank = render(TEMPLATES["deepseek_r1"], {"conversation": [*USER, said_call("\n\n"), TOOL]})
    assert blank == render(TEMPLATES["deepseek_r1"], {"conversation": [*USER, said_call(None), TOOL]})


def test_a_template_without_calls_gets_the_content_that_was_sent() -> None:
    source = (
        "{% for m in messages %}<{{ m.content if m.content is string else m.content | tojson }}>{% endfor %}"
    )
    messages = [*USER, said_call(""), TOOL]
    assert render(source, {"conversation": messages}) == "<<hé>><><none>"


def test_calls_that_a_template_of_tools_does_not_write_are_written_as_it_teaches_them() -> None:
    """SmolLM3's shows tools, and forgets the calls of earlier turns."""
    source = (
        "{% if tools %}{{ tools | tojson }} Call in <tool_call></tool_call>.{% endif %}"
        "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    )
    prompt = render(source, {"conversation": [*USER, said_call("I look."), TOOL], "tools": TOOLS})
    written = 'I look.\n<tool_call>\n{"name": "find", "arguments": {"who": "Zoë"}}\n</tool_call>'
    assert prompt.endswith(f"[{written}][none]")
    parser = open_parser("hermes", None, tools=TOOLS)
    deltas = [parser.feed(written), parser.finish()]
    assert [call.name for delta in deltas for call in delta.calls if call.name] == ["find"]


def test_granites_calls_are_written_as_it_teaches_them() -> None:
    chat = RenderChat([*USER, said_call("I look."), TOOL], tools=TOOLS)
    prompt = compile_template(TEMPLATES["granite"]).render(chat)
    written = 'I look.\n<|tool_call|>[{"name": "find", "arguments": {"who": "Zoë"}}]'
    assert f"assistant<|end_of_role|>{written}<|end_of_text|>" in prompt
    parser = open_parser("granite", None, tools=TOOLS)
    deltas = [parser.feed(written), parser.finish()]
    assert [call.name for delta in deltas for call in delta.calls if call.name] == ["find"]


GLM_TURNS = '<|assistant|>\nI look.<|assistant|>find\n{"who": "Zoë"}<|observation|>\nnone<|assistant|>'


@pytest.mark.parametrize("name", ["glm4", "glm4_items"])
def test_glms_calls_are_messages_and_tools_may_be_the_systems(name: str) -> None:
    prompt = compile_template(TEMPLATES[name]).render(
        RenderChat([*USER, said_call("I look."), TOOL], tools=TOOLS)
    )
    assert re.sub(r"\s*<\|", "<|", prompt).rstrip().endswith(GLM_TURNS)
    assert prompt.count("## find") == 1
    assert "# Tools" not in compile_template(TEMPLATES[name]).render(RenderChat(USER))


def test_the_tools_of_phi_4_mini_are_text_in_the_systems_message() -> None:
    template = compile_template(TEMPLATES["phi4_mini_card"])
    tools = json.dumps([TOOLS[0]["function"]], ensure_ascii=False)
    asked = f"<|tool|>{tools}<|/tool|><|end|><|user|><hé><|end|><|assistant|>"
    assert template.render(RenderChat(USER, tools=TOOLS)) == f"<|system|>{asked}"
    known = [{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}, *USER]
    assert template.render(RenderChat(known, tools=TOOLS)) == f"<|system|>Be brief.{asked}"
    assert template.render(RenderChat([known[0], *USER])).startswith("<|system|>Be brief.<|end|>")
    later = template.render(RenderChat([*USER, said_call("I look."), TOOL], tools=TOOLS))
    call = 'I look.\n<|tool_call|>[{"name": "find", "arguments": {"who": "Zoë"}}]<|/tool_call|>'
    assert later.endswith(f"<|assistant|>{call}<|end|><|tool_response|>none<|end|><|assistant|>")


def test_arguments_are_json_where_a_template_would_write_an_object_as_python_does() -> None:
    prompt = render(TEMPLATES["phi4_mini_json"], {"conversation": [*USER, said_call("", {"a": None}), TOOL]})
    assert 'functools[{"name": "find", "arguments": {"a": null}}]' in prompt


def test_a_template_for_tools_is_tried_with_tools() -> None:
    """Hermes 3 has one, which fails without any."""
    sources = {
        "default": TEMPLATES["chatml"],
        "tool_use": "{% for t in tools %}{{ t.function.name }};{% endfor %}" + TEMPLATES["thinking"],
    }
    template = ChatTemplate(sources, SPECIAL)
    assert "find;" in template.render(RenderChat([*USER, said_call(None), TOOL], tools=TOOLS))
    assert "<hé>" in template.render(RenderChat(USER))


BY_ROLE = """{% for m in messages %}[
{%- if m.role == 'user' and m.content is not string %}{% for p in m.content %}{{ p.text }}{% endfor %}
{%- elif m.role == 'system' and m.content is not string %}{{ m.content[0]['text'] }}
{%- else %}{{ m.content }}{% endif %}]{% endfor %}"""


def test_parts_reach_those_roles_whose_parts_a_template_reads() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": role, "content": parts} for role in ("system", "user", "assistant", "tool")]
    assert render(BY_ROLE, {"conversation": messages}) == "[a\nb][ab][a\nb][a\nb]"


def test_a_clients_own_variables_are_to_blame_where_the_template_fails_with_them_alone() -> None:
    source = "{{ limit + 1 if limit is defined }}{% for m in messages %}{{ m.content + '' }}{% endfor %}"
    with pytest.raises(TemplateError, match="with these `chat_template_kwargs` line 1 of the model's chat"):
        render(source, {"conversation": USER, "limit": "x"})
    with pytest.raises(BrokenTemplateError):
        render(source, {"conversation": [{"role": "user", "content": 7}], "limit": 1})


def test_a_question_behind_a_result_is_part_of_it_where_the_template_wants_turns() -> None:
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "find", "arguments": {}}}
    asked = {"role": "user", "content": [{"type": "text", "text": "So?"}]}
    said = {"role": "assistant", "content": "No."}
    messages = [*USER, {"role": "assistant", "content": "", "tool_calls": [call]}, TOOL, asked, said, *USER]
    mistral = compile_template(TEMPLATES["mistral"])
    with pytest.raises(TemplateError, match="roles must alternate"):
        mistral.render(RenderChat(messages))
    prompt = mistral.render(RenderChat(messages, is_adaptable=True))
    assert '{"content": none\nSo?, "call_id": "abcdefghi"}' in prompt
    chatml = compile_template(TEMPLATES["chatml"]).render(RenderChat(messages, is_adaptable=True))
    assert "<|im_start|>user\nSo?" in chatml
    with pytest.raises(TemplateError, match="roles must alternate"):
        mistral.render(RenderChat([said, *USER], is_adaptable=True))


@pytest.mark.parametrize("name", ["deepseek_v31", "thinking"])
@pytest.mark.parametrize(
    ("fields", "thinks"),
    [
        ({"enable_thinking": True}, True),
        ({"thinking": {"type": "disabled"}}, False),
        ({"reasoning": {"enabled": True}}, True),
        ({"reasoning_effort": "high"}, True),
        ({"reasoning_effort": "none"}, False),
    ],
)
def test_a_request_says_whether_the_model_reasons_by_the_name_that_its_template_reads(
    name: str, fields: dict[str, Any], *, thinks: bool
) -> None:
    job = read_chat(json.dumps({"messages": USER} | fields).encode()).prompts
    assert isinstance(job, RenderChat)
    read = {"deepseek_v31": "thinking", "thinking": "enable_thinking"}[name]
    prompt = render_by_transformers(TEMPLATES[name], {"conversation": USER, read: thinks})
    assert compile_template(TEMPLATES[name]).render(job) == prompt


@pytest.mark.parametrize(
    ("budget", "begin", "end"),
    [
        ({}, "<seed:bos>user\n", "<seed:bos>assistant"),
        ({"thinking_budget": 600}, "within 600 tokens, and say every 256 how", "<seed:bos>assistant"),
        (
            {"thinking_budget": 0},
            "Do not think.",
            "<seed:bos>assistant\n<seed:think><seed:cot_budget_reflect>",
        ),
    ],
)
def test_seed_oss_thinks_within_a_budget(budget: dict[str, Any], begin: str, end: str) -> None:
    body = {"messages": USER, "chat_template_kwargs": budget}
    job = read_chat(json.dumps(body).encode()).prompts
    assert isinstance(job, RenderChat)
    prompt = compile_template(TEMPLATES["seed_oss"]).render(job)
    assert begin in prompt
    assert prompt.rstrip().endswith(end)
    assert prompt == render_by_transformers(TEMPLATES["seed_oss"], {"conversation": USER} | budget)


SYSTEM_IN_LAST = """{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}
{%- set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}
{%- for m in rest %}{% if m.role == 'user' %}
{{- '[INST]' + (system + '\n\n' if loop.last and system is defined else '') + m.content + '[/INST]' }}
{%- elif m.tool_calls %}{{ '[CALLS]' + m.tool_calls | tojson }}
{%- elif m.role == 'tool' %}{{ '[RESULTS]' + m.content }}
{%- else %}{{ m.content }}{% endif %}{% endfor %}"""
"""As Mistral's Nemo has it."""


@pytest.mark.parametrize("content", ["Be brief.", [{"type": "text", "text": "Be brief."}]])
def test_a_system_message_that_a_template_loses_behind_results_is_in_the_last_question(content: Any) -> None:
    system, asked = {"role": "system", "content": content}, {"role": "user", "content": "Who?"}
    said = {"role": "assistant", "content": "I"}
    expected = [*USER, said, {"role": "user", "content": "Be brief.\n\nWho?"}, *CALLED[2:]]
    for form in ([*USER, said, asked, *CALLED[2:]], [*USER, said, asked, *CALLED[2:], said]):
        sent = [system, *form]
        prompt = render_by_transformers(SYSTEM_IN_LAST, {"conversation": [*expected, *form[5:]]})
        assert render(SYSTEM_IN_LAST, {"conversation": sent}) == prompt
    asks = {"conversation": [{"role": "system", "content": "Be brief."}, *USER, said, asked]}
    assert render(SYSTEM_IN_LAST, asks) == render_by_transformers(SYSTEM_IN_LAST, asks)


NAMES = {"s": "system", "d": "developer", "u": "user", "a": "assistant"}
LEADING_SYSTEM = """{% for m in messages %}{% if m.role == 'system' and not loop.first %}
{{- raise_exception('late') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"""


@pytest.mark.parametrize(
    ("sources", "roles", "form"),
    [
        (("mistral", "inst"), "ssu", "system s0 s1|user u2"),
        (("mistral", "inst"), "sdu", "system s0 d1|user u2"),
        (("mistral", "inst"), "suau", "system s0|user u1|assistant a2|user u3"),
        (("mistral", "inst"), "uu", "user u0 u1"),
        (("mistral", "inst"), "uasu", "user u0|assistant a1|user s2 u3"),
        (("mistral",), "us", "user u0 s1"),
        (("mistral", "inst"), "uaau", "user u0|assistant a1 a2|user u3"),
        (("mistral", "inst"), "au", None),
        ((LEADING_SYSTEM,), "susuu", "system s0|user u1|user s2|user u3|user u4"),
        ((LEADING_SYSTEM,), "ssuu", "system s0 s1|user u2|user u3"),
    ],
)
def test_turns_that_a_template_refuses_are_joined_and_the_system_speaks_first(
    sources: tuple[str, ...], roles: str, form: str | None
) -> None:
    sent = [{"role": NAMES[role], "content": f"{role}{place}"} for place, role in enumerate(roles)]
    in_parts = [message | {"content": [{"type": "text", "text": message["content"]}]} for message in sent]
    for source in (TEMPLATES.get(name, name) for name in sources):
        # Those of other dialects are joined when they are read.
        for messages, is_adaptable in product((sent, in_parts), {False, source != LEADING_SYSTEM}):
            chat = RenderChat(messages, is_adaptable=is_adaptable)
            if form is None:
                with pytest.raises(TemplateError, match="alternate"):
                    compile_template(source).render(chat)
                continue
            turns = [turn.split(" ") for turn in form.split("|")]
            joiner = "\n\n" if messages is sent else "\n"
            expected = [{"role": role, "content": joiner.join(texts)} for role, *texts in turns]
            prompt = render_by_transformers(source, {"conversation": expected})
            assert compile_template(source).render(chat) == prompt


def test_a_joined_message_keeps_its_calls_and_reasoning_and_a_name_that_both_have() -> None:
    call, other = ({"id": name * 9, "function": {"name": name, "arguments": {}}} for name in "fg")
    said = {"role": "assistant", "content": "a", "reasoning_content": "Hm.", "tool_calls": [call], "x": 1}
    asked = [{"role": "user", "content": "b", "name": "Zoë"}, {"role": "user", "content": "", "name": "Zoë"}]
    forms = list(
        list_forms([*asked, said, said | {"content": None, "tool_calls": [other], "x": 2}], may_join=False)
    )
    assert [
        {"role": "user", "content": "b", "name": "Zoë"},
        {
            "role": "assistant",
            "content": "a",
            "reasoning_content": "Hm.\nHm.",
            "tool_calls": [call, other],
        },
    ] in forms


@pytest.mark.parametrize(("may_join", "most"), [(False, 11), (True, 15)])
def test_a_refused_conversation_is_rendered_so_many_times_at_most(most: int, *, may_join: bool) -> None:
    calls = [{"id": name, "function": {"name": name, "arguments": {}}} for name in "fg"]
    results = [{"role": "tool", "tool_call_id": name, "content": name} for name in "fg"]
    system = {"role": "system", "content": "s"}
    messages = [system, system, *USER, *USER, {"role": "assistant", "tool_calls": calls}, *results, *USER]
    assert len(list(list_forms([*messages, system], may_join=may_join))) == most


BARE = [{"type": "function", "function": {"name": "find"}}]
"""A function without parameters needs none, by OpenAI's types."""


def test_a_function_without_parameters_has_none_where_the_template_fails_without_the_field() -> None:
    reading = "{% for t in tools or [] %}{{ t.function.parameters.properties | length }}{% endfor %}"
    writing = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
    said = "{% for m in messages %}{{ m.content }}{% endfor %}"
    null = {"type": "function", "function": {"name": "find", "parameters": None}}
    assert render(reading + said, {"conversation": USER, "tools": [*BARE, null, *TOOLS]}) == "001<hé>"
    assert '"parameters"' not in render(writing + said, {"conversation": USER, "tools": BARE})
    for tools in (BARE, TOOLS):
        with pytest.raises(BrokenTemplateError, match="'nobody' is undefined"):
            render("{% if tools %}{{ nobody.x }}{% endif %}" + said, {"conversation": USER, "tools": tools})


THINKING_PARTS = """{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}
{%- for p in m.content %}{% if p.type == 'thinking' %}[{{ p.thinking }}]{% else %}{{ p.text }}{% endif %}
{%- endfor %}{% endif %}{% endfor %}"""
THOUGHT = [{"type": "thinking", "thinking": "Hm.", "closed": True}, {"type": "text", "text": "Hi"}]


@pytest.mark.parametrize(
    ("source", "prompt"),
    [
        (THINKING_PARTS, "<system>[Hm.]Hi<user><hé><assistant>[Hm.]Hi<user><hé>"),
        (
            "{% for m in messages %}<{{ m.role }}>{{ m.reasoning_content }}|{{ m.content }}{% endfor %}",
            "<system>|Hm.\nHi<user>|<hé><assistant>Hm.|Hi<user>|<hé>",
        ),
    ],
)
def test_parts_of_reasoning_are_parts_or_text_or_the_messages_reasoning(source: str, prompt: str) -> None:
    spelled = [THOUGHT[0] | {"thinking": [{"type": "text", "text": "Hm."}]}, THOUGHT[1]]
    for parts in (THOUGHT, spelled):
        said = {"role": "assistant", "content": parts}
        messages = read_messages([{"role": "system", "content": parts}, *USER, said, *USER])
        assert render(source, {"conversation": messages}) == prompt


def test_calls_that_a_template_refuses_are_written_in_another_form() -> None:
    calls = [
        {"id": f"toolu_{name}", "type": "function", "function": {"name": name, "arguments": {}}}
        for name in "fg"
    ]
    results = [{"role": "tool", "tool_call_id": f"toolu_{name}", "content": f"of {name}"} for name in "gf"]
    messages = [*USER, {"role": "assistant", "content": "", "tool_calls": calls}, *results]
    chat = {"conversation": messages}
    llama = render(TEMPLATES["headers"], chat)
    assert re.findall(r'"name": "(\w)"|"of (\w)"', llama) == [("f", ""), ("", "f"), ("g", ""), ("", "g")]
    mistral = render(TEMPLATES["mistral"], chat)
    ids = re.findall(r'"(?:call_)?id": "(\w{9})"', mistral)
    assert ids[:2] == ids[:1:-1], "each result has the id of its call"


@pytest.mark.parametrize("call_id", [None, "same"])
def test_results_without_ids_are_in_the_order_of_the_calls(call_id: str | None) -> None:
    ids = {} if call_id is None else {"id": call_id}
    calls = [{**ids, "type": "function", "function": {"name": name, "arguments": {}}} for name in "fg"]
    results = [{"role": "tool", "tool_call_id": call_id, "content": f"of {name}"} for name in "fg"]
    messages = [*USER, {"role": "assistant", "content": "", "tool_calls": calls}, *results]
    llama = render(TEMPLATES["headers"], {"conversation": messages})
    assert re.findall(r'"name": "(\w)"|"of (\w)"', llama) == [("f", ""), ("", "f"), ("g", ""), ("", "g")]


def test_every_digit_of_a_calls_arguments_reaches_the_template() -> None:
    text = '{"wei": 25000000000000000001}'
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "find", "arguments": text}}
    messages = read_messages([*USER, {"role": "assistant", "content": "", "tool_calls": [call]}, TOOL])
    assert "25000000000000000001" in render(TEMPLATES["headers"], {"conversation": messages})


def test_an_empty_list_of_calls_is_none() -> None:
    messages = read_messages([*USER, {"role": "assistant", "content": None, "tool_calls": []}, *USER])
    assert messages[1] == {"role": "assistant", "content": ""}
    assert render(TEMPLATES["headers"], {"conversation": messages})


def test_a_second_template_is_for_tools() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "with tools"}, {})
    assert template.render(RenderChat(USER)) == "plain"
    assert template.render(RenderChat(USER, tools=TOOLS)) == "with tools"
    with pytest.raises(TemplateError, match=r"\['other'\], and none of them is `default`"):
        ChatTemplate({"other": "x"}, {}).render(RenderChat(USER))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{% for %}", "line 1 .* does not compile"),
        ("a\n{{ 1 / 0 }}", "line 2 .* ZeroDivisionError"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("a\nb\n{{ nobody.name.text }}", "line 3 .* 'nobody' is undefined"),
    ],
)
def test_a_template_that_renders_no_message_is_broken_and_says_where(source: str, said: str) -> None:
    with pytest.raises(BrokenTemplateError, match=said):
        ChatTemplate({"default": source}, {})


def test_only_what_the_template_refuses_is_the_clients_fault() -> None:
    template = ChatTemplate(
        {"default": "{% if messages[0].role != 'user' %}{{ raise_exception('users only') }}{% endif %}"}, {}
    )
    with pytest.raises(TemplateError, match="users only"):
        template.render(RenderChat([{"role": "system", "content": "x"}]))
    late = ChatTemplate(
        {"default": "{% if messages | length > 1 %}\n{{ messages[1].name.first }}{% endif %}"}, {}
    )
    with pytest.raises(BrokenTemplateError, match="line 2"):
        late.render(RenderChat(USER * 2))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"variables": {"messages": []}}, "can't set `messages`"),
        ({"continue_final_message": True, "messages": [{"role": "assistant"}]}, "text to continue"),
    ],
)
def test_what_a_chat_may_not_ask_is_refused(fields: dict[str, Any], said: str) -> None:
    template = ChatTemplate({"default": "{% for m in messages %}{{ m.content }}{% endfor %}"}, {})
    with pytest.raises(TemplateError, match=said):
        template.render(RenderChat(**{"messages": USER} | fields))


TOKEN_FILES: dict[str, dict[str, dict[str, Any]]] = {
    "in the config": {
        "tokenizer_config.json": {
            "bos_token": "<s>",
            "sep_token": {"__type": "AddedToken", "content": "<sep>", "lstrip": True},
        }
    },
    "in the older file alone": {
        "special_tokens_map.json": {"bos_token": "<s>", "pad_token": {"content": "the"}}
    },
    "in both, and the older counts": {
        "tokenizer_config.json": {"eos_token": "<s>"},
        "special_tokens_map.json": {"eos_token": {"content": "</s>", "lstrip": False}},
    },
    "in both, and added tokens are listed": {
        "tokenizer_config.json": {
            "eos_token": "<s>",
            "added_tokens_decoder": {"263": {"content": "<b>", "special": True}, "262": {"content": "<a>"}},
        },
        "special_tokens_map.json": {"eos_token": "</s>"},
    },
    "of its own": {
        "tokenizer_config.json": {"image_token": "<image>", "extra_special_tokens": {"call_token": "<call>"}}
    },
    "without names": {"tokenizer_config.json": {"extra_special_tokens": ["<one>", "<two>"]}},
    "without names, as written once": {"tokenizer_config.json": {"additional_special_tokens": ["<one>"]}},
}
MARKED = "the<s> <sep></s><a><b><image><call><one><two>the <|end|>"


@pytest.mark.parametrize("kind", TOKEN_FILES)
def test_special_tokens_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    build_byte_level().save(str(tmp_path / "tokenizer.json"))
    for name, content in ({"tokenizer_config.json": {}} | TOKEN_FILES[kind]).items():
        (tmp_path / name).write_text(json.dumps(content))
    oracle = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    mine = Tokenizer.load(tmp_path)
    assert mine.config.special_tokens == oracle.special_tokens_map
    [ids] = mine.encode_batch([MARKED], add_special_tokens=False)
    assert ids == oracle.encode(MARKED, add_special_tokens=False)
    assert mine.decode(ids) == oracle.decode(ids, skip_special_tokens=True)


def test_a_token_beyond_the_models_rows_is_refused_by_its_name(tmp_path: Path) -> None:
    model = write_model(tmp_path, build_byte_level())
    (model / "config.json").write_text('{"vocab_size": 262}')
    (model / "special_tokens_map.json").write_text('{"pad_token": "<pad>"}')
    with pytest.raises(TokenizerError, match="'<pad>' has the id 262, and the model knows ids below 262"):
        Tokenizer.load(model)


def test_text_config_reads_ends_and_template_files(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    (tmp_path / "config.json").write_text('{"text_config": {"eos_token_id": 9}}')
    (tmp_path / "chat_template.jinja").write_text("hello")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    config = read_text_config(tmp_path)
    assert config.end_token_ids == (7, 8, 9)
    assert config.chat_templates == {"default": "hello", "tool_use": "tools"}


def test_a_processors_file_has_the_template_where_no_other_file_has_one(tmp_path: Path) -> None:
    (tmp_path / "chat_template.json").write_text('{"chat_template": "hello"}')
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "older"}')
    assert read_text_config(tmp_path).chat_templates == {"default": "hello"}


def test_bad_files_say_which(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"there is no tokenizer\.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match="can't be loaded"):
        Tokenizer.load(tmp_path)
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(TokenizerError, match=r"config\.json"):
        read_text_config(tmp_path)


def test_text_reaches_a_template_that_loops_over_parts_in_silence() -> None:
    source = (
        "{% for m in messages %}{% for p in m['content'] %}{% if p['type'] == 'text' %}{{ p['text'] }}"
        "{% endif %}{% endfor %}{% endfor %}"
    )
    assert render(source, {"conversation": USER}) == "<hé>"


def test_ends_that_are_no_token_of_the_model_are_dropped(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [-1, true, 7, 262]}')
    (tmp_path / "config.json").write_text('{"vocab_size": 262}')
    assert read_text_config(tmp_path).end_token_ids == (7,)
