"""The parser's limits with as many tokens as real models have: they show in a proof, never in an answer."""

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest

from millrace_runtime.chat.parsers.parameter_types import ParameterTypes
from millrace_runtime.chat.parsers.registry import TOOL_FORMATS
from millrace_runtime.grammar import proof
from millrace_runtime.grammar.documents import Origin
from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.grammar.grammar import Document, Trial, list_trials, write_grammar
from millrace_runtime.grammar.json_schema.crowds import VALUE, list_crowds
from millrace_runtime.grammar.lark import LarkWriter
from millrace_runtime.grammar.matcher import Matcher
from millrace_runtime.grammar.messages import TOO_LONG
from millrace_runtime.grammar.parameters import CallableTool
from millrace_runtime.grammar.proof import prove
from millrace_runtime.grammar.proof_server import PROVISIONAL_SECONDS, KeptOutcomes, Source
from millrace_runtime.grammar.source import GrammarKind
from millrace_runtime.grammar.tools import write_either, write_forced
from millrace_runtime.grammar.trial import try_beginnings
from millrace_runtime.protocol.messages import Grammar
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


def tag(count: int, size: int) -> dict[str, Any]:
    """Return a union of models that a constant tells apart, as pydantic and zod write it."""
    models = [open_object(size, f"p{number}", required=["kind"]) for number in range(count)]
    for number, model in enumerate(models):
        model["properties"] = {"kind": {"const": f"k{number}"}, **model["properties"]}
    return {"oneOf": models}


def inherit(count: int, size: int) -> dict[str, Any]:
    """Return a union of models that have a base in common, as OpenAPI writes it."""
    base = {"type": "object", "properties": {f"b_{number}": TEXT for number in range(size)}}
    tags = [
        {"properties": {"kind": {"const": f"k{number}"}}, "required": ["kind"]} for number in range(count)
    ]
    return {"$defs": {"Base": base}, "anyOf": [{"allOf": [{"$ref": "#/$defs/Base"}], **one} for one in tags]}


