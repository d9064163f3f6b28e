"""Changes a client's JSON schema into one that llguidance takes, or refuses it. Pure.

Keywords that change no answer are dropped. Keywords that a grammar can express in another way are rewritten:
each answer still fits the client's schema. The others are refused, each with its place in the schema.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache
from itertools import permutations
from math import perm
from typing import Any, NoReturn

from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.grammar.json_schema.alternatives import (
    Alternatives,
    list_listed,
    list_types,
    name_value,
)
from millrace_runtime.grammar.json_schema.patterns import (
    has_look_around,
    is_zods,
    split_pattern,
    write_name_pattern,
)
from millrace_runtime.grammar.json_schema.places import ROOT, Place, follow, iterate_all, quote_path, walk

ADDED = "$comment"
"""In a schema that replaces a keyword: the keyword's name."""
_ADDING = ("pattern", "propertyNames")
OPTIONS = "x-guidance"
"""llguidance's own, at the top."""
_WRITTEN = frozenset(
    "$ref additionalItems additionalProperties allOf anyOf const enum exclusiveMaximum "  # noqa: SIM905
    "exclusiveMinimum format items maxItems maxLength maxProperties maximum minItems minLength minProperties "
    "minimum multipleOf oneOf pattern patternProperties prefixItems properties required type".split(" ")
)
"""Keywords that llguidance writes."""
_NAMES = frozenset({"$anchor", "$id", "id"})
"""Keywords with names that references may mean."""
_KEPT = _WRITTEN | _NAMES | {"$defs", "$schema", "definitions"}
_FORMATS = frozenset(
    "date date-time duration email hostname ipv4 ipv6 time uri uuid".split(" ")  # noqa: SIM905
)
"""Formats that llguidance writes. To JSON schema a format is an annotation."""
_UNKNOWN = ("$dynamicRef", "$recursiveRef", "dependencies", "dependentRequired", "dependentSchemas")
_APPLICATORS = frozenset({"$ref", "allOf", "anyOf", "oneOf"})
_MAX_REFERENCES = 8
_OTHER_TYPES = ("boolean", "integer", "null", "number", "object", "string")
"""Types other than arrays."""
_OF_ARRAYS = ("items", "minItems", "maxItems")
_MAX_ARRAYS = 65
"""Arrays without a repeated item that are written one by one: those of four values compile in 7 ms."""
_MAX_ARRAY_BYTES = 16 << 10
_LOWEST = -(2**63) + 1024
"""The float next to the lowest integer of 64 bits, which pydantic and Go publish as a minimum."""
_NO_SUCH = "can't be kept by a grammar: leave it out, and check the answer for it"
_WHY = {
    "$ref": "refers to nothing in this schema: refer to a part of it, as `#/$defs/Name` does",
    "oneOf": "has alternatives that may fit the same value: write `anyOf`, or give each a property with a "
    "`const` of its own",
    "propertyNames": "may have an `enum`, a `const`, a `pattern` or lengths: write one of them alone",
    "unevaluatedItems": "is not supported beside other schemas: write `items`",
    "unevaluatedProperties": "is not supported beside other schemas: write `additionalProperties`",
    "uniqueItems": "can't be kept by a grammar for such items, so it excludes `strict`: leave one of the two "
    "out. Without `strict` an answer may have an item twice",
}


Compile = Callable[[dict[str, Any]], str | None]
"""Returns why llguidance refuses a rewritten schema, or None."""


def rewrite_schema(schema: dict[str, Any], find_why: Compile, *, is_strict: bool = False) -> dict[str, Any]:
    """Change a schema into one for llguidance, in place, and return it. Raises GrammarError.

    With `is_strict` it refuses each keyword that it can't keep. Otherwise it drops `uniqueItems`, and beside
    a format a pattern with look-around.
    """
    _Rewriting(schema, find_why, is_strict=is_strict).run()
    return schema


