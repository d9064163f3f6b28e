"""A schema that can't be kept is refused with the place of its keyword, also as a tool's."""

from typing import Any

import msgspec
import pytest

from millrace_runtime.chat.parsers.parameter_types import ParameterTypes
from millrace_runtime.grammar.documents import Origin, add_origin
from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.grammar.lark import LarkWriter
from millrace_runtime.grammar.parameters import CallableTool
from millrace_runtime.grammar.proof import prove
from millrace_runtime.grammar.source import GrammarKind
from millrace_runtime.grammar.tools import write_either, write_forced
from tests.runtime.grammar.fitting import Fitting, load_tokenizer, load_vocabulary

TEXT = {"type": "string"}
SET = {"type": "array", "items": TEXT, "uniqueItems": True}
NAMED = {"type": "object", "required": ["a"]}
REFUSED: list[tuple[Any, str, str]] = [
    ({"not": TEXT}, "#/properties/a/not", "leave it out"),
    ({"if": TEXT, "then": {}}, "#/properties/a/if", "leave it out"),
    ({"items": {"contains": TEXT}}, "#/properties/a/items/contains", "leave it out"),
    ({"dependentRequired": {"b": ["c"]}}, "#/properties/a/dependentRequired", "leave it out"),
    ({"dependentSchemas": {"b": {}}}, "#/properties/a/dependentSchemas", "leave it out"),
    ({"$dynamicRef": "#a"}, "#/properties/a/$dynamicRef", "leave it out"),
    ({"$ref": "#/$defs/Nothing"}, "#/properties/a/$ref", "as `#/$defs/Name` does"),
    ({"$ref": "https://a.example/b"}, "#/properties/a/$ref", "as `#/$defs/Name` does"),
    ({"oneOf": [NAMED, {"type": "object", "required": ["b"]}]}, "#/properties/a/oneOf", "write `anyOf`"),
    ({"anyOf": [TEXT, {"oneOf": [TEXT, {"maxLength": 3}]}]}, "#/properties/a/anyOf/1/oneOf", "write `anyOf`"),
    (
        {"propertyNames": {"pattern": "a", "minLength": 2}},
        "#/properties/a/propertyNames",
        "one of them alone",
    ),
    ({"propertyNames": {"type": "number"}}, "#/properties/a/propertyNames", "one of them alone"),
    ({"propertyNames": {"pattern": "("}}, "#/properties/a/propertyNames", "unclosed group"),
    ({"$ref": "#/$defs/M", "unevaluatedProperties": False}, "#/properties/a/unevaluatedProperties", "beside"),
    ({"type": "string", "pattern": "a(?!b)"}, "#/properties/a/pattern", "look-ahead"),
    (
        {"type": "string", "format": "email", "pattern": r"^(?!.*@a\.example$).*@b\.example$"},
        "#/properties/a/pattern",
        "look-around",
    ),
    ({"type": "string", "pattern": "^(?=a)(?=()b$"}, "#/properties/a/pattern", "look-ahead"),
    ({"$ref": "#/$defs/M"}, "#/$defs/M/properties/x~1y/minimum", "is greater than maximum (3): change it"),
    ({"type": "text"}, "#/properties/a/type", "Invalid type: text"),
    ({"type": "array", "items": SET}, "#/properties/a/items/uniqueItems", "Without `strict`"),
    (
        {"type": "array", "items": {"enum": [*range(5)]}, "uniqueItems": True},
        "#/properties/a/uniqueItems",
        "",
    ),
]
"""A property's schema, the place of its fault, and what the message says."""
EMPTY = {"type": "object", "properties": {"x/y": {"minimum": 5, "maximum": 3, "type": "integer"}}}


def describe(schema: dict[str, Any]) -> dict[str, Any]:
    definitions = {"M": {**EMPTY, "required": ["x/y"]}}
    return {"type": "object", "properties": {"a": schema}, "required": ["a"], "$defs": definitions}


def open_tool(schema: dict[str, Any], *, is_strict: bool = True) -> CallableTool:
    types = ParameterTypes([{"function": {"name": "f", "parameters": schema}}], "f")
    return CallableTool("f", schema, types, is_strict)


def why_refused(kind: GrammarKind, source: str, before: str = "") -> str:
    with pytest.raises(GrammarError) as caught:
        prove(load_vocabulary(), kind, source, before)
    return str(caught.value)


@pytest.mark.parametrize(("schema", "path", "message"), REFUSED)
def test_a_schema_is_refused_with_the_place_of_its_keyword(
    schema: dict[str, Any], path: str, message: str
) -> None:
    known = describe(schema)
    said = why_refused(
        GrammarKind.SCHEMA, msgspec.json.encode(add_origin(known, Origin(is_strict=True))).decode()
    )
    assert said.startswith(f"`{path}`")
    assert message in said
    tool, lark = open_tool(known), LarkWriter({})
    calls = write_forced("hermes", [tool], LarkWriter({}), is_one_call=True)
    assert why_refused(GrammarKind.LARK, calls) == f"in `f`, {said}"
    either = lark.write(write_either("hermes", [tool], lark, is_one_call=True))
    assert why_refused(GrammarKind.SCHEMA, "{}", either) == f"in `f`, {said}"


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        (SET, "#/properties/a/uniqueItems"),
        (
            {"type": "array", "items": {"$ref": "#/$defs/M"}, "minItems": 1},
            "#/$defs/M/properties/x~1y/minimum",
        ),
    ],
)
def test_a_format_with_its_own_parameters_names_the_place_too(schema: dict[str, Any], path: str) -> None:
    calls = write_forced("glm45", [open_tool(describe(schema))], LarkWriter({}), is_one_call=True)
    assert why_refused(GrammarKind.LARK, calls).startswith(f"in `f`, `{path}`")


