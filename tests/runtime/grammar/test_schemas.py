"""Schemas as pydantic and servers of MCP publish them: what fits them, and what does not."""

import enum
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import pytest
from pydantic import (
    AnyUrl,
    BaseModel,
    ConfigDict,
    Field,
    Json,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    conint,
    conlist,
)

from millrace_runtime.chat.parsers.parameter_types import ParameterTypes
from millrace_runtime.grammar.lark import LarkWriter
from millrace_runtime.grammar.parameters import CallableTool
from millrace_runtime.grammar.source import GrammarKind
from millrace_runtime.grammar.tools import write_forced
from tests.runtime.grammar.fitting import open_grammar, open_schema


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog", "hound"]
    owner: "Owner | None" = None


class Owner(BaseModel):
    pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]]
    old: Annotated["Owner | None", Field(deprecated=True)] = None


class Circle(BaseModel):
    shape: Literal["circle"] = "circle"
    radius: float


class Square(BaseModel):
    shape: Literal["square"] = "square"
    side: float


class Solid(BaseModel):
    shape: Literal["solid"]
    kind: Literal["cube"] = "cube"


class Ball(BaseModel):
    shape: Literal["solid"]
    kind: Literal["ball"] = "ball"


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int = Field(alias="the a", examples=[1], description="An a.")


class Open(BaseModel):
    model_config = ConfigDict(extra="allow", title="Any more", json_schema_extra={"x-order": ["a"]})
    a: int


class Tree(BaseModel):
    value: int
    children: list["Tree"] = []


Flat = Annotated[Circle | Square, Field(discriminator="shape")]
Nested = Annotated[
    Circle | Annotated[Solid | Ball, Field(discriminator="kind")], Field(discriminator="shape")
]
DAY, ID = "2026-01-31", "01234567-89ab-cdef-0123-456789abcdef"


class Case(NamedTuple):
    """A type of pydantic's."""

    kind: Any
    good: list[str]
    bad: list[str]


PYDANTIC = [
    Case(set[Color], ["[]", '["red"]', '["blue", "red"]'], ['["red","red"]', '["green"]', '"red"']),
    Case(frozenset[Literal["a", "b"]], ['["b","a"]'], ['["a","b","a"]']),
    Case(set[bool], ["[true,false]"], ["[true,true]"]),
    Case(
        Annotated[set[Literal["a", "b", "c"]], Field(min_length=1, max_length=2)],
        ['["c","a"]', '["b"]'],
        ["[]", '["a","a"]', '["a","b","c"]'],
    ),
    Case(conlist(Level, min_length=1, max_length=2), ["[1,2]"], ["[]", "[1,1,1]", "[3]"]),
    Case(set[str], ['["x","y"]'], ["[1]"]),
    Case(tuple[int, str], ['[1,"a"]'], ["[1]", '["a",1]', '[1,"a",2]']),
    Case(tuple[int, ...], ["[]", "[1,2,3]"], ['["a"]']),
    Case(Literal["a", 1] | None, ['"a"', "1", "null"], ['"b"', "2", "false"]),
    Case(Color, ['"red"'], ['"green"']),
    Case(int | None, ["null", "-3"], ['"3"', "3.5"]),
    Case(conint(ge=3, lt=7), ["3", "6"], ["2", "7"]),
    Case(Annotated[float, Field(gt=0, le=1)], ["0.5", "1"], ["0", "1.5"]),
    Case(Annotated[str, StringConstraints(min_length=2, max_length=3)], ['"ab"'], ['"a"', '"abcd"']),
    Case(Annotated[str, StringConstraints(pattern=r"^[A-Z]{2}\d+$")], ['"AB1"'], ['"A1"', '"AB1x"']),
    Case(Annotated[Decimal, Field(ge=0)], ["1.25", '"1.25"'], ["-1", "true"]),
    Case(datetime, [f'"{DAY}T10:00:00Z"'], [f'"{DAY}T25:00:00Z"', '"now"']),
    Case(date, [f'"{DAY}"'], ['"2026-02-31"', '"x"']),
    Case(time, ['"10:00:00Z"'], ['"26:00:00Z"']),
    Case(timedelta, ['"P1DT2H"'], ['"1 day, ago"']),
    Case(UUID, [f'"{ID}"'], [f'"{ID}0"']),
    Case(AnyUrl, ['"https://a.example/b?c=1"'], ['"a b"']),
    Case(bytes, ['"abc"'], ["1"]),
    Case(Json[list[int]], ['"[1]"'], ["1"]),
    Case(dict[str, int], ['{"a":1,"b":2}', "{}"], ['{"a":"b"}', "[]"]),
    Case(dict[Literal["a", "b"], int], ['{"a":1,"b":2}', '{"b":2}', "{}"], ['{"c":1}', '{"a":"x"}']),
    Case(dict[Color, int], ['{"red":1}'], ['{"green":1}']),
    Case(dict[UUID, int], [f'{{"{ID}":1}}'], ['{"x":1}']),
    Case(dict[date, float], [f'{{"{DAY}":1.5}}'], ['{"2026-1-1":1.5}']),
    Case(
        dict[Annotated[str, StringConstraints(min_length=1, max_length=2)], int],
        ['{"ü":1,"bc":2}'],
        ['{"":1}', '{"abc":1}'],
    ),
    Case(
        Flat,
        ['{"shape":"circle","radius":1.5}', '{"shape":"square","side":2}'],
        ['{"shape":"circle","side":2}', '{"radius":1.5}', '{"shape":"cube","side":2}'],
    ),
    Case(
        Nested, ['{"shape":"solid","kind":"ball"}'], ['{"shape":"circle","kind":"ball"}', '{"kind":"ball"}']
    ),
    Case(
        Owner,
        ['{"pets":[{"kind":"cat"},{"kind":"hound","owner":{"pets":[]}}],"old":{"pets":[]}}'],
        ['{"pets":[{"lives":3}]}', '{"pets":[{"kind":"cow"}]}', '{"pets":[],"old":{}}'],
    ),
    Case(Closed, ['{"the a":1}'], ['{"a":1}', '{"the a":1,"b":2}']),
    Case(Open, ['{"a":1,"b":[2]}'], ['{"b":2}']),
    Case(Tree, ['{"value":1,"children":[{"value":2,"children":[]}]}'], ['{"value":1,"children":[{}]}']),
    Case(list[Any], ['[1,"a",{"b":null}]'], ["{}"]),
]


