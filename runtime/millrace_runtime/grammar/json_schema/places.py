"""Reads a client's JSON schema: its parts, where they stand, and what they refer to. Pure."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec

ROOT = "#"
"""The JSON pointer of a whole document."""
_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose values are schemas by a client's names, which may be those of keywords."""
_VALUES = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose values are no schemas."""
_MAX_PATH = 200
_PART_MAPS = ("properties", "patternProperties")
_PART_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_PARTS = ("items", "additionalItems", "additionalProperties")


class Place(NamedTuple):
    """A schema inside a document."""

    schema: dict[str, Any]
    path: str
    """Its JSON pointer."""

    def point_to(self, *keys: str | int) -> str:
        """Return the pointer to the value at these keys in it."""
        return "/".join([self.path, *(escape_key(str(key)) for key in keys)])


def escape_key(key: str) -> str:
    """Return a key as a JSON pointer has it."""
    return key.replace("~", "~0").replace("/", "~1")


def quote_path(path: str) -> str:
    """Return a pointer as a message has it."""
    return f"`{path}`" if len(path) <= _MAX_PATH else f"`{path[:_MAX_PATH]}…`"


def list_parts(place: Place) -> list[Place]:
    """Return the schemas right inside one that a grammar can have."""
    schema = place.schema
    found: list[tuple[Any, str]] = []
    for keyword in _PART_MAPS:
        if isinstance(named := schema.get(keyword), dict):
            found += [(part, place.point_to(keyword, name)) for name, part in named.items()]
    for keyword in _PART_LISTS:
        if isinstance(listed := schema.get(keyword), list):
            found += [(part, place.point_to(keyword, number)) for number, part in enumerate(listed)]
    found += [(schema.get(keyword), place.point_to(keyword)) for keyword in _PARTS]
    return [Place(part, path) for part, path in found if isinstance(part, dict)]


def walk(root: dict[str, Any]) -> Iterator[Place]:
    """Yield the document and each schema that it uses, once. The caller may change what it gets."""
    waiting, seen = deque([Place(root, ROOT)]), {}
    while waiting:
        place = waiting.popleft()
        if id(place.schema) in seen:
            continue
        seen[id(place.schema)] = place.schema  # kept, so that no other gets its id
        yield place
        waiting += list_parts(place)
        if isinstance(target := follow(root, place.schema), dict):
            waiting.append(Place(target, place.schema["$ref"]))


def follow(root: Any, schema: Mapping[str, Any]) -> Any:
    """Return the value that a schema's `$ref` points to; None if it points to none, or is no pointer."""
    reference = schema.get("$ref")
    if not isinstance(reference, str) or reference.partition("/")[0] != ROOT:
        return None
    found = root
    for key in reference.split("/")[1:]:
        found = _enter(found, unquote(key).replace("~1", "/").replace("~0", "~"))
    return found


def _enter(value: Any, key: str) -> Any:
    if isinstance(value, list) and key.isdecimal() and int(key) < len(value):
        return value[int(key)]
    return value.get(key) if isinstance(value, Mapping) else None


def move_references(schema: Mapping[str, Any], place: str) -> Any:
    """Return a copy whose references hold where it stands at this place, `#/…`, of another document."""
    return change_references(schema, ROOT, place)


def change_references(schema: Mapping[str, Any], before: str, after: str) -> Any:
    """Return a copy whose references begin with another pointer, where they begin with `before`."""
    copy = msgspec.json.decode(msgspec.json.encode(schema))
    for inner in iterate_all(copy):
        if isinstance(reference := inner.get("$ref"), str) and f"{reference}/".startswith(f"{before}/"):
            inner["$ref"] = after + reference[len(before) :]
    return copy


def has_reference(schema: Mapping[str, Any], begin: str = "") -> bool:
    """Whether it refers to anything, by a reference that begins so."""
    return any(str(inner["$ref"]).startswith(begin) for inner in iterate_all(schema) if "$ref" in inner)


def iterate_all(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and each one inside, at any depth, also behind keywords that are unknown."""
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
