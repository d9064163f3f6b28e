"""Grammars of answers with calls and reasoning: what fits them, where markers are tokens and where text."""

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from millrace_runtime.chat.parsers.parameter_types import ParameterTypes
from millrace_runtime.chat.parsers.registry import TOOL_FORMATS, list_markers, open_parser
from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.grammar.any_json import write_well_formed
from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.grammar.formats.line_calls import LINE_FORMATS
from millrace_runtime.grammar.grammar import write_grammar
from millrace_runtime.grammar.lark import LarkWriter
from millrace_runtime.grammar.matcher import Vocabulary
from millrace_runtime.grammar.parameters import CallableTool
from millrace_runtime.grammar.reasoning import write_channels, write_final, write_thought
from millrace_runtime.grammar.source import GrammarKind
from millrace_runtime.grammar.tools import write_either, write_forced, write_free
from testing.text_model import build_byte_level, write_model
from tests.runtime.chat.answers import ANSWERS
from tests.runtime.grammar.fitting import Fitting

FIND = {
    "type": "object",
    "properties": {
        "who": {"$ref": "#/$defs/Name"},
        "note": {"type": "string"},
        "size": {"type": "integer", "maximum": 9},
    },
    "required": ["who"],
    "additionalProperties": False,
    "$defs": {"Name": {"enum": ["x", "y"], "type": "string"}},
}
ANY = {"type": "object"}
SECTION = "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>"
CALL = "<｜tool▁call▁begin｜>{}<｜tool▁call▁end｜>"
QUOTE = '<|"|>'
KIMI = "<|tool_call_begin|>functions.{}:0<|tool_call_argument_begin|>{}<|tool_call_end|>"


class Form(NamedTuple):
    """How a test writes the calls of a format."""

    write: Callable[[str, dict[str, Any]], str]
    between: str | None
    """None: one call alone is forced."""
    around: str = "{}"


def write_parts(arguments: dict[str, Any], part: str) -> str:
    values = {key: item if isinstance(item, str) else json.dumps(item) for key, item in arguments.items()}
    return "".join(part.format(key, text) for key, text in values.items())


def write_keywords(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{key}={json.dumps(item)}" for key, item in arguments.items())


def write_gemma(arguments: dict[str, Any], quote: str) -> str:
    values = {
        key: f"{quote}{item}{quote}" if isinstance(item, str) else item for key, item in arguments.items()
    }
    return "{" + ",".join(f"{key}:{value}" for key, value in values.items()) + "}"


FORMS = {
    "deepseek_v3": Form(
        lambda name, args: CALL.format(f"function<｜tool▁sep｜>{name}\n```json\n{json.dumps(args)}\n```"),
        "\n",
        SECTION,
    ),
    "deepseek_v31": Form(
        lambda name, args: CALL.format(f"{name}<｜tool▁sep｜>{json.dumps(args)}"), "", SECTION
    ),
    "functiongemma": Form(
        lambda name, args: f"<start_function_call>call:{name}{write_gemma(args, '<escape>')}"
        "<end_function_call>",
        "",
    ),
    "gemma4": Form(lambda name, args: f"<|tool_call>call:{name}{write_gemma(args, QUOTE)}<tool_call|>", ""),
    "glm4": Form(lambda name, args: f"{name}\n{json.dumps(args)}", None),
    "glm45": Form(
        lambda name, args: f"<tool_call>{name}\n"
        + write_parts(args, "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n")
        + "</tool_call>",
        "\n",
    ),
    "granite": Form(
        lambda name, args: f'{{"name": "{name}", "arguments": {json.dumps(args)}}}', ", ", "<|tool_call|>[{}]"
    ),
    "harmony": Form(
        lambda name, args: f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
        + json.dumps(args),
        None,
    ),
    "hermes": Form(
        lambda name, args: f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(args)}}}'
         "\n</tool_call>",
        "\n",
    ),
    "internlm": Form(
        lambda name, args: "<|action_start|><|plugin|>\n"
        f'{{"name": "{name}", "parameters": {json.dumps(args)}}}<|action_end|>',
        "",
    ),
    "kimi_k2": Form(
        lambda name, args: KIMI.format(name, json.dumps(args)),
        "",
        "<|tool_calls_section_begin|>{}<|tool_calls_section_end|>",
    ),
    "llama3": Form(lambda name, args: f'{{"name": "{name}", "parameters": {json.dumps(args)}}}', None),
    "minicpm3": Form(
        lambda name, args: f"{name}({write_keywords(args)})",
        "\n",
        "<|tool_call_start|>\n```python\n{}\n```\n<|tool_call_end|>",
    ),
    "mistral": Form(lambda name, args: f"[TOOL_CALLS]{name}[ARGS]{json.dumps(args)}", ""),
    "nemotron": Form(
        lambda name, args: f'{{"name": "{name}", "arguments": {json.dumps(args)}}}',
        ", ",
        "<TOOLCALL>[{}]</TOOLCALL>",
    ),
    "phi4_mini": Form(
        lambda name, args: f'{{"name": "{name}", "arguments": {json.dumps(args)}}}',
        ", ",
        "<|tool_call|>[{}]<|/tool_call|>",
    ),
    "phi4_mini_json": Form(
        lambda name, args: f'{{"name": "{name}", "arguments": {json.dumps(args)}}}', ", ", "functools[{}]"
    ),
    "pythonic": Form(lambda name, args: f"{name}({write_keywords(args)})", ", ", "[{}]"),
    "qwen3_coder": Form(
        lambda name, args: f"<tool_call>\n<function={name}>\n"
        + write_parts(args, "<parameter={}>\n{}\n</parameter>\n")
        + "</function>\n</tool_call>",
        "\n",
    ),
    "seed_oss": Form(
        lambda name, args: f"<seed:tool_call>\n<function={name}>\n"
        + write_parts(args, "<parameter={}>{}</parameter>\n")
        + "</function>\n</seed:tool_call>",
        "\n",
    ),
}  # fmt: skip
LIST = Form(
    lambda name, args: f'{{"name":"{name}", "arguments": {json.dumps(args)}}}', ", ", "[TOOL_CALLS] [{}]"
)
"""Of Mistral's older vocabularies."""
GOOD: list[dict[str, Any]] = [{"who": "x"}, {"who": "y", "note": 'a\n"}', "size": 7}]
BAD: list[dict[str, Any]] = [{"who": "z"}, {"size": 1}, {"who": "x", "size": 10}]


