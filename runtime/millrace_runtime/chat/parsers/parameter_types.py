"""Which JSON a call's arguments become, by the tool's schema, where the model writes values as text."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

from millrace_runtime.chat.parsers.answer import DeltaBuilder

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


class TypedArguments:
    """Writes one call's arguments. It passes on the text of strings as it comes, and other values whole."""

    def __init__(self, tools: Tools, name: str, out: DeltaBuilder) -> None:
        """Begin the call. `tools` are the request's."""
        self._types = ParameterTypes(tools, name)
        self._out = out
        self._key = ""
        self._value: list[str] | None = None
        """The value's text up to here; None for one that is passed on as it comes."""
        self._num_parameters = 0
        out.begin_call(name)
        out.add_arguments("{")

    def begin_value(self, key: str) -> None:
        """Begin the next parameter."""
        self._key = key
        self._value = [] if self._types.needs_whole(key) else None
        if self._value is None:
            self._out.add_arguments(f'{self._write_key()}"')

    def add_value(self, text: str) -> None:
        """Add to the parameter's value."""
        if self._value is None:
            self._out.add_arguments(_to_json(text)[1:-1])
        else:
            self._value.append(text)

    def end_value(self) -> None:
        """End the parameter."""
        if self._value is None:
            self._out.add_arguments('"')
        else:
            value = self._types.convert(self._key, "".join(self._value))
            self._out.add_arguments(self._write_key() + value)

    def end(self) -> None:
        """End the call."""
        self._out.add_arguments("}")

    def _write_key(self) -> str:
        comma = ", " if self._num_parameters else ""
        self._num_parameters += 1
        return f"{comma}{_to_json(self._key)}: "


def _to_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