class _Rewriting:
    """The rules for one document. Each changes the schema at a place."""

    def __init__(self, root: dict[str, Any], find_why: Compile, *, is_strict: bool) -> None:
        self._root = root
        self._find_why = cache(lambda schema: find_why(json.loads(schema)))
        self._is_strict = is_strict
        self._alternatives = Alternatives(root)
        schemas = list(iterate_all(root))
        self._has_names = any(isinstance(one.get(key), str) for one in schemas for key in _NAMES)
        """Whether a reference may mean a name, and not a pointer from the top."""
        self._heads = {str(one.get("$ref")).partition("/")[2].partition("/")[0] for one in schemas}
        """The keywords at the top that references begin with."""

    def run(self) -> None:
        for place in walk(self._root):
            for keyword in [*place.schema]:
                if keyword in place.schema and (rule := _RULES.get(keyword)) is not None:
                    rule(self, place)
            self._drop_annotations(place)
        self._alternatives.require_tags()

    def bind_reference(self, place: Place) -> None:
        if follow(self._root, place.schema) is None and not self._has_names:
            _refuse(place, "$ref")

    def bind_format(self, place: Place) -> None:
        if isinstance(name := place.schema["format"], str) and name not in _FORMATS:
            del place.schema["format"]

    def bind_pattern(self, place: Place) -> None:
        """Of a pattern and a format that say the same, one may be enough: zod 4 publishes both."""
        schema = place.schema
        if not isinstance(pattern := schema["pattern"], str):
            return
        schema["pattern"], *others = split_pattern(pattern)
        name = schema.get("format")
        if isinstance(name, str) and name in _FORMATS:
            if any(map(has_look_around, [schema["pattern"], *others])):
                if not self._is_strict or is_zods(pattern, name):
                    del schema["pattern"]  # the format binds
                return
            if self._excludes(name, schema["pattern"]):
                del schema["format"]  # to JSON schema an annotation
        for other in others:
            _add(place, "pattern", "string", {"pattern": other})

    def _excludes(self, name: str, pattern: str) -> bool:
        """Whether no text fits both, as zod's times have no zone, and those of the format need one."""
        known = {"type": "string", "pattern": pattern}
        both = self._find_why(json.dumps({**known, "format": name}))
        return both is not None and self._find_why(json.dumps(known)) is None

    def bind_unique_items(self, place: Place) -> None:
        """A grammar knows no set, but a few values have few orders."""
        schema = place.schema
        is_needed = schema.pop("uniqueItems") is not False and schema.get("maxItems") not in (0, 1)
        if not is_needed or schema.get("type", "array") in _OTHER_TYPES:
            return
        if (arrays := self._list_unique(schema)) is not None:
            for keyword in _OF_ARRAYS:
                schema.pop(keyword, None)
            schema["enum"] = arrays
        elif self._is_strict:
            _refuse(place, "uniqueItems")

    def _list_unique(self, schema: Mapping[str, Any]) -> list[list[Any]] | None:
        """Return all arrays without a repeated item; None: too many."""
        if schema.get("type") != "array" or schema.keys() & _WRITTEN - {"type", *_OF_ARRAYS}:
            return None
        values = self._list_values(schema.get("items"))
        low, high = schema.get("minItems", 0), schema.get("maxItems", len(values))
        if not values or not isinstance(low, int) or not isinstance(high, int):
            return None
        lengths = range(max(0, low), min(high, len(values)) + 1)
        if sum(perm(len(values), length) for length in lengths) > _MAX_ARRAYS:
            return None
        arrays = [list(items) for length in lengths for items in permutations(values, length)]
        return arrays if len(json.dumps(arrays)) <= _MAX_ARRAY_BYTES else None

    def _list_values(self, items: Any) -> list[Any]:
        """Return the only values of items, each once; none if there are others."""
        known = self._resolve(items)
        if known.keys() & _WRITTEN - {"const", "enum", "type"} or not set(known) & {"const", "enum"}:
            return [False, True] if known.get("type") == "boolean" else []
        named = known.get("type")
        values = [value for value in list_listed(known) if named is None or named in list_types(value)]
        return list({name_value(value) or json.dumps(value): value for value in values}.values())

    def bind_minimum(self, place: Place, keyword: str) -> None:
        """The library takes bounds for floats, and can't write the lowest ones."""
        bound = place.schema[keyword]
        if isinstance(bound, int | float) and bound < _LOWEST:
            place.schema[keyword] = _LOWEST

    def bind_names(self, place: Place) -> None:
        names = place.schema.pop("propertyNames")
        if names is True:
            return
        if (rule := self._write_names(names)) is None:
            _refuse(place, "propertyNames")
        if rule:
            _add(place, "propertyNames", "object", {"additionalProperties": False, **rule})

    def _write_names(self, names: Any) -> dict[str, Any] | None:
        """Return the keywords that allow only these names; {}: any name; None: no grammar has them."""
        if names is False:
            return {"properties": {}}
        known = self._resolve(names)
        binding = known.keys() & (_WRITTEN | _RULES.keys()) - {"type"}
        if known.get("type", "string") != "string" or not (known or names == {}):
            return None
        if not binding:
            return {}
        if binding <= {"const", "enum"}:
            listed = [value for value in list_listed(known) if isinstance(value, str)]
            return {"properties": dict.fromkeys(listed, True)}
        pattern = write_name_pattern({key: known[key] for key in binding})
        return None if pattern is None else {"patternProperties": {pattern: True}} if pattern else {}

    def bind_alternatives(self, place: Place) -> None:
        options = place.schema["oneOf"]
        if isinstance(options, list) and options and not self._alternatives.separate(place.schema):
            _refuse(place, "oneOf")

    def bind_not(self, place: Place) -> None:
        if place.schema["not"] is True or place.schema["not"] == {}:
            place.schema.clear()
            place.schema["enum"] = []
        elif place.schema["not"] is not False:
            _refuse(place, "not")

    def bind_condition(self, place: Place) -> None:
        if place.schema.keys() & {"then", "else"}:
            _refuse(place, "if")

    def bind_contains(self, place: Place) -> None:
        if place.schema.get("minContains") != 0 or "maxContains" in place.schema:
            _refuse(place, "contains")

    def bind_unevaluated(self, place: Place, keyword: str, known: str) -> None:
        if place.schema[keyword] in (True, {}):
            return
        if place.schema.keys() & _APPLICATORS:
            _refuse(place, keyword)
        place.schema.setdefault(known, place.schema[keyword])

    def _resolve(self, schema: Any) -> dict[str, Any]:
        """Return a schema, or what it refers to if it says no more."""
        for _ in range(_MAX_REFERENCES):
            if not isinstance(schema, dict) or schema.keys() & _WRITTEN != {"$ref"}:
                break
            if (target := follow(self._root, schema)) is None:
                break
            schema = target
        return schema if isinstance(schema, dict) else {}

    def _drop_annotations(self, place: Place) -> None:
        """Drop keywords that bind nothing. Beside a `$ref` llguidance would take them for more schema."""
        for keyword in [*place.schema]:
            is_used = place.path == ROOT and (keyword == OPTIONS or keyword in self._heads)
            is_added = keyword == ADDED and place.schema[ADDED] in _ADDING
            if keyword not in _KEPT and not is_used and not is_added:
                del place.schema[keyword]


