"""The parser's limits with as many tokens as real models have: they show in a proof, never in an answer."""

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest

from millrace_runtime.chat.parsers.choose import TOOL_FORMATS
from millrace_runtime.chat.parsers.parameter_types import ParameterTypes
from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.grammar.grammar import Trial
from millrace_runtime.grammar.json_schema.crowds import list_crowds
from millrace_runtime.grammar.lark import LarkWriter
from millrace_runtime.grammar.matcher import Matcher
from millrace_runtime.grammar.parameters import CallableTool
from millrace_runtime.grammar.proof import prove
from millrace_runtime.grammar.source import GrammarKind
from millrace_runtime.grammar.tools import write_forced
from millrace_runtime.grammar.trial import try_beginnings
from tests.runtime.grammar.fitting import load_large_vocabulary, open_schema

TEXT = {"type": "string"}
KINDS = [
    TEXT,
    {"type": "integer"},
    {"enum": ["a", "b"]},
    {"type": "array", "items": TEXT},
    {"anyOf": [TEXT, {}]},
]


def open_object(count: int, name: str = "p", **more: Any) -> dict[str, Any]:
    properties = {f"{name}_{number}": KINDS[number % len(KINDS)] for number in range(count)}
    return {"type": "object", "properties": properties, "additionalProperties": False, **more}


def join(count: int, size: int, **more: Any) -> dict[str, Any]:
    """Return a union as pydantic writes one of models with fields that may be left out."""
    return {"anyOf": [open_object(size, f"p{number}", **more) for number in range(count)]}


def hold(count: int, size: int) -> dict[str, Any]:
    """Return a union of objects whose first property is another one, with the tag behind it."""
    held = [
        {"inner": open_object(size, f"p{number}"), "kind": {"const": f"k{number}"}} for number in range(count)
    ]
    return {"anyOf": [{"type": "object", "properties": one, "required": ["kind"]} for one in held]}