@pytest.mark.parametrize(("kind", "good", "bad"), PYDANTIC)
def test_an_answer_is_what_pydantic_reads(kind: Any, good: list[str], bad: list[str]) -> None:
    adapter = TypeAdapter(kind)
    grammar = open_schema(adapter.json_schema())
    for text in good:
        adapter.validate_json(text, strict=True)
    assert [text for text in good if not grammar.fits(text)] == []
    for text in bad:
        if "set" not in str(kind):  # pydantic reads an item that comes twice, against its own schema
            with pytest.raises(ValidationError):
                adapter.validate_json(text, strict=True)
    assert [text for text in bad if grammar.fits(text)] == []


DRAFT = {"$schema": "http://json-schema.org/draft-07/schema#"}
TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": TEXT}


def describe(*required: str, **properties: Any) -> dict[str, Any]:
    return {
        **DRAFT,
        "type": "object",
        "properties": properties,
        "required": [*required],
        "additionalProperties": False,
    }


MCP = {
    "filesystem edit_file": (
        describe(
            "path",
            "edits",
            path=TEXT,
            edits={"type": "array", "items": describe("oldText", "newText", oldText=TEXT, newText=TEXT)},
            dryRun={"type": "boolean", "default": False, "description": "Preview changes"},
        ),
        ['{"path":"/a","edits":[{"oldText":"x","newText":"y"}],"dryRun":true}'],
        ['{"path":"/a","edits":[{"oldText":"x"}]}', '{"path":1,"edits":[]}'],
    ),
    "filesystem read_multiple_files": (
        describe("paths", paths={**TEXTS, "minItems": 1}),
        ['{"paths":["a"]}'],
        ['{"paths":[]}'],
    ),
    "filesystem list_directory_with_sizes": (
        describe("path", path=TEXT, sortBy={**TEXT, "enum": ["name", "size"], "default": "name"}),
        ['{"path":".","sortBy":"size"}'],
        ['{"path":".","sortBy":"date"}'],
    ),
    "fetch": (
        {
            "type": "object",
            "title": "Fetch",
            "properties": {
                "url": {"type": "string", "format": "uri", "minLength": 1, "title": "Url"},
                "max_length": {
                    "type": "integer",
                    "default": 5000,
                    "exclusiveMinimum": 0,
                    "exclusiveMaximum": 1000000,
                },
                "raw": {"type": "boolean", "default": False},
            },
            "required": ["url"],
        },
        ['{"url":"https://a.example","max_length":10}'],
        ['{"url":"https://a.example","max_length":0}', '{"url":"no"}'],
    ),
    "memory create_entities": (
        describe(
            "entities",
            entities={
                "type": "array",
                "items": describe(
                    "name", "entityType", "observations", name=TEXT, entityType=TEXT, observations=TEXTS
                ),
            },
        ),
        ['{"entities":[{"name":"a","entityType":"b","observations":["c"]}]}'],
        ['{"entities":[{"name":"a"}]}'],
    ),
    "sequential thinking": (
        describe("thought", "thoughtNumber", thought=TEXT, thoughtNumber={"type": "integer", "minimum": 1}),
        ['{"thought":"a","thoughtNumber":1}'],
        ['{"thought":"a","thoughtNumber":0}'],
    ),
    "github issue_write": (
        {
            "type": "object",
            "properties": {
                "method": {**TEXT, "enum": ["create", "update"]},
                "labels": {**TEXTS, "uniqueItems": False},
                "issue_number": {"type": "number", "minimum": 1},
            },
            "required": ["method"],
        },
        ['{"method":"create","labels":["a","a"],"issue_number":2}'],
        ['{"method":"delete"}', '{"labels":[]}'],
    ),
    "playwright browser_fill_form": (
        describe(
            "fields",
            fields={
                "type": "array",
                "items": describe(
                    "name", "type", name=TEXT, type={**TEXT, "enum": ["textbox", "checkbox"]}, value=TEXT
                ),
            },
        ),
        ['{"fields":[{"name":"a","type":"checkbox","value":"true"}]}'],
        ['{"fields":[{"name":"a","type":"radio"}]}'],
    ),
    "a record of zod": (
        describe("args", args={"type": "object", "propertyNames": TEXT, "additionalProperties": {}}),
        ['{"args":{"a":1,"b":[]}}'],
        ['{"args":[]}'],
    ),
    "a union of zod": (
        describe(
            "to",
            to={
                "oneOf": [
                    describe("type", "id", type={**TEXT, "const": "page"}, id=TEXT),
                    describe("type", type={**TEXT, "const": "workspace"}, id=False, never={"not": {}}),
                ]
            },
        ),
        ['{"to":{"type":"page","id":"1"}}', '{"to":{"type":"workspace"}}'],
        ['{"to":{"type":"page"}}', '{"to":{"type":"workspace","id":"1"}}', '{"to":{"type":"x"}}'],
    ),
    "notes that bind nothing": (
        describe(
            "a",
            a={
                "oneOf": [TEXT, {"type": "integer"}, {"enum": [None, True]}],
                "minItems": 0,
                "nullable": True,
                "$comment": ["x"],
                "readOnly": True,
                "contentMediaType": "text/plain",
                "dependentRequired": {},
                "unevaluatedProperties": {},
                "contains": {},
                "minContains": 0,
                "then": {},
            },
        ),
        ['{"a":"x"}', '{"a":1}', '{"a":null}'],
        ['{"a":1.5}', '{"a":false}', '{"a":[]}'],
    ),
}


@pytest.mark.parametrize("name", MCP)
def test_a_tool_of_mcp_is_called_as_its_server_says(name: str) -> None:
    schema, good, bad = MCP[name]
    tool = CallableTool("f", schema, ParameterTypes([], "f"), is_strict=True)
    calls = open_grammar(GrammarKind.LARK, write_forced("hermes", [tool], LarkWriter({}), is_one_call=True))
    call = '<tool_call>\n{{"name": "f", "arguments": {}}}\n</tool_call>'
    answers = open_schema(schema)
    assert [text for text in good if not answers.fits(text) or not calls.fits(call.format(text))] == []
    assert [text for text in bad if answers.fits(text) or calls.fits(call.format(text))] == []
