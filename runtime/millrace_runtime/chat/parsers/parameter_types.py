"""Which JSON the text of a parameter becomes, by its tool's schema."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

Tools: TypeAlias = Sequence[Mapping[str, Any]]
"""A request's tools: `{"type": "function", "function": {"name": …, "parameters": …}}` each."""
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
"""Templates show models their earlier arguments in Python's words."""
_TYPES = {
    bool: "boolean",
    dict: "object",
    float: "number",
    int: "number",
    list: "array",
    str: "string",
    type(None): "null",
}
_MAX_REFERENCES = 8
"""A schema that refers to itself ends there."""


class ParameterTypes:
    """The types of one function's parameters. One without a type is a string."""

    def __init__(self, tools: Tools, function: str) -> None:
        self._schema = _find_schema(tools, function)
        self._properties = _as_mapping(self._schema.get("properties"))

    def is_text(self, key: str) -> bool:
        """Whether the value is text, and no JSON. `null` may be a value beside it."""
        return "string" in self._types_of(key)

    def list_texts(self, key: str) -> list[str] | None:
        """Return the only texts that the value may be; None: any."""
        schema = self._resolve(self._properties.get(key))
        return [value for value in _list_values(schema) if isinstance(value, str)] or None

    def needs_whole(self, key: str) -> bool:
        """Whether the value's JSON depends on its whole text."""
        return self._types_of(key) != {"string"}

    def convert(self, key: str, text: str) -> str:
        """Return the value's JSON text.

        Where the schema allows a string, the text is one, but for `null` where it allows null too. Elsewhere
        the text is the JSON itself; if it is none, it is a string.
        """
        types, word = self._types_of(key), read_word(text)
        is_null = word == "null" and "null" in types
        is_json = "string" not in types and word is not None
        return word if word is not None and (is_null or is_json) else json.dumps(text, ensure_ascii=False)

    def _types_of(self, key: str) -> set[str]:
        return set(self._list_types(self._properties.get(key))) or {"string"}

    def _list_types(self, schema: Any) -> Iterator[str]:
        """Yield the types that a schema names, or those of its values, also for its alternatives."""
        known = self._resolve(schema)
        for alternative in (known, *_as_list(known.get("anyOf")), *_as_list(known.get("oneOf"))):
            inner = self._resolve(alternative)
            types = inner.get("type")
            yield from (name for name in [types, *_as_list(types)] if isinstance(name, str))
            if types is None:
                yield from (_TYPES[type(value)] for value in _list_values(inner))

    def _resolve(self, schema: Any) -> Mapping[str, Any]:
        """Return a schema, or the definition that it refers to."""
        known = _as_mapping(schema)
        for _ in range(_MAX_REFERENCES):
            reference = known.get("$ref")
            if not isinstance(reference, str) or not reference.startswith("#/"):
                break
            found: Any = self._schema
            for name in reference[2:].split("/"):
                found = _as_mapping(found).get(name)
            known = _as_mapping(found)
        return known


def read_word(text: str) -> str | None:
    """Return the JSON that a text is, also in Python's words; None if it is none."""
    word = _PYTHON_WORDS.get(text.strip(), text.strip())
    return word if _is_json(word) else None


def _find_schema(tools: Tools, name: str) -> Mapping[str, Any]:
    for tool in tools:
        function = tool["function"]
        if function["name"] == name:
            return _as_mapping(function.get("parameters"))
    return {}


def _list_values(schema: Mapping[str, Any]) -> list[Any]:
    """Return the only values that a schema allows; none: it does not list them."""
    return [schema["const"]] if "const" in schema else _as_list(schema.get("enum"))


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"JSON has no {name}")