def recur(alternatives: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a schema whose alternatives refer to it."""
    return {"$defs": {"S": {"anyOf": [*alternatives, TEXT]}}, "$ref": "#/$defs/S"}


SELF = {"$ref": "#/$defs/S"}
OBJECTS = [{"type": "object", "properties": {"k": SELF, f"z{number}": SELF}} for number in range(240)]
ARRAYS = [{"type": "array", "items": SELF, "minItems": number} for number in range(200)]


def walk(kind: str, source: str, text: str) -> str | None:
    """Prove a grammar, and return what fails in the masks of a text: a fault, or what does not fit."""
    vocabulary = load_large_vocabulary()
    matcher = Matcher.compile(vocabulary, prove(vocabulary, kind, source, "")).fork([0])
    mask = bytearray(vocabulary.end_bits.nbytes)
    for token in [*vocabulary.native.tokenize_str(text), None]:
        matcher.fill(mask)
        if matcher.fault is not None or token is None:
            return matcher.fault
        if not matcher.accepts(token):
            return f"{token} does not fit"
        matcher.consume(token)
    return None


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (open_object(480), '{\n  "p_0": "x",\n  "p_6": 1'),
        (open_object(170, additionalProperties=True), '{\n"more": 1, "p": 2'),
        (join(20, 30), '{\n\t"p3_0": "x",\n "p3_1": 4'),
        (join(10, 15, additionalProperties=True), '{\n\t"p3_0": "x",\n "p3_1": 4'),
        ({"type": "array", "items": join(20, 30)}, '[{\n"p3_0": "x"}, {\n'),
        (hold(20, 30), '{"inner": {\n"p3_0": "x"}, "kind": "k3"'),
    ],
)
def test_a_schema_that_is_proved_never_fails_in_an_answer(schema: dict[str, Any], text: str) -> None:
    assert walk(GrammarKind.SCHEMA, json.dumps(schema), text) is None


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (open_object(601), "`#` has more than 600 properties that may be left out"),
        (join(21, 30), "`#` has more than 600"),
        (hold(21, 30), "/inner` has more than 600"),
        ({"type": "object", "properties": {"a": join(21, 30)}}, "`#/properties/a` has more than 600"),
        (recur(OBJECTS), "max is 3000.*: make it smaller"),
        (recur(ARRAYS), "takes too long: make it smaller"),
    ],
)
def test_a_schema_with_too_much_is_refused_at_the_start(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        prove(load_large_vocabulary(), GrammarKind.SCHEMA, json.dumps(schema), "")


def open_tool(name: str, schema: dict[str, Any]) -> CallableTool:
    return CallableTool(
        name,
        schema,
        ParameterTypes([{"function": {"name": name, "parameters": schema}}], name),
        is_strict=True,
    )


CALLS = {
    "hermes": "<tool_call>\n{%s",
    "llama3": "{%s",
    "mistral": "[TOOL_CALLS] [{%s",
    "granite": "<|tool_call|>[{%s",
}


@pytest.mark.parametrize("tool_format", CALLS)
@pytest.mark.parametrize("blank", [" ", "\n  ", "\r\n"])
def test_a_forced_call_of_many_tools_may_have_blanks(tool_format: str, blank: str) -> None:
    small = {"type": "object", "properties": {"a": TEXT}, "required": ["a"]}
    tools = [open_tool(f"tool_{number}", small) for number in range(256)]
    begun = CALLS[tool_format] % f'{blank}"name":{blank}"tool_7"{blank},{blank}"'
    assert (
        walk(GrammarKind.LARK, write_forced(tool_format, tools, LarkWriter({}), is_one_call=True), begun)
        is None
    )


FIRST_PARAMETERS = {
    "glm45": "<tool_call>f\n<arg_key>",
    "harmony": "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\n",
    "hermes": '<tool_call>\n{"name": "f", "arguments": {\n',
    "pythonic": "[f(",
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=",
}


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
def test_a_tool_of_many_parameters_is_called_by_its_schema(tool_format: str) -> None:
    tool = open_tool("f", open_object(170))
    call = write_forced(tool_format, [tool], LarkWriter({}), is_one_call=True)
    if tool_format in FIRST_PARAMETERS:
        assert walk(GrammarKind.LARK, call, FIRST_PARAMETERS[tool_format]) is None
    assert "p_169" in prove(load_large_vocabulary(), GrammarKind.LARK, call, "").text


@pytest.mark.parametrize("count", [1, 4096])
def test_an_answer_may_be_one_of_many_texts(count: int) -> None:
    assert walk(GrammarKind.CHOICE, json.dumps([f"w{number} x" for number in range(count)]), "w0 x") is None


@pytest.mark.parametrize("keyword", ["minimum", "exclusiveMinimum"])
@pytest.mark.parametrize("bound", [-(2**63), -(2**63) - 1, -(2.0**63), -1e300])
def test_the_lowest_integers_are_bounds(keyword: str, bound: float) -> None:
    grammar = open_schema({"type": "integer", keyword: bound, "maximum": 2**63 - 1})
    assert all(map(grammar.fits, ["-5", "0", str(2**63 - 1)]))


def test_a_mask_that_takes_too_long_is_measured_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial("`#`", json.dumps({"grammars": [{"json_schema": TEXT}]}), ['"'])
    slow = [0, 1, 1, 1.001]
    """The first mask builds the lexer."""
    monkeypatch.setattr(time, "thread_time", lambda: slow.pop(0) if slow else 2.0)
    try_beginnings(load_large_vocabulary(), trial)
    assert not slow


@pytest.mark.parametrize(
    ("schema", "places", "beginning"),
    [
        ({"allOf": [open_object(60), open_object(60)]}, [["#"]], '{"p_3": [""]}'),
        ({"allOf": [open_object(60), {"required": [f"p_{number}" for number in range(20)]}]}, [], ""),
        (open_object(49), [], ""),
        (open_object(60), [["#"]], '{"p_3": [""]}'),
        (recur(ARRAYS), [["#"]], "[[[[]]]]"),
        (recur(OBJECTS), [["#"]], '{"k": {"k": {"k": {}}}}'),
        ({"items": {"anyOf": [open_object(60), TEXT]}}, [["#/items"]], '{"p_3": [""]}'),
        (hold(2, 40), [["#/anyOf/0/properties/inner", "#/anyOf/1/properties/inner"]], '{"p0_3": [""]}'),
        (
            {
                "anyOf": [
                    {
                        "properties": {"kind": {"const": kind}, "inner": open_object(40, kind)},
                        "required": ["kind"],
                    }
                    for kind in "ab"
                ]
            },
            [],
            "",
        ),
    ],
)
def test_a_crowd_is_what_may_open_together(
    schema: dict[str, Any], places: Sequence[Sequence[str]], beginning: str
) -> None:
    crowds = list_crowds(schema)
    assert [sorted(crowd.paths) for crowd in crowds] == places
    assert all(crowd.beginning == beginning for crowd in crowds)