class Model(NamedTuple):
    """A vocabulary."""

    tokenizer: Tokenizer
    vocabulary: Vocabulary

    def open(self, grammar: str, before: str = "", kind: GrammarKind = GrammarKind.LARK) -> Fitting:
        return Fitting(self.vocabulary, self.tokenizer, write_grammar(kind, grammar, before))

    @property
    def lark(self) -> LarkWriter:
        return LarkWriter(self.tokenizer.added_ids)


@cache
def load(*, has_tokens: bool) -> Model:
    """A model whose markers are tokens, or are text."""
    native = build_byte_level()
    markers = {mark for name in TOOL_FORMATS for mark in list_markers(name, "think")} - {"[CALL_ID]"}
    native.add_special_tokens(["<eos>"])
    native.add_tokens([AddedToken(marker, special=False) for marker in sorted(markers if has_tokens else ())])
    with TemporaryDirectory() as folder:
        tokenizer = Tokenizer.load(write_model(Path(folder), native, end_token="<eos>"))
    return Model(tokenizer, Vocabulary(tokenizer))


def list_tools(*, is_strict: bool = True) -> list[CallableTool]:
    tools = [{"function": {"name": "find", "parameters": FIND}}]
    find = CallableTool("find", FIND if is_strict else ANY, ParameterTypes(tools, "find"))
    return [find, CallableTool("stop", {**ANY, "additionalProperties": False}, ParameterTypes([], "stop"))]


def form_of(tool_format: str, *, has_tokens: bool) -> Form:
    return LIST if tool_format == "mistral" and not has_tokens else FORMS[tool_format]


def write_calls(form: Form, *calls: str) -> str:
    return form.around.format((form.between or "").join(calls))


CASES = [(name, has_tokens) for name in sorted(TOOL_FORMATS) for has_tokens in (True, False)]


