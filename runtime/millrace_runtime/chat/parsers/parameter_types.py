"""Which JSON the text of a parameter becomes, by its tool's schema."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

Tools: TypeAlias = Sequence[Mapping[str, Any]]
"""A request's tools: `{"type": "function", "function": {"name": …, "parameters": …}}` each."""
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
"""Templates show models their earlier arguments in Python's words."""


class ParameterTypes:
    """The types of one function's parameters. One without a type is a string."""

    def __init__(self, tools: Tools, function: str) -> None:
        self._properties = _find_properties(tools, function)

    def needs_whole(self, key: str) -> bool:
        """Whether the value's JSON depends on its whole text."""
        return self._types_of(key) != {"string"}

    def convert(self, key: str, text: str) -> str:
        """Return the value's JSON text.

        Where the schema allows a string, the text is one, but for `null` where it allows null too. Elsewhere
        the text is the JSON itself; if it is none, it is a string.
        """
        types = self._types_of(key)
        word = _PYTHON_WORDS.get(text.strip(), text.strip())
        is_null = word == "null" and "null" in types
        is_json = "string" not in types and _is_json(word)
        return word if is_null or is_json else json.dumps(text, ensure_ascii=False)

    def _types_of(self, key: str) -> set[str]:
        return set(_list_types(self._properties.get(key))) or {"string"}


def _find_properties(tools: Tools, name: str) -> Mapping[str, Any]:
    for tool in tools:
        function = tool["function"]
        if function["name"] == name:
            return _as_mapping(_as_mapping(function.get("parameters")).get("properties"))
    return {}


def _list_types(schema: Any) -> Iterator[str]:
    """Yield the types that a schema names, also for its alternatives."""
    known = _as_mapping(schema)
    for alternative in (known, *_as_list(known.get("anyOf")), *_as_list(known.get("oneOf"))):
        types = _as_mapping(alternative).get("type")
        yield from (name for name in [types, *_as_list(types)] if isinstance(name, str))


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
