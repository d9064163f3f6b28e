"""Counts this gateway's sequences at the replicas of each service, and which counts have changed. Pure."""

from millrace_gateway.route.objects import ServiceKey

MOST_CHANGED = 64
"""After more changes the next look covers all replicas, so an unread service piles up no changes."""


class _Counts:
    __slots__ = ("changed", "num_sequences")

    def __init__(self) -> None:
        self.num_sequences: dict[str, int] = {}
        """By uid; of replicas that have some."""
        self.changed: set[str] | None = None
        """The uids whose counts have changed since the last look; None: unknown."""


class SequenceCounts:
    """Owner of the counts. It has one reader: each look begins a new list of changes."""

    def __init__(self) -> None:
        self._services: dict[ServiceKey, _Counts] = {}
        """A look at one service costs the same beside thousands of others."""

    def add(self, service: ServiceKey, uid: str, num: int) -> None:
        """Count so many sequences more at a replica."""
        counts = self._services.get(service)
        if counts is None:
            counts = self._services[service] = _Counts()
        present = counts.num_sequences
        present[uid] = num_now = present.get(uid, 0) + num
        if not num_now:
            del present[uid]
            if not present:
                del self._services[service]
        if counts.changed is not None:
            counts.changed.add(uid)
            if len(counts.changed) > MOST_CHANGED:
                counts.changed = None

    def forget_changes(self, service: ServiceKey) -> None:
        """Record that more than counts has changed: the next look must cover all replicas."""
        counts = self._services.get(service)
        if counts is not None:
            counts.changed = None

    def look(self, service: ServiceKey) -> dict[str, int]:
        """Return the number of sequences at each replica of a service that has some, by uid."""
        counts = self._services.get(service)
        if counts is None:
            return {}
        counts.changed = set()
        return dict(counts.num_sequences)

    def look_at_changed(self, service: ServiceKey) -> dict[str, int] | None:
        """Return the numbers that have changed since the last look; None if that is not known."""
        counts = self._services.get(service)
        if counts is None or counts.changed is None:
            return None
        changed, counts.changed = counts.changed, set()
        return {uid: counts.num_sequences.get(uid, 0) for uid in changed}