def _refuse_used(keyword: str) -> Callable[[_Rewriting, Place], None]:
    """Return a rule for a keyword that is refused unless it is empty."""

    def refuse(_: _Rewriting, place: Place) -> None:
        if place.schema[keyword] != {}:
            _refuse(place, keyword)

    return refuse


_RULES: dict[str, Callable[[_Rewriting, Place], None]] = {
    "$ref": _Rewriting.bind_reference,
    "format": _Rewriting.bind_format,
    "minimum": lambda rules, place: rules.bind_minimum(place, "minimum"),
    "exclusiveMinimum": lambda rules, place: rules.bind_minimum(place, "exclusiveMinimum"),
    "pattern": _Rewriting.bind_pattern,
    "uniqueItems": _Rewriting.bind_unique_items,
    "propertyNames": _Rewriting.bind_names,
    "oneOf": _Rewriting.bind_alternatives,
    "not": _Rewriting.bind_not,
    "if": _Rewriting.bind_condition,
    "contains": _Rewriting.bind_contains,
    "unevaluatedItems": lambda rules, place: rules.bind_unevaluated(place, "unevaluatedItems", "items"),
    "unevaluatedProperties": lambda rules, place: rules.bind_unevaluated(
        place, "unevaluatedProperties", "additionalProperties"
    ),
    **{keyword: _refuse_used(keyword) for keyword in _UNKNOWN},
}


def _add(place: Place, keyword: str, type_name: str, schema: Mapping[str, Any]) -> None:
    """Add a schema for the values of a type in the name of a keyword: an answer must fit it, too."""
    known = {"type": type_name} if place.schema.get("type") == type_name else {}
    if isinstance(members := place.schema.get("allOf", []), list):
        place.schema["allOf"] = [*members, {ADDED: keyword, **known, **schema}]


def _refuse(place: Place, keyword: str) -> NoReturn:
    raise GrammarError(f"{quote_path(place.point_to(keyword))} {_WHY.get(keyword, _NO_SUCH)}")
