"""Writes some parts of a rewritten schema as a schema of their own. Pure."""

from collections.abc import Collection, Sequence
from typing import Any

from millrace_runtime.grammar.json_schema.keywords import OPTIONS
from millrace_runtime.grammar.json_schema.places import ROOT, follow

_DEFINITIONS = "$defs"
_LEFT_OUT = frozenset({"$anchor", "$defs", "$id", "$ref", "$schema", "definitions", "id", OPTIONS})
"""Keywords that an excerpt omits: they name a schema, define others, or stand only at a document's top."""
_BY_NAME = ("patternProperties", "properties")
_VALUES = ("const", "enum")


def write_excerpt(root: dict[str, Any], parts: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Return the schema of an object: under each number an array of values of the schemas in that part.

    An array may also be empty, so it can be written where no value fits. Each part stands in it once, so the
    time grows with the document alone. A reference by name allows any value.
    """
    excerpt = _Excerpt(root, {id(schema) for schemas in parts for schema in schemas})
    options = [[excerpt.refer_to(schema) for schema in schemas] for schemas in parts]
    arrays = {
        str(number): {"type": "array", "items": {"anyOf": known}} for number, known in enumerate(options)
    }
    top = {key: root[key] for key in ("$schema",) if key in root}
    return {**top, "type": "object", "properties": arrays, _DEFINITIONS: excerpt.write_definitions()}


class _Excerpt:
    def __init__(self, root: dict[str, Any], parts: Collection[int]) -> None:
        """`parts` are the ids of schemas that get definitions of their own."""
        self._root, self._parts = root, parts
        self._waiting: list[Any] = []

    def refer_to(self, schema: Any) -> dict[str, Any]:
        """Return a reference to a copy of a schema.

        Its name is plain: llguidance reads a reference as a URI, where many letters of a client's own names
        can't stand.
        """
        self._waiting.append(schema)
        return {"$ref": f"{ROOT}/{_DEFINITIONS}/{_name(schema)}"}

    def write_definitions(self) -> dict[str, Any]:
        """Return the definitions that references mean."""
        definitions: dict[str, Any] = {}
        for schema in self._waiting:  # it grows meanwhile
            if (name := _name(schema)) not in definitions:
                definitions[name] = self._copy_whole(schema)
        return definitions

    def _copy(self, schema: Any) -> Any:
        return self.refer_to(schema) if id(schema) in self._parts else self._copy_whole(schema)

    def _copy_whole(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return [self._copy(one) for one in schema]
        if not isinstance(schema, dict):
            return schema
        kept = [key for key in schema if key not in _LEFT_OUT]
        copy = {key: self._copy_keyword(key, schema[key]) for key in kept}
        target = follow(self._root, schema)
        return copy if target is None else {**copy, **self.refer_to(target)}

    def _copy_keyword(self, keyword: str, value: Any) -> Any:
        if keyword in _BY_NAME and isinstance(value, dict):
            return {name: self._copy(schema) for name, schema in value.items()}
        return value if keyword in _VALUES else self._copy(value)


def _name(schema: Any) -> str:
    return f"at{id(schema)}"
