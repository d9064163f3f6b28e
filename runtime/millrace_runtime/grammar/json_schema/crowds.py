"""Finds where many objects may open in an answer: the parser has all that may follow in one row. Pure."""

import json
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.grammar.json_schema.places import (
    ROOT,
    follow,
    iterate_all,
    move_references,
    quote_path,
    walk,
)

MAX_OPTIONAL = 600
"""Properties that may be left out, of all objects that may open at a place. Each is four items in a row of
the parser, which takes 2,500 (`matcher.py`)."""
_CROWD = 200
"""From this weight on a place is worth a trial: 50 properties, 25 arrays or 100 other alternatives. What is
lighter passes: with 152,000 tokens a mask has 32 items for each one in the row, and may have 120,000."""
_PROPERTY, _REPEATED, _OTHER = 4, 8, 2
"""Weights: of a property that may be left out, as many items in the row; of what has any number of parts of
one kind, with which alternatives are open together; of other alternatives."""
_MAX_STEPS = 100_000
"""Of looking at a schema, for one document: some 100 ms."""
_WHOLE = f"{ROOT}/$defs/whole"
_NAMES = ("$anchor", "$id", "id")
_MAX_DEPTH = 3
_MAX_LETTERS = 1000
"""Of members before another one."""
_CHOICES = ("anyOf", "oneOf")
_ANY_NAME = '{"a": '
_OTHER_PARTS = {
    "additionalProperties": _ANY_NAME,
    "items": "[",
    "patternProperties": _ANY_NAME,
    "prefixItems": "[",
}
"""Where schemas of values stand that have no name, and a text that opens them."""
_CLOSING = {"{": "}", "[": "]"}
_EXAMPLES = {"array": "[]", "boolean": "true", "integer": "0", "number": "0", "object": "{}", "string": '""'}
_REPEATING = ("additionalProperties", "items", "patternProperties")
_OF_PARTS = frozenset(
    {*_OTHER_PARTS, "maxItems", "maxProperties", "minItems", "minProperties", "properties", "required"}
)
"""What the schema of an object or an array has, but for one of any."""


class Crowd(NamedTuple):
    """Schemas of objects and arrays that a value at one place of an answer may have."""

    paths: Sequence[str]
    """Of the schemas at that place."""
    num_optional: int
    """Properties that may be left out, of all objects."""
    beginning: str
    """A text that opens several of them in each other, and closes them: the way through the largest."""

    @property
    def is_whole(self) -> bool:
        """Whether the place is the whole answer."""
        return self.paths[0] == ROOT


def check_crowds(root: dict[str, Any]) -> None:
    """Raise GrammarError where more may follow than the parser takes."""
    for crowd in list_crowds(root):
        if crowd.num_optional > MAX_OPTIONAL:
            raise GrammarError(
                f"{quote_path(crowd.paths[0])} has more than {MAX_OPTIONAL} properties that may be left out, "
                "in all alternatives together: list some in `required`"
            )


def list_crowds(root: dict[str, Any]) -> list[Crowd]:
    """Return the crowds of a document. Raises GrammarError for too many alternatives in alternatives."""
    return list(_Search(root).run())


def write_alone(root: dict[str, Any], crowd: Crowd) -> dict[str, Any] | None:
    """Return the schema of an array of a crowd's values, or the document if they are the whole answer.

    None where references mean names: those hold at their place alone. The array may also be empty, so the
    schema can be written where no value fits the crowd.
    """
    if crowd.is_whole:
        return root
    if any(isinstance(one.get(key), str) for one in iterate_all(root) for key in _NAMES):
        return None
    options = [{"$ref": f"{_WHOLE}{path[len(ROOT) :]}"} for path in crowd.paths]
    top = {key: root[key] for key in ("$schema",) if key in root}
    _, name, key = _WHOLE.split("/")
    values = {"type": "array", "items": {"anyOf": options}}
    return {**top, **values, name: {key: move_references(root, _WHOLE)}}


class _Spot(NamedTuple):
    """A place of an answer: the schemas there, and the objects and arrays among them."""

    schemas: Sequence[dict[str, Any]]
    leaves: Mapping[int, dict[str, Any]]
    num_optional: int
    weight: int