def recur(alternatives: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a schema whose alternatives refer to it."""
    return {"$defs": {"S": {"anyOf": [*alternatives, TEXT]}}, "$ref": "#/$defs/S"}


SELF = {"$ref": "#/$defs/S"}
OBJECTS = [{"type": "object", "properties": {"k": SELF, f"z{number}": SELF}} for number in range(240)]
ARRAYS = [{"type": "array", "items": SELF, "minItems": number} for number in range(400)]


NAMES = ["billing details", "Eintr", "^(.*)$", "50%25", "x[0]", "a{b}", "a<b>", "a|b#", 'a"b', "a\\b"]


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
        (open_object(740), '{\n  "p_0": "x",\n  "p_6": 1'),
        (open_object(740, additionalProperties=True), '{\n"more": 1, "p": 2'),
        (join(24, 30), '{\n\t"p3_0": "x",\n "p3_1": 4'),
        (join(20, 30, additionalProperties=True), '{\n\t"p3_0": "x",\n "p3_1": 4'),
        ({"type": "array", "items": join(24, 30)}, '[{\n"p3_0": "x"}, {\n'),
        (hold(24, 30), '{"inner": {\n"p3_0": "x"}, "kind": "k3"'),
        (tag(60, 30), '{"kind": "k7",\n"p7_3": ["x"],\n'),
        (inherit(20, 30), '{"b_3": "x",\n"kind": "k7"'),
        ({"properties": {"a b": tag(21, 30)}}, '{"a b": {\n"kind": "k7",\n"p7_3": ["x"],\n'),
        *(({"properties": {name: open_object(50)}}, f"{{{json.dumps(name)}: {{\n") for name in NAMES),
    ],
)
def test_a_schema_that_is_proved_never_fails_in_an_answer(schema: dict[str, Any], text: str) -> None:
    assert walk(GrammarKind.SCHEMA, json.dumps(schema), text) is None


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (open_object(760), "`#`: .*max is 3000.*: make it smaller, or list properties in `required`"),
        (join(26, 30), "`#`: .*max is 3000"),
        (hold(26, 30), "/inner`: .*max is 3000"),
        (inherit(35, 30), "`#`: .*max is 3000"),
        ({"properties": {"a b": join(26, 30)}}, "`#/properties/a b`: .*max is 3000"),
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
@pytest.mark.parametrize("bound", [-(2**63), -(2**63) - 1, 512 - 2**63, 1023 - 2**63, -1e300])
def test_the_lowest_integers_are_bounds(keyword: str, bound: float) -> None:
    grammar = open_schema({"type": "integer", keyword: bound, "maximum": 2**63 - 1})
    assert all(map(grammar.fits, ["-5", "0", str(2**63 - 1)]))


def test_a_mask_that_takes_too_long_is_measured_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    grammar = json.dumps({"grammars": [{"json_schema": TEXT}]})
    slow = [0, 1, 1, 1.001]
    """The first mask builds the lexer."""
    monkeypatch.setattr(time, "thread_time", lambda: slow.pop(0) if slow else 2.0)
    try_beginnings(load_large_vocabulary(), grammar, [Trial("`#`", "", ['"'])])
    assert not slow


@pytest.mark.parametrize(
    "known",
    [
        {"type": "string", "format": "uuid"},
        {"type": "string", "pattern": "^[A-Z]{3}-x, y$"},
        {"type": "integer", "minimum": 70},
        {"enum": [None, True]},
        {"type": "array", "minItems": 2, "items": open_object(2, required=["p_0", "p_1"])},
    ],
)
def test_a_trial_goes_past_values_that_must_be_there(known: dict[str, Any]) -> None:
    members = {"id": known, "much": open_object(760)}
    schema = {"type": "object", "properties": members, "required": [*members]}
    grammar = write_grammar(GrammarKind.SCHEMA, json.dumps(schema))
    with pytest.raises(GrammarError, match="max is 3000"):
        try_beginnings(load_large_vocabulary(), grammar, [Trial("", "{", [f'"id": {VALUE}, "much": {{'])])


def test_one_slow_measurement_is_not_kept() -> None:
    kept, source = KeptOutcomes(), Source("schema", "{}", "")
    kept.put(source, f"`#`: a mask {TOO_LONG}: make it smaller")
    assert kept.get(source) is None
    kept.put(source, "it is no JSON schema")
    assert kept.get(source) is not None


@pytest.mark.parametrize("fails", ["mask", "compile"])
def test_a_tool_that_lost_its_schema_by_one_slow_measurement_has_it_again(
    monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """A noisy neighbour would leave an agent's calls unbound until the replica restarts."""
    slow = [f"a mask {TOO_LONG}"]

    def fail_once(*_: object) -> None:
        if slow:
            raise GrammarError(slow.pop())

    tool = open_tool("f", open_object(60))._replace(is_strict=False)
    if fails == "mask":
        monkeypatch.setattr(proof, "try_beginnings", fail_once)
    else:
        monkeypatch.setattr(proof, "list_written", lambda *_: fail_once() or iter(()))
    first, second = prove_calls([tool]), prove_calls([tool])
    assert [("p_59" in one.text, one.is_provisional) for one in (first, second)] == [
        (False, True),
        (True, False),
    ]
    now = [0.0]
    kept, source = KeptOutcomes(clock=lambda: now[0]), Source("lark", "", "")
    kept.put(source, first)
    now[0] = PROVISIONAL_SECONDS - 1
    assert kept.get(source) == first
    now[0] = PROVISIONAL_SECONDS
    assert kept.get(source) is None
    kept.put(source, second)
    now[0] *= 100
    assert kept.get(source) == second


def test_the_time_of_a_grammar_is_without_its_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr(time, "thread_time", lambda: sum(now))
    monkeypatch.setattr(proof, "try_beginnings", lambda *_: now.append(1))
    grammar = prove(load_large_vocabulary(), GrammarKind.SCHEMA, json.dumps(open_object(60)), "")
    assert (grammar.seconds, len(now)) == (0, 2)


def test_the_trials_of_a_schema_take_as_long_as_it_is_large() -> None:
    parts = {f"part{number}": open_object(50, f"p{number}") for number in range(12)}
    links = {name: {"$ref": f"#/$defs/{name}"} for name in parts}
    linked = {name: {**part, "properties": {**part["properties"], **links}} for name, part in parts.items()}
    nested = TEXT
    for number in range(12):
        nested = open_object(50, f"p{number}", additionalProperties=nested)
    for schema in ({"properties": parts}, {"$defs": linked, "properties": links}, nested):
        [(grammar, trials)] = list_trials(Document(Origin(), schema))
        assert len(trials) == 12
        assert len(grammar) < 1.5 * len(json.dumps(schema))


def test_a_tool_that_fails_its_trial_spares_the_others() -> None:
    small = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
    tools = [open_tool("a", small), open_tool("b", open_object(760)), open_tool("c", small)]
    free = [tool._replace(is_strict=False) for tool in tools]
    text = prove_calls(free).text
    assert (text.count("Paris"), text.count("p_759")) == (2, 0)
    assert prove_calls([*tools[:1], free[1]]).text.count("Paris") == 1
    with pytest.raises(GrammarError, match=r"in `b`, `#`: .*max is 3000"):
        prove_calls(tools)


def prove_calls(tools: list[CallableTool]) -> Grammar:
    call = write_forced("hermes", tools, LarkWriter({}), is_one_call=True)
    return prove(load_large_vocabulary(), GrammarKind.LARK, call, "")


@pytest.mark.parametrize("tool_format", ["hermes", "llama3"])
def test_the_strict_tools_beside_a_typed_answer_are_tried(tool_format: str) -> None:
    lark = LarkWriter({})
    calls = write_either(tool_format, [open_tool("a", open_object(760))], lark, is_one_call=True)
    with pytest.raises(GrammarError, match=r"in `a`, `#`: .*max is 3000"):
        prove(load_large_vocabulary(), GrammarKind.SCHEMA, json.dumps(open_object(60)), lark.write(calls))


def test_half_a_character_may_be_a_name_beside_a_crowd() -> None:
    schema = {"properties": {"\ud800": TEXT, "a": open_object(60)}}
    assert walk(GrammarKind.SCHEMA, json.dumps(schema), "{\n") is None
    with pytest.raises(GrammarError, match="max is 3000"):
        walk(GrammarKind.SCHEMA, json.dumps({"properties": {"\ud800": open_object(760)}}), "")


def give_inner(known: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a union of objects with a member of these schemas before another object."""
    inner = [
        {"properties": {"id": one, "d": open_object(40, f"p{number}")}, "required": ["id", "d"]}
        for number, one in enumerate(known)
    ]
    return {"anyOf": inner}


NULL = {"type": "null"}


@pytest.mark.parametrize(
    ("schema", "crowd"),
    [
        ({"allOf": [open_object(60), open_object(60)]}, ("#", 1, '{"p_3": [_]}')),
        ({"allOf": [open_object(60), {"required": [f"p_{number}" for number in range(20)]}]}, None),
        (open_object(49), None),
        (open_object(60), ("#", 1, '{"p_3": [_]}')),
        (recur(ARRAYS), ("#", 1, "[[[[]]]]")),
        (recur(OBJECTS), ("#", 1, '{"k": {"k": {"k": {}}}}')),
        ({"items": {"anyOf": [open_object(60), TEXT]}}, ("#/items", 1, '{"p_3": [_]}')),
        (hold(2, 40), ("#/anyOf/0/properties/inner", 2, '{"p0_3": [_]}')),
        (give_inner([{"const": "a"}, {"enum": ["b"]}]), None),
        (give_inner([TEXT, {"anyOf": [TEXT, NULL]}]), ("#/anyOf/0/properties/d", 2, '{"p0_3": [_]}')),
        (
            give_inner([{"enum": ["a", "x"]}, {"enum": ["b", "x"]}]),
            ("#/anyOf/0/properties/d", 2, '{"p0_3": [_]}'),
        ),
    ],
)
def test_a_crowd_is_what_may_open_together(
    schema: dict[str, Any], crowd: tuple[str, int, str] | None
) -> None:
    found = [
        (one.path, len(one.schemas), one.beginnings[-1].replace(VALUE, "_")) for one in list_crowds(schema)
    ]
    assert found == ([crowd] if crowd else [])
