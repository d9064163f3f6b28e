"""Finds the places of an answer where many values may open: the parser has all of them in one row. Pure."""

import json
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.grammar.json_schema.alternatives import list_listed
from millrace_runtime.grammar.json_schema.places import ROOT, follow, walk

VALUE = "\0"
"""In a beginning: any value that fits there."""
_CROWD = 200
"""From this weight on a place is worth a trial: 50 properties, 25 arrays or 100 other alternatives. Lighter
places pass: with 152,000 tokens a mask has 32 items for each one in the row, and may have 120,000."""
_PROPERTY, _REPEATED, _OTHER = 4, 8, 2
"""Weights. A property that may be left out has so many items in the row. An object or array of any number of
parts weighs more, because alternatives stay open together behind each part. Others weigh least."""
_MAX_STEPS = 100_000
"""Of looking at a schema, for one document: some 100 ms."""
_MAX_DEPTH = 3
_MAX_LETTERS = 1000
"""Of members before another one."""
_MAX_STRETCHES = 2
"""Between required members of the objects at one place, that are tried."""
_CHOICES = ("anyOf", "oneOf")
_ANY_NAME = '"a": '
_OTHER_PARTS = {
    "additionalProperties": ("{", _ANY_NAME),
    "items": ("[", ""),
    "patternProperties": ("{", _ANY_NAME),
    "prefixItems": ("[", ""),
}
"""Keywords with the schemas of values that have no name, each with a text that opens such a value."""
_CLOSING = {"{": "}", "[": "]"}
_REPEATING = ("additionalProperties", "items", "patternProperties")
_OF_PARTS = frozenset(
    {*_OTHER_PARTS, "maxItems", "maxProperties", "minItems", "minProperties", "properties", "required"}
)
"""The schema of an object or an array has one of these keywords, unless any object or array fits it."""


class Crowd(NamedTuple):
    """Schemas of objects and arrays that a value at one place of an answer may have."""

    path: str
    """Of the first one."""
    schemas: Sequence[dict[str, Any]]
    beginnings: Sequence[str]
    """Texts behind which much may follow: between required members, and the way through the largest parts."""


def list_crowds(root: dict[str, Any]) -> list[Crowd]:
    """Return the crowds of a document. Raises GrammarError for too many alternatives in alternatives."""
    return list(_Search(root).run())


class _Opening(NamedTuple):
    """Where a part of an object or an array may begin."""

    before: str
    """The required members before it. Objects with different constants there never have it open together."""
    name: str
    part: Any
    is_optional: bool = False


