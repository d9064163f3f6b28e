"""Finds the keyword of a schema that llguidance refuses: its own messages do not say where. Pure."""

import json
import re
from typing import Any, NamedTuple

from millrace_runtime.grammar.json_schema.keywords import ADDED, Compile
from millrace_runtime.grammar.json_schema.places import Place, iterate_all, list_parts, walk

_MEMBER = re.compile(r"/allOf/\d+$")
_MAX_DEPTH = 64
_LAST = frozenset({"items", "prefixItems", "properties", "required", "type"})
"""Keywords without which a schema says little: another one is at fault rather."""


class Fault(NamedTuple):
    """A schema's fault."""

    path: str
    """The pointer of the keyword."""
    why: str


def find_fault(schema: dict[str, Any], compile_schema: Compile) -> Fault | None:
    """Return the first fault of a rewritten schema, or None.

    It compiles parts of the schema alone, without what they refer to, which is a part of its own. The parts
    of one depth take as long as the whole.
    """
    search = _Search(schema, compile_schema)
    inner: set[int] = set()
    for place in walk(schema):
        is_outermost = id(place.schema) not in inner
        inner.update(id(part.schema) for part in list_parts(place))
        if is_outermost and search.compile(place.schema) is not None:
            found = search.descend(place)
            return Fault(search.name_keyword(found), str(search.compile(found.schema)))
    return None


class _Search:
    """One search."""

    def __init__(self, root: dict[str, Any], compile_schema: Compile) -> None:
        self._compile = compile_schema
        self._draft = {key: root[key] for key in ("$schema",) if key in root}

    def compile(self, schema: dict[str, Any]) -> str | None:
        """Return why a schema is refused alone, or None."""
        alone = json.loads(json.dumps({**self._draft, **schema}))
        for inner in iterate_all(alone):
            inner.pop("$ref", None)
        return self._compile(alone)

    def descend(self, place: Place) -> Place:
        """Return the innermost part that is refused."""
        for _ in range(_MAX_DEPTH):
            parts = list_parts(place)
            part = next((one for one in parts if self._is_at_fault(one)), None)
            if part is None:
                break
            place = part
        return place

    def _is_at_fault(self, place: Place) -> bool:
        """Whether a part is refused alone. One that no value fits may be a property that is never there."""
        return place.schema.get("enum") != [] and self.compile(place.schema) is not None

    def name_keyword(self, place: Place) -> str:
        """Return the pointer of the keyword without which a schema is not refused."""
        if ADDED in place.schema:
            return _MEMBER.sub(f"/{place.schema[ADDED]}", place.path)
        for keyword in sorted(place.schema, key=lambda name: (name == "type", name in _LAST)):
            rest = {key: value for key, value in place.schema.items() if key != keyword}
            if self.compile(rest) is None:
                return place.point_to(keyword)
        return place.path
