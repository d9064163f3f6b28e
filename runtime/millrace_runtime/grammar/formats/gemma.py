"""Writes calls of Gemma, whose arguments have keys without quotes and strings between two markers. Pure."""

from collections.abc import Mapping
from typing import Any

from millrace_runtime.grammar.documents import write_json
from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.grammar.lark import LarkWriter, write_choice, write_regex, write_text
from millrace_runtime.grammar.parameters import CallableTool, write_members

_SCALARS = ["integer", "number", "boolean", "null"]
_KEY = write_regex(r'[^:,{}\[\]<"\s]+')
_SCALAR = write_regex(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|null")


def write_call(lark: LarkWriter, tool: CallableTool, quote: str) -> str:
    """Return the expression of a call. `quote` is the marker on both sides of a string."""
    values = _ValueWriter(lark, tool, quote)
    return f"{write_regex(f'call:{tool.pattern}')} {values.write(tool.schema)}"


class _ValueWriter:
    """Writes the values of one tool's schema."""

    def __init__(self, lark: LarkWriter, tool: CallableTool, quote: str) -> None:
        self._lark = lark
        self._root, self._origin = tool.schema, tool.origin
        self._quote = lark.mark(quote)
        self._text = f"{self._quote} {lark.until(quote)}"
        self._definitions: dict[str, str] = {}
        """The rules of definitions, by what refers to them. They may refer to themselves."""

    def write(self, schema: Any) -> str:
        """Return the expression of a value."""
        known = schema if isinstance(schema, Mapping) else {}
        if isinstance(reference := known.get("$ref"), str):
            return self._write_definition(reference)
        if "const" in known:
            return self._write_known(known["const"])
        if "enum" in known:
            return write_choice(list(map(self._write_known, _read_list(known, "enum"))))
        for key in ("anyOf", "oneOf"):
            if key in known:
                return write_choice(list(map(self.write, _read_list(known, key))))
        types = known.get("type", "object" if "properties" in known else None)
        listed = _read_list(known, "type") if isinstance(types, list) else [types]
        return write_choice([self._write_type(name, known) for name in listed])

    def _write_definition(self, reference: str) -> str:
        if reference not in self._definitions:
            found: Any = self._root
            for name in reference.removeprefix("#").split("/")[1:]:
                found = found.get(name, {}) if isinstance(found, Mapping) else {}
            self._definitions[reference] = self._lark.reserve("definition")
            self._lark.define(self._definitions[reference], self.write(found))
        return self._definitions[reference]

    def _write_type(self, name: Any, schema: Mapping[str, Any]) -> str:
        if name == "string":
            return self._text
        if name == "array":
            item = self._lark.add("item", self.write(schema.get("items")))
            return f'"[" ({item} ("," {item})*)? "]"'
        if name in _SCALARS:
            return write_json({**schema, "type": name}, self._origin)
        if name == "object":
            return self._write_object(schema)
        if name is None:
            return self._write_any()
        raise GrammarError(f"`{name}` is no `type` of JSON schema")

    def _write_object(self, schema: Mapping[str, Any]) -> str:
        """Return the expression of an object, with its properties in their order."""
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            is_closed = schema.get("additionalProperties") is False
            return '"{" "}"' if is_closed else self._write_any("any_object")
        required = schema.get("required")
        required = required if isinstance(required, list) else []
        members = [
            (f"{write_text(f'{key}:')} {self.write(inner)}", key in required)
            for key, inner in properties.items()
        ]
        written = write_members(self._lark, members, '","')
        return f'"{{" {written} "}}"'

    def _write_known(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self._quote} {write_text(value)} {self._quote}"
        return write_json({"const": value}, self._origin)

    def _write_any(self, name: str = "any_value") -> str:
        """Return the rule of any value, or of any object: each needs the other."""
        self._lark.define(
            "any_value", f'{self._text} | {_SCALAR} | "[" (any_value ("," any_value)*)? "]" | any_object'
        )
        self._lark.define("any_object", f'"{{" ({_KEY} ":" any_value ("," {_KEY} ":" any_value)*)? "}}"')
        return name


def _read_list(schema: Mapping[str, Any], key: str) -> list[Any]:
    if not isinstance(value := schema[key], list) or not value:
        raise GrammarError(f"`{key}` is not a list with at least one element")
    return value
