"""How many sequences of a service may be at its replicas at once. Pure.

A request that waits inside a replica waits behind all earlier ones, of all clients. So the gateway sends no
more than the replicas compute (`replica_room.py`), and so many more as end within 5 ms, until it has sent
others.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from millrace_gateway.access.fairness.replica_room import Load, Part, PresentReplica, ReplicaRoom

ABSENT_SECONDS = 10.0
"""How long requests wait while no replica is Ready: two probes of a kubelet. Then each is refused."""
_REFILL_SECONDS = 0.005
"""From the end of a request at a replica to the begin of the next one that the gateway sends."""
_RATE_SECONDS = 1.0
"""Over which ends are counted."""


class Present(NamedTuple):
    """The replicas of a service at one moment."""

    replicas: Mapping[str, PresentReplica]
    """By uid."""
    num_gone: int = 0
    """This gateway's sequences at replicas that are not among them any more."""


class Total:
    """Owner of what each replica adds to the room, and of the sums.

    A change of one replica costs the same beside hundreds: with a look at all of 256, each request took
    0.7 ms while others waited.
    """

    def __init__(self, parts: dict[str, Part]) -> None:
        self._parts = parts
        self.num_open = sum([part.is_open for part in parts.values()])
        self.kept = sum([part.kept for part in parts.values()])
        self.shared = sum([part.shared for part in parts.values()])
        self.num_elsewhere = sum([part.num_elsewhere for part in parts.values()])
        self.silent = frozenset([uid for uid, part in parts.items() if part.is_silent])
        self.until = min([part.until for part in parts.values()], default=math.inf)
        """After this time the sums may change without any news."""

    def put(self, uid: str, part: Part) -> bool:
        """Replace one part. Return False if it changes what others add: the caller then counts all again."""
        former = self._parts[uid]
        if part.is_open != former.is_open or part.is_silent != former.is_silent:
            return False
        self._parts[uid] = part
        self.kept += part.kept - former.kept
        self.shared += part.shared - former.shared
        self.num_elsewhere += part.num_elsewhere - former.num_elsewhere
        self.until = min(self.until, part.until)
        return True


class Window:
    """Owner of what the replicas of one service have room for."""

    def __init__(self) -> None:
        self._rooms: dict[str, ReplicaRoom] = {}
        self._total = Total({})
        self._largest_share = 1.0
        self.has_replica = False
        """Whether a replica takes requests."""
        self._num_gone = 0
        self._absent_since = -math.inf
        """Since when no replica takes requests."""
        self.num_gateways = 1
        """The gateways that share the service, with this one."""
        self._spare = 0
        """Requests that may wait at each replica: with more than 200 ends a second, a step needs them."""
        self._num_ended = 0
        self._counted_at = -math.inf

    def note_replicas(self, present: Present, now: float) -> None:
        """Replace the set of replicas. The window forgets all others."""
        self._rooms = {uid: self._rooms.get(uid) or ReplicaRoom() for uid in present.replicas}
        for uid, standing in present.replicas.items():
            self._rooms[uid].note_standing(standing, now)
        self._num_gone = present.num_gone
        self.has_replica = any(standing.takes_more for standing in present.replicas.values())
        self._absent_since = math.inf if self.has_replica else min(self._absent_since, now)
        self._recount(now)

    def note_counts(self, num_here: Mapping[str, int], now: float) -> bool:
        """Record the present numbers of this gateway's sequences at some replicas.

        Return False if one of them is not among the service's replicas.
        """
        if not num_here.keys() <= self._rooms.keys():
            return False
        for uid, num in num_here.items():
            room = self._rooms[uid]
            room.note_standing(room.standing._replace(num_here=num), now)
            self._update(uid, now)
        return True

    def list_silent(self, now: float) -> frozenset[str]:
        """Return the uids of the replicas that hang, as far as reports show it."""
        return self._find_total(now).silent

    def note_load(self, replica: str, load: Load, num_here: int, now: float) -> None:
        """Record a replica's report."""
        room = self._rooms.get(replica)
        if room is not None:
            room.note(load, num_here, self._spare, now)
            self._update(replica, now)

    def _update(self, replica: str, now: float) -> None:
        if not self._total.put(replica, self._rooms[replica].find_part(self._largest_share, now)):
            self._recount(now)

    def _recount(self, now: float) -> None:
        rooms = self._rooms
        shares = (room.standing.share for room in rooms.values() if room.is_open(now))
        self._largest_share = max(shares, default=1.0)
        self._total = Total({uid: room.find_part(self._largest_share, now) for uid, room in rooms.items()})

    def _find_total(self, now: float) -> Total:
        if now > self._total.until:
            self._recount(now)
        return self._total

    def count_end(self, now: float) -> None:
        """Count a request that has ended at a replica."""
        self._num_ended += 1
        seconds = now - self._counted_at
        if seconds >= _RATE_SECONDS:
            per_replica = self._num_ended / seconds / max(1, len(self._rooms))
            self._spare = int(per_replica * _REFILL_SECONDS + 0.5)
            self._num_ended, self._counted_at = 0, now

    def find_size(self, num_inside: int, now: float) -> float:
        """Return how many sequences of this gateway may be at the replicas; `num_inside` are.

        While no replica takes requests it is 0 for ABSENT_SECONDS, and then infinite: the gateway refuses
        each. Gateways divide the room by what each has there already, and each may have an equal part: so one
        with many waiting requests does not lock out another. Sequences at replicas that take no more do not
        count in this division.
        """
        if not self.has_replica:
            return math.inf if now - self._absent_since >= ABSENT_SECONDS else 0.0
        total = self._find_total(now)
        kept = self._num_gone + total.kept
        if not total.num_open:
            return kept
        # Each gateway has a place of its own: with fewer places than gateways, all would wait for ever.
        shared = total.shared + total.num_open * self._spare
        return kept + max(1.0, shared * self._find_part(num_inside - kept, total.num_elsewhere))

    def _find_part(self, num_inside: float, num_elsewhere: int) -> float:
        """Return this gateway's part of what gateways share."""
        if self.num_gateways <= 1:
            return 1.0
        part = num_inside / (num_inside + num_elsewhere) if num_inside > 0 else 0.0
        return max(part, 1 / self.num_gateways)