class _Search:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._paths = {id(place.schema): place.path for place in walk(root)}
        self._num_steps = 0
        self._spots: dict[frozenset[int], _Spot] = {}
        """By the schemas at the place."""

    def run(self) -> Iterator[Crowd]:
        first = self._open([self._root])
        waiting, seen = deque([first]), {frozenset(first.leaves)}
        while waiting:
            spot = waiting.popleft()
            if spot.weight >= _CROWD:
                yield self._describe(spot)
            for inner in self._list_inner(spot).values():
                if inner.leaves and (key := frozenset(inner.leaves)) not in seen:
                    seen.add(key)
                    waiting.append(inner)

    def _open(self, schemas: Sequence[dict[str, Any]]) -> _Spot:
        """Return the spot of a value that may have any of these schemas."""
        alternatives = [self._resolve(schema) for schema in schemas]
        key = frozenset(map(id, alternatives))
        if key not in self._spots:
            leaves: dict[int, dict[str, Any]] = {}
            groups: list[list[dict[str, Any]]] = []
            seen: set[int] = set()
            while alternatives:
                group = self._list_members(alternatives.pop(), seen)
                choices = [one for member in group for word in _CHOICES for one in _as_list(member.get(word))]
                alternatives += [one for one in choices if isinstance(one, dict)]
                groups.append([member for member in group if member.keys() & _OF_PARTS])
                leaves |= {id(member): member for member in groups[-1]}
            counts = [_count_optional(group) for group in groups]
            weight = sum(map(_weigh, groups, counts))
            self._spots[key] = _Spot(schemas, leaves, sum(counts), weight)
        return self._spots[key]

    def _list_members(self, schema: dict[str, Any], seen: set[int]) -> list[dict[str, Any]]:
        """Return a schema and those that a value fits together with it, without those seen before."""
        waiting, members = [schema], []
        while waiting:
            known = waiting.pop()
            if not isinstance(known, dict) or id(known) in seen:
                continue
            seen.add(id(known))
            members.append(known)
            waiting += [*_as_list(known.get("allOf")), follow(self._root, known)]
        self._num_steps += 1 + len(members)
        if self._num_steps > _MAX_STEPS:
            raise GrammarError("it has too many alternatives in alternatives: make it smaller")
        return members

    def _resolve(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return what a schema refers to, if it does."""
        target = follow(self._root, schema)
        return target if len(schema) == 1 and isinstance(target, dict) else schema

    def _describe(self, spot: _Spot) -> Crowd:
        paths = [self._paths[id(schema)] for schema in spot.schemas if id(schema) in self._paths]
        return Crowd(paths or [ROOT], spot.num_optional, self._write_beginning(spot))

    def _list_inner(self, spot: _Spot) -> dict[str, _Spot]:
        """Return the spots right inside, by a text that opens each.

        Objects with different constants before a property never have it open together.
        """
        parts: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
        for leaf in spot.leaves.values():
            for opening, part in self._list_openings(leaf):
                parts[opening][id(part)] = part
        return {opening: self._open(list(found.values())) for opening, found in parts.items()}

    def _list_openings(self, leaf: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the parts of an object or array, each with the text before it."""
        needed, before = _list_required(leaf), "{"
        for key, part in _as_mapping(leaf.get("properties")).items():
            if isinstance(part, dict):
                member = f"{json.dumps(key)}: "
                yield before + member, part
                if key in needed and len(before) < _MAX_LETTERS:
                    before += f"{member}{self._write_example(part)}, "
        for keyword, opening in _OTHER_PARTS.items():
            listed = leaf.get(keyword)
            named = (
                listed.values() if keyword == "patternProperties" and isinstance(listed, dict) else [listed]
            )
            for part in listed if isinstance(listed, list) else named:
                if isinstance(part, dict):
                    yield opening, part

    def _write_example(self, schema: dict[str, Any]) -> str:
        """Return a value of a schema that is simple."""
        known = self._resolve(schema)
        for value in [known["const"]] if "const" in known else _as_list(known.get("enum"))[:1]:
            return json.dumps(value)
        return _EXAMPLES.get(str(known.get("type")), "null")

    def _write_beginning(self, spot: _Spot) -> str:
        begun = closing = ""
        for _ in range(_MAX_DEPTH):
            if not (inner := self._list_inner(spot)):
                break
            opening, spot = max(inner.items(), key=lambda one: one[1].weight)
            begun, closing = begun + opening, _CLOSING[opening[0]] + closing
        first = next((opening[0] for opening in self._list_inner(spot)), "")
        value = first + _CLOSING[first] if first else self._write_example(spot.schemas[0])
        return f"{begun}{value}{closing}"


def _list_required(schema: Mapping[str, Any]) -> set[str]:
    return {name for name in _as_list(schema.get("required")) if isinstance(name, str)}


def _count_optional(group: Sequence[Mapping[str, Any]]) -> int:
    names = {name for schema in group for name in _as_mapping(schema.get("properties"))}
    return len(names.difference(*map(_list_required, group)))


def _weigh(group: Sequence[Mapping[str, Any]], num_optional: int) -> int:
    is_repeated = any(isinstance(schema.get(keyword), dict) for schema in group for keyword in _REPEATING)
    return max(_PROPERTY * num_optional, _REPEATED if is_repeated else _OTHER if group else 0)


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