class _Spot(NamedTuple):
    """A place of an answer: the schemas there, and what may open in them."""

    schemas: Sequence[dict[str, Any]]
    key: frozenset[int]
    """Of the objects and arrays among them."""
    openings: Sequence[_Opening]
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
        waiting, seen = deque([first]), {first.key}
        while waiting:
            spot = waiting.popleft()
            if spot.weight >= _CROWD:
                yield self._describe(spot)
            for inner in self._list_inner(spot).values():
                if inner.key and inner.key not in seen:
                    seen.add(inner.key)
                    waiting.append(inner)

    def _open(self, schemas: Sequence[dict[str, Any]]) -> _Spot:
        """Return the spot of a value that may have any of these schemas."""
        alternatives = [self._resolve(schema) for schema in schemas]
        known = frozenset(map(id, alternatives))
        if known not in self._spots:
            groups = list(self._list_groups(alternatives))
            key = frozenset(id(member) for group in groups for member in group)
            listed = [list(self._list_openings(group)) for group in groups]
            weight = sum(map(_weigh, groups, listed))
            openings = [opening for found in listed for opening in found]
            self._spots[known] = _Spot(schemas, key, openings, weight)
        return self._spots[known]

    def _list_groups(self, schemas: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
        """Yield the objects and arrays among alternatives, each as the schemas that it fits together.

        A part that alternatives share counts in each: the parser has it as often.
        """
        waiting: deque[tuple[dict[str, Any], list[dict[str, Any]]]] = deque((one, []) for one in schemas)
        seen = {id(one) for one in schemas}
        while waiting:
            schema, around = waiting.popleft()
            members = self._list_members(schema)
            group = around + [member for member in members if member.keys() & _OF_PARTS]
            self._count_steps(1 + len(members) + len(around))
            choices = [one for member in members for word in _CHOICES for one in _as_list(member.get(word))]
            for choice in choices:
                if isinstance(choice, dict) and id(choice) not in seen:
                    seen.add(id(choice))
                    waiting.append((choice, group))
            yield group

    def _list_members(self, schema: dict[str, Any]) -> list[dict[str, Any]]:
        """Return a schema and those that a value fits together with it."""
        waiting, members = deque[Any]([schema]), dict[int, dict[str, Any]]()
        while waiting:
            known = waiting.popleft()
            if isinstance(known, dict) and id(known) not in members:
                members[id(known)] = known
                waiting += [follow(self._root, known), *_as_list(known.get("allOf"))]
        return list(members.values())

    def _count_steps(self, number: int) -> None:
        self._num_steps += number
        if self._num_steps > _MAX_STEPS:
            raise GrammarError("it has too many alternatives in alternatives: make it smaller")

    def _resolve(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the target of a schema that is a reference alone, or else the schema."""
        target = follow(self._root, schema)
        return target if len(schema) == 1 and isinstance(target, dict) else schema

    def _list_openings(self, group: Sequence[dict[str, Any]]) -> Iterator[_Opening]:
        """Yield the parts of an object or array."""
        needed, before, written = _list_required(group), "{", set()
        for key, part in [one for schema in group for one in _as_mapping(schema.get("properties")).items()]:
            name = f"{_quote(key)}: "
            yield _Opening(before, name, part, key not in needed)
            if key in needed and key not in written and len(before) < _MAX_LETTERS:
                written.add(key)
                before += f"{name}{self._write_value(part)}, "
        for schema in group:
            for keyword, opening in _OTHER_PARTS.items():
                listed = schema.get(keyword, [])
                if keyword == "patternProperties":
                    listed = [*_as_mapping(listed).values()]
                for part in listed if isinstance(listed, list) else [listed]:
                    yield _Opening(*opening, part)

    def _write_value(self, schema: Any) -> str:
        """Return the only value of a schema as JSON; VALUE if there are others."""
        values = list_listed(self._resolve(schema)) if isinstance(schema, dict) else []
        return _quote(values[0]) if len(values) == 1 else VALUE

    def _list_inner(self, spot: _Spot) -> dict[str, _Spot]:
        """Return the spots right inside, by a text that opens each."""
        parts: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
        for opening in spot.openings:
            if isinstance(opening.part, dict):
                parts[opening.before + opening.name][id(opening.part)] = opening.part
        return {opening: self._open(list(found.values())) for opening, found in parts.items()}

    def _describe(self, spot: _Spot) -> Crowd:
        stretches = Counter(opening.before for opening in spot.openings if opening.is_optional)
        texts = [text.rstrip() for text, _ in stretches.most_common(_MAX_STRETCHES) if text != "{"]
        path = self._paths.get(id(spot.schemas[0]), ROOT)
        return Crowd(path, spot.schemas, [*texts, self._write_way(spot)])

    def _write_way(self, spot: _Spot) -> str:
        """Return a text that opens several parts in each other, and closes them."""
        begun = closing = ""
        for _ in range(_MAX_DEPTH):
            if not (inner := self._list_inner(spot)):
                break
            opening, spot = max(inner.items(), key=lambda one: one[1].weight)
            begun, closing = begun + opening, _CLOSING[opening[0]] + closing
        first = next((opening.before[0] for opening in spot.openings), "")
        return f"{begun}{first + _CLOSING[first] if first else VALUE}{closing}"


def _quote(value: Any) -> str:
    """Return a value as JSON. No tokenizer takes half a character, which no answer has."""
    return json.dumps(value, ensure_ascii=False).encode(errors="replace").decode()


def _list_required(group: Sequence[Mapping[str, Any]]) -> set[str]:
    listed = [name for schema in group for name in _as_list(schema.get("required"))]
    return {name for name in listed if isinstance(name, str)}


def _weigh(group: Sequence[Mapping[str, Any]], openings: Sequence[_Opening]) -> int:
    num_optional = len({opening.name for opening in openings if opening.is_optional})
    is_repeated = any(isinstance(schema.get(keyword), dict) for schema in group for keyword in _REPEATING)
    return max(_PROPERTY * num_optional, _REPEATED if is_repeated else _OTHER if group else 0)


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
