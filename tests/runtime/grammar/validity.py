"""Whether a value is as a JSON schema says, for the keywords that the tests draw."""

from collections.abc import Callable, Mapping
from typing import Any

TYPES = {
    "array": list,
    "boolean": bool,
    "integer": int,
    "null": type(None),
    "number": int | float,
    "object": dict,
    "string": str,
}


def fits(value: Any, schema: Any, definitions: Mapping[str, Any]) -> bool:
    """Whether a value fits. References mean these definitions."""
    if isinstance(schema, bool):
        return schema
    known = sorted(schema.keys() & CHECKS, key=lambda key: key != "type")
    return all(CHECKS[key](value, schema, definitions) for key in known)


Check = Callable[[Any, Mapping[str, Any], Mapping[str, Any]], bool]


def _has_type(value: Any, schema: Mapping[str, Any], _: Mapping[str, Any]) -> bool:
    is_bool = isinstance(value, bool)
    return isinstance(value, TYPES[schema["type"]]) and is_bool == (schema["type"] == "boolean")


def _is_listed(value: Any, schema: Mapping[str, Any], _: Mapping[str, Any]) -> bool:
    listed = schema["enum"] if "enum" in schema else [schema["const"]]
    return any(value == item and isinstance(value, bool) == isinstance(item, bool) for item in listed)


def _fits_properties(value: Any, schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> bool:
    if not isinstance(value, dict):
        return True
    properties, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
    return all(fits(item, properties.get(key, rest), definitions) for key, item in value.items())


def _fits_items(value: Any, schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> bool:
    return not isinstance(value, list) or all(fits(item, schema["items"], definitions) for item in value)


CHECKS: dict[str, Check] = {
    "$ref": lambda value, schema, known: fits(value, known[schema["$ref"].removeprefix("#/$defs/")], known),
    "type": _has_type,
    "const": _is_listed,
    "enum": _is_listed,
    "minimum": lambda value, schema, _: value >= schema["minimum"],
    "maximum": lambda value, schema, _: value <= schema["maximum"],
    "maxLength": lambda value, schema, _: len(value) <= schema["maxLength"],
    "allOf": lambda value, schema, known: all(fits(value, one, known) for one in schema["allOf"]),
    "anyOf": lambda value, schema, known: any(fits(value, one, known) for one in schema["anyOf"]),
    "oneOf": lambda value, schema, known: sum(fits(value, one, known) for one in schema["oneOf"]) == 1,
    "items": _fits_items,
    "maxItems": lambda value, schema, _: len(value) <= schema["maxItems"],
    "uniqueItems": lambda value, *_: len(set(map(repr, value))) == len(value),
    "properties": _fits_properties,
    "additionalProperties": _fits_properties,
    "propertyNames": lambda value, schema, _: all(fits(key, schema["propertyNames"], {}) for key in value),
    "required": lambda value, schema, _: not isinstance(value, dict) or {*schema["required"]} <= value.keys(),
}
