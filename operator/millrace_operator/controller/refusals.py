"""Writes that the API server has refused, and for how long no other attempt is made. Pure."""

import math
from collections.abc import Collection
from dataclasses import dataclass

from millrace_operator.kube.kinds import POD, ObjectId, ServiceKey

MARK_SECONDS = 600.0
"""For how long no mark is tried after the API server refused one. Replicas then leave without a mark."""


@dataclass(frozen=True)
class Refusal:
    """The reason why an object is not written, and until when it counts without another attempt."""

    words: str
    until: float
    """Seconds since 1970."""


class Refusals:
    """Owner of the refusals. A refusal counts until its object is written, or until no plan wants the object.

    So it outlasts a time in which nothing can be written. The refusal of a pod's mark counts for
    MARK_SECONDS, in which no mark is tried. Times are seconds since 1970.
    """

    def __init__(self) -> None:
        self._found: dict[ServiceKey, dict[ObjectId, Refusal]] = {}

    def note(self, key: ServiceKey, identity: ObjectId, words: str, now: float) -> None:
        """Record that the write of this object, or the mark of this pod, was refused."""
        until = now + MARK_SECONDS if identity.kind == POD.kind else math.inf
        self._found.setdefault(key, {})[identity] = Refusal(words, until)

    def recall(self, key: ServiceKey, now: float) -> dict[ObjectId, str]:
        """Return the refusals that count now, in the API server's words."""
        found = self._found.get(key, {})
        return {identity: refusal.words for identity, refusal in found.items() if now < refusal.until}

    def seconds_to_next(self, key: ServiceKey, now: float) -> float | None:
        """Return after how many seconds marks are tried again; None if none is refused."""
        waits = (refusal.until - now for refusal in self._found.get(key, {}).values())
        return min((wait for wait in waits if 0 < wait < math.inf), default=None)

    def forget(self, key: ServiceKey, identity: ObjectId | None = None) -> None:
        """Forget the refusal of a written object, or all refusals of a deleted service."""
        if identity is None:
            self._found.pop(key, None)
        else:
            self._found.get(key, {}).pop(identity, None)

    def keep(self, key: ServiceKey, tried: Collection[ObjectId], now: float) -> None:
        """Forget the refusals of objects that a completely executed plan has not tried, except of marks."""
        found = self._found.pop(key, {})
        kept = {
            identity: refusal
            for identity, refusal in found.items()
            if identity in tried or (identity.kind == POD.kind and now < refusal.until)
        }
        if kept:
            self._found[key] = kept