@pytest.mark.parametrize(("tool_format", "has_tokens"), CASES)
def test_a_forced_answer_is_a_call_that_fits(tool_format: str, *, has_tokens: bool) -> None:
    model, form, tools = (
        load(has_tokens=has_tokens),
        form_of(tool_format, has_tokens=has_tokens),
        list_tools(),
    )
    grammar = model.open(write_forced(tool_format, tools, model.lark, is_one_call=False))
    good = [write_calls(form, form.write("find", args)) for args in GOOD] + [
        write_calls(form, form.write("stop", {}))
    ]
    assert [text for text in good if not grammar.fits(text)] == []
    several = write_calls(form, form.write("stop", {}), form.write("find", GOOD[1]))
    assert grammar.fits(several) == (form.between is not None)
    bad = [write_calls(form, form.write("find", args)) for args in BAD]
    bad += [write_calls(form, form.write("fly", {})), "Well.", f"So: {good[0]}", ""]
    assert [text for text in bad if grammar.fits(text)] == []
    one = model.open(write_forced(tool_format, tools, model.lark, is_one_call=True))
    assert (one.fits(good[0]), one.fits(several)) == (True, False)


FREE = {
    "glm4": ('I look\n{"a": find}\n', "\n"),
    "pythonic": ("I look [find]\n", "\n"),
    "llama3": ('I look: {"name"\n{}\n', ""),
    "harmony": ("", ""),
}
"""What stands around the calls of a free answer."""


@pytest.mark.parametrize(("tool_format", "has_tokens"), CASES)
def test_a_free_answer_is_bound_in_its_calls_alone(tool_format: str, *, has_tokens: bool) -> None:
    model, form = load(has_tokens=has_tokens), form_of(tool_format, has_tokens=has_tokens)
    head, tail = FREE.get(tool_format, ("Is <think>\n", "\n\nDone.</think>"))
    text = "<|channel|>final<|message|>" if tool_format == "harmony" else ""
    free = [f"{text}{answer}" for answer in ("", "Hello {", '{"name": "Ann"}', "<think>x</think>\n")]
    good = [f"{head}{write_calls(form, form.write('find', args))}{tail}" for args in GOOD]
    bad = [f"{head}{write_calls(form, form.write('find', args))}{tail}" for args in BAD]
    grammar = model.open(write_free(tool_format, list_tools(), model.lark))
    assert [answer for answer in [*free, *good] if not grammar.fits(answer)] == []
    assert [answer for answer in bad if grammar.fits(answer)] == []
    assert tool_format == "harmony" or grammar.fits(good[0].removeprefix(head).removesuffix(tail))
    lax = model.open(write_free(tool_format, list_tools(is_strict=False), model.lark))
    assert [answer for answer in [*free, *good, *bad] if not lax.fits(answer)] == []