def test_without_strict_an_array_may_have_an_item_twice() -> None:
    assert prove(load_vocabulary(), GrammarKind.SCHEMA, msgspec.json.encode(SET).decode(), "")
    calls = write_forced(
        "hermes", [open_tool(describe(SET), is_strict=False)], LarkWriter({}), is_one_call=True
    )
    assert prove(load_vocabulary(), GrammarKind.LARK, calls, "")


@pytest.mark.parametrize("tool_format", ["hermes", "llama3", "glm45", "functiongemma", "harmony"])
@pytest.mark.parametrize("schema", [schema for schema, _, why in REFUSED if "type: text" not in why])
def test_a_forced_tool_that_is_not_strict_is_called_with_any_object(
    tool_format: str, schema: dict[str, Any]
) -> None:
    tools = [
        open_tool(describe(schema), is_strict=False),
        open_tool(describe({**TEXT, "enum": ["kept"]}))._replace(name="g"),
    ]
    calls = write_forced(tool_format, tools, LarkWriter({}), is_one_call=True)
    bound = prove(load_vocabulary(), GrammarKind.LARK, calls, "").text
    assert "kept" in bound, "the other tool keeps its schema"


def open_large_tool(place: int, *, is_strict: bool) -> CallableTool:
    names = [f"value_{place}_{number}" for number in range(14)]
    schema = {"type": "object", "properties": dict.fromkeys(names, TEXT)}
    return open_tool(schema, is_strict=is_strict)._replace(name=f"f{place}")


@pytest.mark.parametrize("tool_format", ["hermes", "kimi_k2", "harmony"])
def test_of_forced_tools_that_are_too_large_only_strict_ones_keep_their_schemas(tool_format: str) -> None:
    def write(*, is_strict: bool) -> str:
        tools = [open_large_tool(place, is_strict=is_strict or place == 0) for place in range(128)]
        return write_forced(tool_format, tools, LarkWriter({}), is_one_call=True)

    bound = prove(load_vocabulary(), GrammarKind.LARK, write(is_strict=False), "").text
    assert ("value_0_13" in bound, "value_1_" in bound) == (True, False)
    assert "make it smaller" in why_refused(GrammarKind.LARK, write(is_strict=True))


def test_any_object_of_a_forced_tool_has_its_name() -> None:
    tool = open_tool(describe({"if": TEXT, "then": {}}), is_strict=False)
    calls = write_forced("hermes", [tool], LarkWriter({}), is_one_call=True)
    grammar = Fitting(load_vocabulary(), load_tokenizer(), prove(load_vocabulary(), "lark", calls, "").text)
    call = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'
    assert grammar.fits(call.format("f", '{"b": [1]}'))
    assert not any(map(grammar.fits, [call.format("g", "{}"), call.format("f", "[]"), "Hi"]))


@pytest.mark.parametrize(
    "source",
    ['{"items":' * 900 + "{}" + "}" * 900, '{"x-millrace": 5, "not": 5}', '{"type": 5, "oneOf": [5]}'],
)
def test_a_schema_that_is_none_is_refused(source: str) -> None:
    assert len(why_refused(GrammarKind.SCHEMA, source)) < 700


def test_llamas_calls_name_the_clients_place() -> None:
    lark, tool = LarkWriter({}), open_tool(describe({"not": TEXT}))
    either = lark.write(write_either("llama3", [tool], lark, is_one_call=True))
    assert why_refused(GrammarKind.SCHEMA, "{}", either).startswith("in `f`, `#/properties/a/not`")


def test_a_property_that_is_never_there_is_no_fault() -> None:
    schema = {"type": "object", "properties": {"never": {"not": {}}, "x": {"type": "text"}}}
    said = why_refused(GrammarKind.SCHEMA, msgspec.json.encode(schema).decode())
    assert said.startswith("`#/properties/x/type`")


@pytest.mark.parametrize(
    ("tool_format", "schema"),
    [
        ("qwen3_coder", {"start": {"type": "object"}, "end": {"$ref": "#/properties/start"}}),
        ("glm45", {"start": {"type": "object"}, "end": {"$ref": "#/properties/start"}}),
        ("gemma4", {"list": {"type": "array"}}),
        ("gemma4", {"any": {}}),
    ],
)
def test_parameters_of_any_kind_are_written(tool_format: str, schema: dict[str, Any]) -> None:
    tool = open_tool({"type": "object", "properties": schema, "required": [*schema]})
    calls = write_forced(tool_format, [tool], LarkWriter({}), is_one_call=True)
    assert prove(load_vocabulary(), GrammarKind.LARK, calls, "")
