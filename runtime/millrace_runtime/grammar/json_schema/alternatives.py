"""Proves that a value fits at most one alternative of a `oneOf`. Pure.

A grammar writes any of the alternatives, so two of them must not share a value.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple, TypeAlias

from millrace_runtime.grammar.json_schema.places import follow

_MAX_DEPTH = 6
"""Of schemas inside alternatives."""
_MAX_STEPS = 40_000
"""For one document: some 400 ms."""
_MAX_COMPARED = 128
"""Alternatives that are compared with each other."""
_MAX_CONJUNCTS = 64
_TYPE_NAMES = {"integer": "number"}
"""To JSON schema 1.0 is an integer, too."""
_TYPES: Mapping[type, str] = {
    bool: "boolean",
    dict: "object",
    float: "number",
    int: "number",
    list: "array",
    str: "string",
    type(None): "null",
}
"""Of values."""
_CHOICES = ("oneOf", "anyOf")
Conjuncts: TypeAlias = list[Any]
"""Schemas that a value fits together."""


class _Tagged(NamedTuple):
    """An object's schema that has the tag."""

    schema: dict[str, Any]
    values: frozenset[Hashable]


class Alternatives:
    """The alternatives of one document."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._num_steps = 0
        self._tags: list[tuple[dict[str, Any], str]] = []
        """Schemas that get a required property once all is proved: what is proved is of the client's own."""

    def separate(self, schema: dict[str, Any]) -> bool:
        """Return whether a value fits at most one alternative of a schema's `oneOf`.

        Where a property tells them apart, each of them gets it as a required one: pydantic, which finds the
        model of an object by it, leaves a tag with a default optional.
        """
        options = schema["oneOf"]
        if len(options) < 2 or self._are_known(options) or self._separate_by_tag(options, schema):
            return True
        if len(options) > _MAX_COMPARED:
            return False
        outer = {key: value for key, value in schema.items() if key != "oneOf"}
        return all(
            self._are_disjoint([outer, one], [outer, other], _MAX_DEPTH)
            for one, other in combinations(options, 2)
        )

    def require_tags(self) -> None:
        """Make each tag required that is not, where `separate` has found one."""
        for schema, name in self._tags:
            _require(schema, name)

    def _are_known(self, options: Sequence[Any]) -> bool:
        """Whether all alternatives are values, and none is there twice."""
        values = [self._list_values(option) for option in options]
        return all(values) and _are_distinct(values)

    def _separate_by_tag(self, options: Sequence[Any], outer: Mapping[str, Any]) -> bool:
        names = dict.fromkeys(self._list_names(options[0], _MAX_DEPTH))
        found = (self._find_tagged(options, name, outer) for name in names)
        tags = [(name, schemas) for name, schemas in zip(names, found, strict=True) if schemas]
        if not tags:
            return False
        # A tag that is required already changes nothing.
        name, schemas = next((tag for tag in tags if all(_requires(one, tag[0]) for one in tag[1])), tags[0])
        self._tags += [(schema, name) for schema in schemas]
        return True

    def _find_tagged(
        self, options: Sequence[Any], name: str, outer: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Return the objects of alternatives that a property tells apart; none if it does not."""
        tagged = [self._list_tagged(option, name, _MAX_DEPTH) for option in options]
        values = [frozenset[Hashable]().union(*(one.values for one in found)) for found in tagged]
        schemas = [one.schema for found in tagged for one in found]
        are_objects = all("object" in (outer.get("type"), one.get("type")) for one in schemas)
        return schemas if all(tagged) and are_objects and _are_distinct(values) else []

    def _list_names(self, option: Any, depth: int) -> Iterator[str]:
        """Yield the properties of an alternative, or of its first one."""
        if not isinstance(option, dict) or not depth:
            return
        yield from _as_mapping(option.get("properties"))
        yield from self._list_names(follow(self._root, option), depth - 1)
        for keyword in (*_CHOICES, "allOf"):
            for inner in _as_list(option.get(keyword))[: 1 if keyword in _CHOICES else None]:
                yield from self._list_names(inner, depth - 1)

    def _list_tagged(self, option: Any, name: str, depth: int) -> list[_Tagged]:
        """Return the objects that an alternative may be, with their tags; none if one has no tag."""
        if not isinstance(option, dict) or not depth:
            return []
        if values := self._list_values(_as_mapping(option.get("properties")).get(name)):
            return [_Tagged(option, values)]
        if target := self._list_tagged(follow(self._root, option), name, depth - 1):
            return target
        for keyword in _CHOICES:
            if choices := _as_list(option.get(keyword)):
                found = [self._list_tagged(choice, name, depth - 1) for choice in choices]
                return [one for tagged in found for one in tagged] if all(found) else []
        members = (self._list_tagged(member, name, depth - 1) for member in _as_list(option.get("allOf")))
        return next(filter(None, members), [])

    def _list_values(self, schema: Any) -> frozenset[Hashable]:
        """Return the only values of a schema; none if it has others, or such as are no scalars."""
        for _ in range(_MAX_DEPTH):
            if not isinstance(schema, dict):
                break
            if "const" in schema or "enum" in schema:
                known = [name_value(value) for value in list_listed(schema)]
                return frozenset() if None in known else frozenset(known)
            members = _as_list(schema.get("allOf"))
            schema = members[0] if len(members) == 1 else follow(self._root, schema)
        return frozenset()

    def _are_disjoint(self, one: Conjuncts, other: Conjuncts, depth: int) -> bool:
        """Whether it is proved that no value fits the schemas on either side at once."""
        self._num_steps += 1
        if not depth or self._num_steps > _MAX_STEPS:
            return False
        one, other = self._flatten(one), self._flatten(other)
        types, other_types = _list_types(one), _list_types(other)
        if not types & other_types or any(known is False for known in (*one, *other)):
            return True
        values, others = self._intersect_values(one), self._intersect_values(other)
        if values and others and not values & others:
            return True
        if types & other_types == {"object"} and any(
            self._are_disjoint(_list_inner(one, key), _list_inner(other, key), depth - 1)
            for key in sorted(_list_required(one) | _list_required(other))
        ):
            return True
        return self._is_each_disjoint(one, other, depth) or self._is_each_disjoint(other, one, depth)

    def _is_each_disjoint(self, one: Conjuncts, other: Conjuncts, depth: int) -> bool:
        """Whether each choice that `one` has is disjoint with `other`."""
        for place, known in enumerate(one):
            for keyword in _CHOICES:
                if isinstance(known, dict) and (choices := _as_list(known.get(keyword))):
                    rest = [*one[:place], {**known, keyword: None}, *one[place + 1 :]]
                    return all(self._are_disjoint([*rest, choice], other, depth - 1) for choice in choices)
        return False

    def _flatten(self, schemas: Conjuncts) -> Conjuncts:
        """Return schemas with those that they refer to, and those of `allOf`."""
        found: Conjuncts = []
        waiting = list(schemas)
        while waiting and len(found) < _MAX_CONJUNCTS:
            known = waiting.pop(0)
            if any(known is before for before in found):
                continue
            found.append(known)
            if isinstance(known, dict):
                target = follow(self._root, known)
                waiting += [*_as_list(known.get("allOf")), *([] if target is None else [target])]
        return found

    def _intersect_values(self, schemas: Conjuncts) -> frozenset[Hashable]:
        known = [values for schema in schemas if (values := self._list_values(schema))]
        return frozenset.intersection(*known) if known else frozenset()


def list_listed(schema: Mapping[str, Any]) -> list[Any]:
    """Return the values that a schema lists."""
    return [schema["const"]] if "const" in schema else _as_list(schema.get("enum"))


def list_types(value: Any) -> list[str]:
    """Return the types of a value."""
    name = _TYPES[type(value)]
    is_whole = name == "number" and (isinstance(value, int) or value.is_integer())
    return [name, "integer"] if is_whole else [name]


def name_value(value: Any) -> Hashable:
    """Return a key that two scalars share exactly if JSON calls them equal; None for arrays and objects."""
    if isinstance(value, bool) or value is None:
        return str(value), value
    if isinstance(value, int | float):
        return "number", value
    return ("string", value) if isinstance(value, str) else None


def _are_distinct(values: Sequence[frozenset[Hashable]]) -> bool:
    return sum(map(len, values)) == len(frozenset().union(*values))


def _requires(schema: Mapping[str, Any], name: str) -> bool:
    return name in _as_list(schema.get("required"))


def _require(schema: dict[str, Any], name: str) -> None:
    if not _requires(schema, name):
        schema["required"] = [*_as_list(schema.get("required")), name]


def _list_types(schemas: Conjuncts) -> frozenset[str]:
    types = frozenset(_TYPES.values())
    for schema in map(_as_mapping, schemas):
        named = schema.get("type")
        if listed := [named] if isinstance(named, str) else _as_list(named):
            types &= {_TYPE_NAMES.get(name, name) for name in listed if isinstance(name, str)}
        if "const" in schema or "enum" in schema:
            types &= {list_types(value)[0] for value in list_listed(schema)}
    return types


def _list_required(schemas: Conjuncts) -> set[str]:
    listed = [_as_list(schema.get("required")) for schema in schemas if isinstance(schema, dict)]
    return {name for names in listed for name in names if isinstance(name, str)}


def _list_inner(schemas: Conjuncts, key: str) -> Conjuncts:
    """Return the schemas of a property."""
    found = []
    for schema in schemas:
        known = _as_mapping(schema)
        if key in (properties := _as_mapping(known.get("properties"))):
            found.append(properties[key])
        elif "additionalProperties" in known and not known.get("patternProperties"):
            found.append(known["additionalProperties"])
    return found


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
