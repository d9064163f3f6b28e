"""Fields that a manifest sets and that this version's spec does not have. Pure.

The API server drops such a field in silence when it reads an object that was stored under an older CRD. Two
records still name it. The manager of a server-side apply owns it, and `kubectl apply` without `--server-side`
keeps a copy of the manifest. An apply without the field removes it from the record of the same writer. But a
record may outlive its writer: a manifest that moves from kubectl to Argo CD leaves the old record for ever.
So only the newest record of a whole manifest counts. The operator ignores the managers of other writes: the
API server lets them own the field for ever, so nobody could end the report.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import orjson

from millrace_operator.api.crd import Schema, render_schema
from millrace_operator.api.types import Spec

APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
"""A second copy of the manifest, which `kubectl apply` keeps for itself."""
MOST_NAMED = 8
_ROOT, _REQUIRED = "spec", "model"
_OWNED = "f:"
"""Begins the name of a field in managedFields. Keys of a list's items begin in other ways."""


class _Record(NamedTuple):
    """The fields that one writer has applied."""

    time: str
    """RFC 3339, which is in the order of time; empty if unknown."""
    obj: Any
    prefix: str
    """Begins the name of each field."""

    @property
    def is_whole(self) -> bool:
        """Whether it is of a whole manifest: none is without a model."""
        spec = self.obj.get(self.prefix + _ROOT) if isinstance(self.obj, dict) else None
        return isinstance(spec, dict) and f"{self.prefix}{_REQUIRED}" in spec


def find_removed(metadata: dict[str, Any]) -> list[str]:
    """Return these fields by name, from the metadata of an InferenceService: MOST_NAMED and how many more."""
    records = list(_list_records(metadata))
    newest = max((record.time for record in records if record.is_whole), default="")
    current = [record for record in records if record.time >= newest or not record.is_whole]
    found = sorted({name for record in current for name in _find_unknown(record.obj, record.prefix)})
    more = [f"{len(found) - MOST_NAMED} more"] if len(found) > MOST_NAMED else []
    return found[:MOST_NAMED] + more


def _list_records(metadata: dict[str, Any]) -> Iterator[_Record]:
    copied = ""
    for entry in metadata.get("managedFields") or ():
        owned, time = entry.get("fieldsV1"), entry.get("time") or ""
        if entry.get("operation") == "Apply":
            yield _Record(time, owned, _OWNED)
        if _owns_copy(owned):
            copied = max(copied, time)
    yield _Record(copied, _parse((metadata.get("annotations") or {}).get(APPLIED)), "")


def _owns_copy(owned: Any) -> bool:
    """Whether a manager has written kubectl's copy."""
    for name in ("f:metadata", "f:annotations", f"f:{APPLIED}"):
        if not isinstance(owned, dict) or name not in owned:
            return False
        owned = owned[name]
    return True


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
