"""Fields that a manifest sets and that this version's spec does not have. Pure.

The API server drops such a field in silence when it reads an object that was stored under an older CRD. Two
records still name it. The manager of a server-side apply owns it, and `kubectl apply` without `--server-side`
keeps a copy of the manifest. An apply without the field ends both. Managers of other writes are not read:
the API server lets them own the field for ever, so nobody could end the report.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import orjson

from millrace_operator.api.crd import Schema, render_schema
from millrace_operator.api.types import Spec

APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
"""A second copy of the manifest, which `kubectl apply` keeps for itself."""
MOST_NAMED = 8
_ROOT = "spec"
_OWNED = "f:"
"""Begins the name of a field in managedFields. Keys of a list's items begin in other ways."""


def find_removed(metadata: dict[str, Any]) -> list[str]:
    """Return the first MOST_NAMED of these fields, by name, from the metadata of an InferenceService."""
    manifest = _parse((metadata.get("annotations") or {}).get(APPLIED))
    found = {*_find_unknown(manifest, "")}
    for entry in metadata.get("managedFields") or ():
        if entry.get("operation") == "Apply":
            found.update(_find_unknown(entry.get("fieldsV1"), _OWNED))
    return sorted(found)[:MOST_NAMED]


def _parse(text: str | None) -> Any:
    """Return the value of JSON that anybody may have written; None if it is no JSON."""
    try:
        return None if text is None else orjson.loads(text)
    except ValueError:
        return None


def _find_unknown(obj: Any, prefix: str) -> Iterator[str]:
    """Yield the fields of an object's spec that the schema lacks. `prefix` begins the name of each field."""
    for name, part in _list_members(obj, prefix):
        if name == _ROOT:
            yield from _walk(part, prefix, _spec_schema(), _ROOT)


@cache
def _spec_schema() -> Schema:
    return render_schema(Spec)


def _walk(part: Any, prefix: str, schema: Schema, path: str) -> Iterator[str]:
    for name, member in _list_members(part, prefix):
        below = path if name is None else f"{path}.{name}"
        inner = schema.get("items") if name is None else _find_schema(schema, name)
        if inner is not None:
            yield from _walk(member, prefix, inner, below)
        elif name is not None:
            yield below


def _find_schema(schema: Schema, name: str) -> Schema | None:
    found: Schema | None = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
    return found


def _list_members(part: Any, prefix: str) -> Iterator[tuple[str | None, Any]]:
    """Yield the members of an object by name, and those of a list without one."""
    if isinstance(part, list):
        yield from ((None, item) for item in part)
    elif isinstance(part, dict):
        for key, member in part.items():
            if key.startswith(prefix):
                yield key.removeprefix(prefix), member
            elif key != ".":  # which stands for the object itself
                yield None, member