@pytest.mark.parametrize(("tool_format", "has_tokens"), CASES)
def test_256_tools_are_called_by_their_schemas(tool_format: str, *, has_tokens: bool) -> None:
    model, form = load(has_tokens=has_tokens), form_of(tool_format, has_tokens=has_tokens)
    schema = {**ANY, "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    known = [{"function": {"name": f"f{place}", "parameters": schema}} for place in range(256)]
    tools = [CallableTool(f"f{place}", schema, ParameterTypes(known, f"f{place}")) for place in range(256)]
    grammar = model.open(write_forced(tool_format, tools, model.lark, is_one_call=False))
    assert grammar.fits(write_calls(form, form.write("f254", {"n": 1})))


@pytest.mark.parametrize("is_forced", [True, False])
@pytest.mark.parametrize(("tool_format", "has_tokens"), CASES)
def test_a_thousand_tools_are_called_with_any_object(
    tool_format: str, *, has_tokens: bool, is_forced: bool
) -> None:
    model, form = load(has_tokens=has_tokens), form_of(tool_format, has_tokens=has_tokens)
    others = [f"f{place}" for place in range(1023)]
    tools = [CallableTool("find", ANY, ParameterTypes([], "find"), others=others)]
    forced = write_forced(tool_format, tools, model.lark, is_one_call=True)
    grammar = model.open(forced if is_forced else write_free(tool_format, tools, model.lark))
    escaped = form.write("f1022", {"who": "Zoë 😀"})
    texts = [
        escaped,
        escaped.replace("Zoë 😀", r"Zo\u00eb \ud83d\ude00"),
        form.write("find", {"a": [1.5]}),
    ]
    assert [call for call in texts if not grammar.fits(write_calls(form, call))] == []
    is_free = tool_format in LINE_FORMATS and not is_forced
    assert is_free or not grammar.fits(write_calls(form, form.write("fly", {})))


@pytest.mark.parametrize("has_tokens", [True, False])
@pytest.mark.parametrize(
    ("tool_format", "other"),
    [("granite", "<tool_call>"), ("phi4_mini", "functools["), ("phi4_mini_json", "<|tool_call|>")],
)
def test_no_call_hides_behind_another_opening(tool_format: str, other: str, *, has_tokens: bool) -> None:
    model, form = load(has_tokens=has_tokens), FORMS[tool_format]
    grammar = model.open(write_free(tool_format, list_tools(), model.lark))
    call = write_calls(form, form.write("find", GOOD[0]))
    hidden = f'{other}{{"name": "fly", "arguments": {{}}}}'
    good = ["I look. ", f"{call} <think>", f"func {call} <tool_cal", "functools.partial, <|/tool_call|>"]
    assert [text for text in good if not grammar.fits(text)] == []
    assert [
        text for text in (hidden, f"So {hidden}", f"{call} {hidden}", f"{hidden}{call}") if grammar.fits(text)
    ] == []


WELL_FORMED = {
    "granite": "<|tool_call|>{}",
    "phi4_mini": "<|tool_call|>{}<|/tool_call|>",
    "hermes": "<tool_call>{}</tool_call>",
    "internlm": "<|action_start|><|plugin|>{}<|action_end|>",
    "nemotron": "<TOOLCALL>{}</TOOLCALL>",
    "mistral": "[TOOL_CALLS]f[ARGS]{}",
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
    "<｜tool▁calls▁end｜>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}"
    "<|tool_call_end|><|tool_calls_section_end|>",
}


@pytest.mark.parametrize("tool_format", sorted(TOOL_FORMATS))
def test_the_json_of_calls_is_well_formed_and_all_else_is_free(tool_format: str) -> None:
    model = load(has_tokens=True)
    written = write_well_formed(tool_format, model.lark)
    assert (written is not None) == (tool_format in WELL_FORMED)
    if written is None:
        return
    grammar, form = model.open(written), WELL_FORMED[tool_format]
    head, tail = form.split("{}")
    objects = ['{"arguments": {"a": "\\u00eb"}, "name": "f"}', "\n\n{}\n", "[]", '{"a": [1, {"b": null}]} {}']
    calls = [f"{head}{text}{tail}" for text in objects]
    mentions = [f"{head}{text}" for text in ("", "` and more", " no", "\n", "<think>x</think>{")]
    good = ["", "Hello {", *calls, *(text * 2 + " Done." for text in calls), *mentions]
    assert [text for text in good if not grammar.fits(text)] == []
    bad = ['{"a": 1', '{"a": 01}', "{a: 1}", '{"a": 1,}', "{'a': 1}", '{"a" 1}']
    assert [text for text in bad if grammar.fits(f"{head}{text}{tail}")] == []


def test_what_the_parser_of_hermes_reads_whole_is_well_formed() -> None:
    model = load(has_tokens=True)
    grammar = model.open(write_well_formed("hermes", model.lark) or "")
    texts = [text for name, text, *_ in ANSWERS if name == "hermes" and "[<tool_call>" not in text]
    texts = [text for text in texts if text.endswith(("}</tool_call>", "Done."))]
    assert len(texts) > 2
    assert [text for text in texts if not grammar.fits(text)] == []


@pytest.mark.parametrize("is_open", [True, False])
def test_a_text_may_end_in_its_reasoning(*, is_open: bool) -> None:
    model = load(has_tokens=True)
    answer = write_well_formed("hermes", model.lark)
    assert answer is not None
    ahead = write_thought(model.lark, "<think>", "</think>", is_open=is_open, may_end=True)
    grammar = model.open(answer, ahead, GrammarKind.LARK)
    head = "" if is_open else "<think>"
    call = write_calls(FORMS["hermes"], FORMS["hermes"].write("find", GOOD[0]))
    assert all(map(grammar.fits, [f"{head}Hm. <tool_call>", f"{head}</think>", f"{head}</think>\n\n{call}"]))
    assert not grammar.fits(f"{head}</think>{call[:-20]}")


@pytest.mark.parametrize(("tool_format", "has_tokens"), CASES)
def test_the_parser_reads_what_the_grammar_binds(tool_format: str, *, has_tokens: bool) -> None:
    form = form_of(tool_format, has_tokens=has_tokens)
    parser = open_parser(tool_format, None, tools=[{"function": {"name": "find", "parameters": FIND}}])
    calls = [*parser.feed(write_calls(form, form.write("find", GOOD[1]))).calls, *parser.finish().calls]
    assert json.loads("".join(call.arguments for call in calls)) == GOOD[1]


HEADS = {
    "glm4": ("", "\n", "x\n", "x\n ", "<|assistant|>", "x<|assistant|> ", "```\n", 'find\n{"who": "x"}'),
    "pythonic": (
        *(
            "",
            "\n",
            "x\n",
            "x\n ",
            "<|python_start|>",
            "x<|python_start|> ",
            "<|python_tag|>",
            "x<|python_tag|>",
        ),
        *("```python\n", "x\n```tool_code\n", "```tool_code\n ", "x\n```tool_code", '[find(who="x")] '),
    ),
}
BODIES = {
    "glm4": ("find\n{}", "find \n{}", "find\n\n {}", "find\t\n {}"),
    "pythonic": ('[find(who="z")]', '[ find(who="z")]', "[\nfind()]", "[find( who='z')]", "[find (who=1)]"),
}


@pytest.mark.parametrize("has_tokens", [True, False])
@pytest.mark.parametrize("tool_format", HEADS)
def test_a_strict_tool_has_no_call_beside_its_grammar(tool_format: str, *, has_tokens: bool) -> None:
    """A parser that took another spelling of a call's beginning would take it unbound."""
    model = load(has_tokens=has_tokens)
    grammar = model.open(write_free(tool_format, list_tools(), model.lark))
    found = set()
    for text in (
        f"{head}{body}{end}"
        for head in HEADS[tool_format]
        for body in BODIES[tool_format]
        for end in ("", "\n")
    ):
        parser = open_parser(tool_format, None, tools=[{"function": {"name": "find", "parameters": FIND}}])
        calls = [*parser.feed(text).calls, *parser.finish().calls]
        is_bad = any(json.loads(call.arguments) not in GOOD for call in calls)
        found |= {(is_bad, grammar.fits(text))}
    assert found == {(True, False), (False, True), (False, False)}


@pytest.mark.parametrize("name", ["find", "note", "t", "true", "null", "1", "get"])
def test_a_list_of_calls_forbids_no_list_of_the_clients(name: str) -> None:
    model, tool = load(has_tokens=True), CallableTool(name, ANY, ParameterTypes([], name))
    lark = model.lark
    answer = lark.write(write_either("pythonic", [tool], lark, is_one_call=False))
    grammar = model.open('{"type": "array"}', answer, GrammarKind.SCHEMA)
    texts = ["[]", "[false]", "[ null, 1]", "[true, true]", "[12]", '["x"]', f"[{name}(a=[1]), {name}()]"]
    assert [text for text in texts if not grammar.fits(text)] == []


def open_keyword(key: str) -> tuple[list[dict[str, Any]], CallableTool]:
    """A tool with one parameter: as a request has it, and as a grammar does."""
    schema = {**ANY, "properties": {key: {"type": "string"}}, "required": [key]}
    known = [{"function": {"name": "f", "parameters": schema}}]
    return known, CallableTool("f", schema, ParameterTypes(known, "f"))


@pytest.mark.parametrize("key", ["from", "a-b", "$x", "ü", "a.b", "*"])
@pytest.mark.parametrize("tool_format", ["minicpm3", "pythonic"])
def test_a_keyword_is_any_word(tool_format: str, key: str) -> None:
    model, form, (known, tool) = load(has_tokens=True), FORMS[tool_format], open_keyword(key)
    text, parser = write_calls(form, form.write("f", {key: "v"})), open_parser(tool_format, None, tools=known)
    assert model.open(write_free(tool_format, [tool], model.lark)).fits(text)
    [call] = [*parser.feed(text).calls, *parser.finish().calls]
    assert json.loads(call.arguments) == {key: "v"}


@pytest.mark.parametrize("key", ["x[0]", "city name", "a,b", "a=b", "<k>", "it's", "#a", "b\\", ""])
@pytest.mark.parametrize("tool_format", ["minicpm3", "pythonic"])
def test_a_keyword_that_is_no_word_is_refused(tool_format: str, key: str) -> None:
    _, tool = open_keyword(key)
    with pytest.raises(GrammarError, match=re.escape(f"in `f`, `#/properties/{key}`")):
        write_free(tool_format, [tool], LarkWriter({}))


def test_any_value_of_a_keyword_is_the_same_in_python() -> None:
    model = load(has_tokens=True)
    tool = CallableTool("f", ANY, ParameterTypes([], "f"))
    grammar = model.open(write_forced("pythonic", [tool], model.lark, is_one_call=True))
    assert [grammar.fits(f'[f(a="{text}")]') for text in (r"\/", r"\n\\/\u00e9")] == [False, True]


@pytest.mark.parametrize("has_tokens", [True, False])
@pytest.mark.parametrize(
    ("kind", "source"),
    [
        (GrammarKind.SCHEMA, '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}'),
        (GrammarKind.REGEX, r'\{"a": \d\}'),
        (GrammarKind.CHOICE, '["{\\"a\\": 1}"]'),
        (GrammarKind.GRAMMAR, 'start: "{" "\\"a\\": " X "}"\nX: /[0-9]/'),
    ],
)
def test_an_answer_is_bound_behind_its_reasoning(kind: GrammarKind, source: str, *, has_tokens: bool) -> None:
    model, answer, thought = load(has_tokens=has_tokens), '{"a": 1}', 'Hm. {"b <tool_call>\n</think>'
    possible, opened = (
        model.open(source, write_thought(model.lark, "<think>", "</think>", is_open=is_open), kind)
        for is_open in (False, True)
    )
    good = [answer, f"<think>{thought}{answer}", f"<think>\n{thought}\n\n{answer}"]
    assert [text for text in good if not possible.fits(text)] == []
    assert [
        text for text in ("Hm.", f"{thought}{answer}", f"<think>{thought}No.") if possible.fits(text)
    ] == []
    assert [opened.fits(text.removeprefix("<think>")) for text in good] == [False, True, True]
    begin = "<|channel|>{}<|message|>"
    messages = model.open(source, write_channels(model.lark, write_final(model.lark)), kind)
    final = begin.format("final") + answer
    assert messages.fits(final)
    assert messages.fits(f"{begin.format('analysis')}Hm. {{<|end|><|start|>assistant{final}")
    assert not messages.fits(answer)


@pytest.mark.parametrize(("tool_format", "has_tokens"), CASES)
def test_an_answer_may_be_a_call_or_what_the_client_binds(tool_format: str, *, has_tokens: bool) -> None:
    model, form = load(has_tokens=has_tokens), form_of(tool_format, has_tokens=has_tokens)
    lark = model.lark
    answer = lark.write(write_either(tool_format, list_tools(), lark, is_one_call=True))
    schema = {"properties": {"name": {"type": "string"}}, "additionalProperties": False, "type": "object"}
    grammar = model.open(json.dumps(schema), answer, GrammarKind.SCHEMA)
    final = "<|channel|>final<|message|>" if tool_format == "harmony" else ""
    good = [f'{final}{{"name": "Ada"}}', f"{final}{{}}", write_calls(form, form.write("find", GOOD[1]))]
    bad = ["", "Hi", f'{final}{{"name": 1}}', write_calls(form, form.write("find", BAD[0]))]
    assert [text for text in good if not grammar.fits(text)] == []
    assert [text for text in bad if grammar.fits(text)] == []


NODE = {"type": "object", "properties": {"to": {"$ref": "#/$defs/Node"}, "n": {"type": "integer"}}}
NESTED = {
    "type": "object",
    "properties": {
        "any": True,
        "kind": {"enum": ["a", 1, None]},
        "node": {"$ref": "#/$defs/Node"},
        "rows": {"type": "array", "items": {"type": ["string", "null"]}},
        "way": {"anyOf": [{"type": "boolean"}, {"type": "object"}]},
    },
    "required": ["rows"],
    "$defs": {"Node": NODE},
}


def test_gemma_writes_nested_values_without_json() -> None:
    model = load(has_tokens=True)
    tool = CallableTool("f", NESTED, ParameterTypes([], "f"))
    grammar = model.open(write_forced("functiongemma", [tool], model.lark, is_one_call=True))
    call, text = "<start_function_call>call:f{{{}}}<end_function_call>", "<escape>{}<escape>"
    good = [
        "rows:[]",
        f"any:{{a:[1,{text}]}},kind:1,node:{{to:{{to:{{n:2}}}},n:-3}},rows:[{text},null],way:true",
        f"kind:{text.format('a')},rows:[null],way:{{b:1.5e3}}",
        "node:{n:1},rows:[]",
    ]
    bad = [
        "",
        "rows:[1]",
        "kind:2,rows:[]",
        "rows:[],node:{}",
        "node:{n:true},rows:[]",
        "rows:[],",
        ",rows:[]",
    ]
    assert [inner for inner in good if not grammar.fits(call.format(inner))] == []
    assert [inner for inner in bad if grammar.fits(call.format(inner))] == []


def test_tools_that_make_a_grammar_too_long_are_refused() -> None:
    numbers = {f"p{number}": {"$ref": "#/$defs/Large"} for number in range(200)}
    schema = {"type": "object", "properties": numbers, "$defs": {"Large": {"enum": ["x" * 1000]}}}
    tool = CallableTool("f", schema, ParameterTypes([{"function": {"name": "f", "parameters": schema}}], "f"))
    with pytest.raises(GrammarError, match="shorten it"):
        write_forced("qwen3_coder", [tool], LarkWriter({}), is_one_call=True)


def test_a_parameter_has_the_definitions_that_it_refers_to() -> None:
    integer = {"type": "integer"}
    schema = {"properties": {"a": integer, "b": {"$ref": "#/$defs/Large"}}, "$defs": {"Large": integer}}
    tool = CallableTool("f", schema, ParameterTypes([{"function": {"name": "f", "parameters": schema}}], "f"))
    assert write_forced("glm45", [tool], LarkWriter({}), is_one_call=True).count("$defs/") == 1
    assert write_forced("glm45", [tool], LarkWriter({}), is_one_call=True).count('"$defs"') == 1


def test_a_text_that_looks_like_a_schema_of_ours_stays() -> None:
    model, text = load(has_tokens=False), 'say "%json {"title": 1}"/'
    schema = {"properties": {"a": {"type": "string", "const": text}}, "required": ["a"]}
    tool = CallableTool("f", schema, ParameterTypes([{"function": {"name": "f", "parameters": schema}}], "f"))
    grammar = model.open(write_forced("glm45", [tool], model.lark, is_one_call=True))
    assert grammar.fits(FORMS["glm45"].write("f", {"a": text}))


WORDS = (
    "enum const anyOf oneOf allOf type items required properties $ref $defs uniqueItems propertyNames not "  # noqa: SIM905
    "pattern minItems maxItems format $comment unevaluatedProperties if then x-guidance x-millrace".split(" ")
)
JSON = st.recursive(
    st.sampled_from([None, True, 5, "object", "string", "array", "#/$defs/a"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from([*WORDS, "a"]), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["type", "a", "$defs"]), JSON), st.sampled_from(sorted(TOOL_FORMATS)))
def test_any_parameters_are_written_or_refused(parameters: dict[str, Any], tool_format: str) -> None:
    schema = {"type": "object", "properties": parameters, **parameters}
    tools = [{"function": {"name": "f", "parameters": schema}}]
    tool = CallableTool("f", schema, ParameterTypes(tools, "f"))
    with contextlib.suppress(GrammarError):
        calls = write_forced(tool_format, [tool], LarkWriter({}), is_one_call=False)
        write_grammar(GrammarKind.LARK, calls)
    with contextlib.suppress(GrammarError):
        write_either(tool_format, [tool], LarkWriter({}), is_one_call=False)


@pytest.mark.parametrize("schema", [{"enum": []}, {"enum": 5}, {"anyOf": 5}, {"type": {}}, {"type": [{}]}])
def test_gemma_refuses_a_schema_that_is_none(schema: dict[str, Any]) -> None:
    tool = CallableTool("f", {**ANY, "properties": {"a": schema}}, ParameterTypes([], "f"))
    with pytest.raises(GrammarError, match=r"list|`type`"):
        write_forced("gemma4", [tool], LarkWriter({}), is_one_call=True)


def test_a_marker_is_looked_up_once() -> None:
    class Counted(dict[str, int]):
        num_reads = 0

        def __iter__(self) -> Iterator[str]:
            self.num_reads += 1
            return super().__iter__()

    added = Counted({"<a>": 1})
    lark = LarkWriter(added)
    assert [lark.mark("<a>b") for _ in range(3)] == ['<[1]> "b"'] * 3
    assert added.num_reads == 1
