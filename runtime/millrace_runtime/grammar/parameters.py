"""Writes the grammar of a call's arguments: as one JSON object, or one by one. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from millrace_runtime.grammar.any_json import ANY_OBJECT, write_any_object
from millrace_runtime.grammar.documents import Origin, write_json
from millrace_runtime.grammar.json_schema.places import ROOT, change_references, escape_key, has_reference
from millrace_runtime.grammar.lark import LarkWriter, escape, write_choice, write_text

_DEFINITIONS = ("$defs", "definitions")
_HERE, _OTHERS = _DEFINITIONS[0], "millrace-parameters"
_PARAMETERS = f"{ROOT}/properties"


class TextValues(Protocol):
    """Which arguments of a tool are text."""

    def is_text(self, key: str) -> bool:
        """Whether the value is text, and no JSON."""

    def list_texts(self, key: str) -> list[str] | None:
        """Return the only texts that the value may be; None: any text."""


class CallableTool(NamedTuple):
    """A tool that an answer may call."""

    name: str
    schema: Mapping[str, Any]
    """Of the arguments, which are an object."""
    values: TextValues
    """Which arguments are text, in a format without JSON."""
    is_strict: bool = False
    """Whether the client calls it strict: then nothing of the schema may be left out."""
    others: Sequence[str] = ()
    """The names of tools that are called in the same way. One expression for all keeps the parser's rows
    short: three hundred alternatives have more items than it may have."""

    @property
    def names(self) -> list[str]:
        """All names."""
        return [self.name, *self.others]

    @property
    def pattern(self) -> str:
        """The regular expression of the names."""
        return f"({'|'.join(map(escape, self.names))})"

    @property
    def origin(self) -> Origin:
        """The origin of its schema."""
        return Origin(self.name, is_strict=self.is_strict)


Tools = Sequence[CallableTool]


class ParameterForm(NamedTuple):
    """How a format writes an argument: expressions."""

    begin: Callable[[str], str]
    """The text before the value of a key."""
    begin_any: str
    """The text before the value of a key that the schema does not name."""
    text: str
    """Any text, with the text behind it."""
    end: str
    """The text behind a value, other than any text."""


def write_arguments(lark: LarkWriter, tool: CallableTool) -> str:
    """Return the expression of a tool's arguments as JSON."""
    if tool.schema == ANY_OBJECT:
        return lark.write_once("any object", write_any_object)
    return write_json(tool.schema, tool.origin)


def write_parameters(lark: LarkWriter, tool: CallableTool, form: ParameterForm) -> str:
    """Return the expression of a tool's arguments, in the order of its schema's properties."""
    schema = tool.schema
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        is_closed = schema.get("additionalProperties") is False
        return "" if is_closed else f"({lark.add('parameter', f'{form.begin_any} {form.text}')})*"
    required = schema.get("required")
    required = required if isinstance(required, list) else []
    written = []
    for key, known in properties.items():
        value = _write_value(key, _define(known, schema), tool, form)
        written.append(lark.add("parameter", f"{form.begin(key)} {value}") + "?" * (key not in required))
    return " ".join(written)


def write_parameter(tool: CallableTool, key: str) -> str:
    """Return the expression of a parameter's value as JSON."""
    return _write_json_value(key, _define(tool.schema["properties"][key], tool.schema), tool)


def write_members(lark: LarkWriter, members: Sequence[tuple[str, bool]], comma: str) -> str:
    """Return the expression of members in their order: of each its own, and whether it must be there."""
    first, later = "", ""
    """The expressions of the other members: before any is written, and after one is."""
    for member, is_required in reversed(members):
        begun = lark.add("begun", f"{member} {later}")
        if is_required:
            first, later = begun, lark.add("later", f"{comma} {begun}")
        else:
            first = lark.add("first", f"({begun} | {first})" if first else f"{begun}?")
            later = lark.add("later", f"({comma} {begun} | {later})" if later else f"({comma} {begun})?")
    return first


def _define(known: Any, tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a parameter's schema as a document of its own, with what it refers to.

    It may refer to definitions, and to other parameters: those become definitions.
    """
    schema = known if isinstance(known, dict) else {}
    if not has_reference(schema):
        return schema
    own = {key: tool[key] for key in _DEFINITIONS if key in tool}
    if not has_reference(schema, _PARAMETERS):
        return {**own, **schema}
    own |= {_HERE: {**tool.get(_HERE, {}), _OTHERS: tool["properties"]}}
    return dict(change_references({**own, **schema}, _PARAMETERS, f"{ROOT}/{_HERE}/{_OTHERS}"))


def _write_value(key: str, schema: Mapping[str, Any], tool: CallableTool, form: ParameterForm) -> str:
    if not tool.values.is_text(key):
        return f"{_write_json_value(key, schema, tool)} {form.end}"
    texts = tool.values.list_texts(key)
    return form.text if texts is None else f"{write_choice(list(map(write_text, texts)))} {form.end}"


def _write_json_value(key: str, schema: Mapping[str, Any], tool: CallableTool) -> str:
    origin = Origin(tool.name, f"{ROOT}/properties/{escape_key(key)}", is_strict=tool.is_strict)
    return write_json(schema, origin)
