"""What the API server does not let us write of each service, and for how long that counts. Pure."""

import math
from collections.abc import Collection
from dataclasses import dataclass

from millrace_operator.kube.kinds import POD, ServiceKey
from millrace_operator.observed.snapshot import ObjectId

MARK_SECONDS = 600.0
"""How long no mark is tried after the API server refused one. Replicas then go without."""


@dataclass(frozen=True)
class Refusal:
    """Why an object is not written, and until when that counts without another try."""

    words: str
    until: float
    """In seconds since 1970."""


class Refusals:
    """Owner of the refusals. One counts until its object is written, or is no longer to be.

    So it outlasts a moment in which nothing can be written. That of a pod's mark counts for MARK_SECONDS, and
    no mark is tried meanwhile. Times are seconds since 1970.
    """

    def __init__(self) -> None:
        self._found: dict[ServiceKey, dict[ObjectId, Refusal]] = {}

    def note(self, key: ServiceKey, identity: ObjectId, words: str, now: float) -> None:
        """Know that this object's write, or this pod's mark, was refused."""
        until = now + MARK_SECONDS if identity.kind == POD.kind else math.inf
        self._found.setdefault(key, {})[identity] = Refusal(words, until)

    def recall(self, key: ServiceKey, now: float) -> dict[ObjectId, str]:
        """Return what counts now, in the API server's words."""
        found = self._found.get(key, {})
        return {identity: refusal.words for identity, refusal in found.items() if now < refusal.until}

    def seconds_to_next(self, key: ServiceKey, now: float) -> float | None:
        """Return after how many seconds marks are tried again; None where none is refused."""
        waits = (refusal.until - now for refusal in self._found.get(key, {}).values())
        return min((wait for wait in waits if 0 < wait < math.inf), default=None)

    def forget(self, key: ServiceKey, identity: ObjectId | None = None) -> None:
        """Forget the refusal of an object that is written, or all of a service that is gone."""
        if identity is None:
            self._found.pop(key, None)
        else:
            self._found.get(key, {}).pop(identity, None)

    def keep(self, key: ServiceKey, tried: Collection[ObjectId], now: float) -> None:
        """Forget what a plan that was acted on whole has not tried, but for the marks of pods."""
        found = self._found.pop(key, {})
        kept = {
            identity: refusal
            for identity, refusal in found.items()
            if identity in tried or (identity.kind == POD.kind and now < refusal.until)
        }
        if kept:
            self._found[key] = kept
