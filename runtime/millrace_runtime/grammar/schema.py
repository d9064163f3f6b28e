"""What is changed in a client's JSON schema before it is compiled. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose values are schemas by a client's names, which may be those of keywords."""
_VALUES = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose values are no schemas."""
_FORMATS = frozenset(
    "date date-time duration email hostname ipv4 ipv6 time unknown uri uuid".split(" ")  # noqa: SIM905
)
"""That llguidance can write."""


def drop_unknown_formats(schema: Any) -> Any:
    """Return a copy without the formats that llguidance refuses: to JSON schema a format is an annotation."""
    copy = _copy(schema)
    for inner in _iterate_schemas(copy):
        if isinstance(name := inner.get("format"), str) and name not in _FORMATS:
            del inner["format"]
    return copy


def move_references(schema: Mapping[str, Any], place: str) -> Any:
    """Return a copy whose references hold where it stands at this place, `#/…`, of another document."""
    copy = _copy(schema)
    for inner in _iterate_schemas(copy):
        if isinstance(reference := inner.get("$ref"), str) and reference.startswith("#"):
            inner["$ref"] = place + reference[1:]
    return copy


def has_reference(schema: Mapping[str, Any]) -> bool:
    """Whether it refers to a definition."""
    return any("$ref" in inner for inner in _iterate_schemas(schema))


def _copy(schema: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(schema))


def _iterate_schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and each one inside, at any depth."""
    waiting = [schema]
    while waiting:
        known = waiting.pop()
        if isinstance(known, list):
            waiting += known
        elif isinstance(known, dict):
            yield known
            for key, value in known.items():
                if key in _BY_NAME and isinstance(value, dict):
                    waiting += value.values()
                elif key not in _VALUES:
                    waiting.append(value)
