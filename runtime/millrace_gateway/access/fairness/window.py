"""How many requests of a service may be at its replicas at once. Pure.

A request that waits inside a replica waits behind all that came before it, whoever sent them. So no more are
sent than the replicas compute, and so many that end within 5 ms, until the gateway has sent others. How many
that is, the replicas say themselves: `max_sequences`, and less where requests go on waiting below it, for
want of KV blocks or of time for prompts.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

CROWDED_SECONDS = 0.2
"""Requests that wait for less are those that the next step takes."""
STALE_SECONDS = 5.0
"""An older report says only how many a replica computes at most."""
FIRST_REQUESTS = 4
"""So many requests go to a replica that has reported nothing yet. A busy one is asked within 0.3 s. Before, a
flood of 1,280 requests went to four idle replicas of 16 sequences at once, and another tenant waited for more
than 22 s."""
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


class Standing(NamedTuple):
    """One replica at one moment."""

    num_here: int
    """This gateway's requests at it."""
    takes_more: bool = True
    """Whether the gateway would send it another one."""
    share: float = 1.0
    """Of a full replica's requests, above 0: less for one that has just started."""


class Present(NamedTuple):
    """The replicas of a service at one moment."""

    replicas: Mapping[str, Standing]
    """By uid."""
    num_gone: int = 0
    """This gateway's requests at replicas that are not among them any more."""


class ReplicaRoom:
    """How many requests one replica computes at once."""

    def __init__(self) -> None:
        self._bound = math.inf
        self._crowded_since: float | None = None
        self._grown_at = -math.inf
        self.load = Load(0, 0, 0)
        self.num_elsewhere = 0
        """Requests that other gateways have sent, in the last report."""
        self._at = -math.inf
        self.standing = Standing(0)
        self._busy_since = math.inf

    def note_standing(self, standing: Standing, now: float) -> None:
        """Take over how the replica stands."""
        self._busy_since = min(self._busy_since, now) if standing.num_here else math.inf
        self.standing = standing

    def note(self, load: Load, num_here: int, spare: int, now: float) -> None:
        """Take over a report, while so many requests of this gateway are at the replica.

        `spare` of them are meant to wait there.
        """
        if load.max_sequences or not self.load.max_sequences:  # without, its engine is not up
            self.load = load
        self._at = now
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

    def is_fresh(self, now: float) -> bool:
        """Whether its last report says how full it is."""
        return now - self._at <= STALE_SECONDS

    def is_silent(self, now: float) -> bool:
        """Whether it has requests and reports nothing: it hangs."""
        since = max(self._at, self._busy_since)
        return self.standing.num_here > 0 and now - since > STALE_SECONDS

    def find_size(self, now: float) -> float:
        """Return the requests that it may have at once. One that hangs keeps what it has."""
        if not self.standing.takes_more or self.is_silent(now):
            return self.standing.num_here
        most = self.load.max_sequences or FIRST_REQUESTS
        size = min(self._bound, most) if self.is_fresh(now) else most
        # What it has takes no place from others: all requests at replicas count.
        return max(1.0, size * self.standing.share, min(size, self.standing.num_here))


class Window:
    """Owner of what the replicas of one service have room for."""

    def __init__(self) -> None:
        self._rooms: dict[str, ReplicaRoom] = {}
        self._num_gone = 0
        self.num_gateways = 1
        """The gateways that share the service, with this one."""
        self._spare = 0
        """Requests that may wait at each replica: with more than 200 ends a second, a step needs them."""
        self._num_ended = 0
        self._counted_at = -math.inf

    def note_replicas(self, present: Present, now: float) -> None:
        """Take over which replicas there are. Of others nothing is kept."""
        self._rooms = {uid: self._rooms.get(uid) or ReplicaRoom() for uid in present.replicas}
        for uid, standing in present.replicas.items():
            self._rooms[uid].note_standing(standing, now)
        self._num_gone = present.num_gone

    @property
    def has_replica(self) -> bool:
        """Whether a replica takes requests."""
        return any(room.standing.takes_more for room in self._rooms.values())

    def list_silent(self, now: float) -> frozenset[str]:
        """Return the uids of the replicas that hang, so far as reports tell it."""
        return frozenset(uid for uid, room in self._rooms.items() if room.is_silent(now))

    def note_load(self, replica: str, load: Load, num_here: int, now: float) -> None:
        """Take over a replica's report."""
        room = self._rooms.get(replica)
        if room is not None:
            room.note(load, num_here, self._spare, now)

    def count_end(self, now: float) -> None:
        """Count a request that has ended at a replica."""
        self._num_ended += 1
        seconds = now - self._counted_at
        if seconds >= _RATE_SECONDS:
            per_replica = self._num_ended / seconds / max(1, len(self._rooms))
            self._spare = int(per_replica * _REFILL_SECONDS + 0.5)
            self._num_ended, self._counted_at = 0, now

    def find_size(self, num_here: int, now: float) -> float:
        """Return how many requests of this gateway may be at the replicas.

        Infinite if there is no replica to wait for: each request finds that out itself.
        Gateways divide the room by what each has there already, and each may have an equal part: so one with
        many waiting requests does not lock out another.
        """
        if not self.has_replica:
            return math.inf
        rooms = self._rooms.values()
        size = self._num_gone + sum(
            room.find_size(now) + (self._spare if room.standing.takes_more else 0) for room in rooms
        )
        if self.num_gateways <= 1:
            return size
        num_elsewhere = sum(room.num_elsewhere for room in rooms if room.is_fresh(now))
        part = num_here / (num_here + num_elsewhere) if num_here > 0 else 0.0
        return max(1.0, size * max(part, 1 / self.num_gateways))
