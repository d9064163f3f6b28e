"""A FakeCluster that remembers each change, so that it can be watched, and read as it was."""

import asyncio
from bisect import bisect_right
from operator import attrgetter
from typing import NamedTuple

from millrace_operator.kube.fake import FakeCluster
from millrace_operator.kube.kinds import Kind, Obj, ObjectKey


class Change(NamedTuple):
    """One change of one object."""

    version: int
    kind: str
    """As a watch tells it: ADDED, MODIFIED or DELETED."""
    obj: Obj
    """As it is since then, or as it was last."""
    before: Obj | None


class History(FakeCluster):
    """The store behind the API server."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[Change] = []
        self.next_change = asyncio.Event()
        """Set by the next change, and then another one."""

    @property
    def version(self) -> int:
        """Of the last change."""
        return self.changes[-1].version if self.changes else 1

    def put(self, obj: Obj) -> Obj:
        metadata = obj["metadata"]
        before = self.objects.get(ObjectKey(obj["kind"], metadata.get("namespace", ""), metadata["name"]))
        stored = super().put(obj)
        version = int(stored["metadata"]["resourceVersion"])
        self._note(Change(version, "MODIFIED" if before else "ADDED", stored, before))
        return stored

    def remove(self, kind: Kind, namespace: str, name: str) -> None:
        before = self.objects.get(ObjectKey(kind.kind, namespace, name))
        super().remove(kind, namespace, name)
        if before is not None:
            version = next(self._versions)
            gone = {**before, "metadata": {**before["metadata"], "resourceVersion": str(version)}}
            self._note(Change(version, "DELETED", gone, before))

    def _note(self, change: Change) -> None:
        self.changes.append(change)
        self.next_change.set()
        self.next_change = asyncio.Event()

    def list_changes(self, version: int) -> list[Change]:
        """Return the changes since a version."""
        return self.changes[bisect_right(self.changes, version, key=attrgetter("version")) :]

    def read_at(self, version: int) -> list[Obj]:
        """Return all objects as they were at a version."""
        found: dict[ObjectKey, Obj] = {}
        for change in self.changes:
            if change.version > version:
                break
            metadata = change.obj["metadata"]
            key = ObjectKey(change.obj["kind"], metadata.get("namespace", ""), metadata["name"])
            if change.kind == "DELETED":
                del found[key]
            else:
                found[key] = change.obj
        return list(found.values())

    def find_older(self, obj: Obj) -> Obj | None:
        """Return the object as it was before this version of it."""
        uid, version = obj["metadata"]["uid"], int(obj["metadata"]["resourceVersion"])
        older = [c.obj for c in self.changes if c.obj["metadata"]["uid"] == uid and c.version < version]
        return older[-1] if older else None
