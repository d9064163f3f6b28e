"""How many requests of a service may be at its replicas at once. Pure.

A request that waits inside a replica waits behind all that came before it, whoever sent them. So no more are
sent than the replicas compute, and so many that end within 5 ms, until the gateway has sent others. How many
that is, the replicas say themselves: `max_sequences`, and less where requests go on waiting below it, for
want of KV blocks or of time for prompts.
"""

import math
from typing import NamedTuple

CROWDED_SECONDS = 0.2
"""Requests that wait for less are those that the next step takes."""
STALE_SECONDS = 5.0
"""An older report says only how many a replica computes at most."""
FIRST_REQUESTS, FIRST_SECONDS = 32, 1.0
"""So many requests go to replicas that have said nothing yet, for so long: a busy one is asked within 0.3 s,
and one that does not tell its load is no reason to wait. Before, a flood of 1,280 requests went to four idle
replicas of 16 sequences at once, and another tenant waited for more than 22 s."""
_GROW_SECONDS = 0.1
_GROWTH = 1.25
_REFILL_SECONDS = 0.005
"""From the end of a request at a replica to the begin of the next one that the gateway lets go."""
_RATE_SECONDS = 1.0
"""Over which ends are counted."""


class Load(NamedTuple):
    """What a replica says about itself."""

    waiting: int
    running: int
    max_sequences: int
    kv_usage: float = 0.0


def parse_load(text: str) -> Load | None:
    """Return the load in HEADER_LOAD; None for what is none."""
    parts = text.split()
    try:
        load = Load(int(parts[0]), int(parts[1]), int(parts[2]), float(parts[3]))
    except (ValueError, IndexError):
        return None
    return load if min(load[:3]) >= 0 and load.kv_usage >= 0.0 else None


class ReplicaRoom:
    """How many requests one replica computes at once."""

    def __init__(self) -> None:
        self._bound = math.inf
        self._crowded_since: float | None = None
        self._grown_at = -math.inf
        self.load = Load(0, 0, 0)
        self.num_elsewhere = 0
        """Requests that other gateways have sent, in the last report."""
        self.at = -math.inf

    def note(self, load: Load, num_here: int, spare: int, now: float) -> None:
        """Take over a report, while so many requests of this gateway are at the replica.

        `spare` of them are meant to wait there.
        """
        self.load, self.at = load, now
        self.num_elsewhere = max(0, load.waiting + load.running - num_here)
        if load.waiting <= 1 + spare:
            self._crowded_since = None
            self._grow(now)
        elif self._crowded_since is None:
            self._crowded_since = now
        elif now - self._crowded_since >= CROWDED_SECONDS:
            self._bound = max(1, load.running)

    def _grow(self, now: float) -> None:
        if now - self._grown_at >= _GROW_SECONDS:
            self._grown_at = now
            self._bound = self._bound * _GROWTH + 1

    def find_size(self, now: float) -> float:
        """Return the requests that it may have at once; infinite if it says nothing of it."""
        most = self.load.max_sequences or math.inf
        return min(self._bound, most) if now - self.at <= STALE_SECONDS else most


class Window:
    """Owner of what the replicas of one service have room for."""

    def __init__(self) -> None:
        self._rooms: dict[str, ReplicaRoom] = {}
        self.num_gateways = 1
        """The gateways that share the service, with this one."""
        self._silent_since: float | None = None
        """When a request came first while no replica had said anything."""
        self._spare = 0
        """Requests that may wait at each replica: with more than 200 ends a second, a step needs them."""
        self._num_ended = 0
        self._counted_at = -math.inf

    def note_load(self, replica: str, load: Load, num_here: int, now: float) -> None:
        """Take over a replica's report, while so many requests of this gateway are there."""
        self._silent_since = None
        self._rooms.setdefault(replica, ReplicaRoom()).note(load, num_here, self._spare, now)

    def count_end(self, now: float) -> None:
        """Count a request that has ended at a replica."""
        self._num_ended += 1
        seconds = now - self._counted_at
        if seconds >= _RATE_SECONDS:
            per_replica = self._num_ended / seconds / max(1, len(self._rooms))
            self._spare = int(per_replica * _REFILL_SECONDS + 0.5)
            self._num_ended, self._counted_at = 0, now

    def forget(self, replica: str) -> None:
        """Forget a replica that is gone."""
        self._rooms.pop(replica, None)

    def find_size(self, num_here: int, now: float) -> float:
        """Return how many requests of this gateway may be at the replicas; infinite if they never report.

        Gateways divide the room by what each has there already, and each may have an equal part: so one with
        many waiting requests does not lock out another.
        """
        rooms = self._rooms.values()
        if not rooms:
            self._silent_since = now if self._silent_since is None else self._silent_since
            return FIRST_REQUESTS if now - self._silent_since <= FIRST_SECONDS else math.inf
        size = sum(room.find_size(now) + self._spare for room in rooms)
        if self.num_gateways <= 1 or size == math.inf:
            return size
        num_elsewhere = sum(room.num_elsewhere for room in rooms if now - room.at <= STALE_SECONDS)
        part = num_here / (num_here + num_elsewhere) if num_here > 0 else 0.0
        return max(1.0, size * max(part, 1 / self.num_gateways))
