"""How many sequences of a service may be at its replicas at once. Pure.

A request that waits inside a replica waits behind all that came before it, whoever sent them. So no more are
sent than the replicas compute, and so many that end within 5 ms, until the gateway has sent others. How many
that is, the replicas say themselves: `max_sequences`, and less where sequences go on waiting below it, for
want of KV blocks or of time for prompts.
"""

import math
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from millrace_gateway.access.fairness.total import Part, Total, round_places

CROWDED_SECONDS = 0.2
"""Requests that wait for less are those that the next step takes."""
STALE_SECONDS = 5.0
"""An older report says only how many a replica computes at most."""
ABSENT_SECONDS = 10.0
"""So long requests wait while no replica is Ready: two probes of a kubelet. Then each gets an answer."""
ENDED_SECONDS = 1.5
"""Reports of so long must agree before a place counts as free that this gateway still counts as taken."""
_LEAST_SPAN = 0.5
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


class Standing(NamedTuple):
    """One replica at one moment."""

    num_here: int
    """This gateway's sequences at it."""
    takes_more: bool = True
    """Whether the gateway would send it another request."""
    share: float = 1.0
    """Of a full replica's sequences, above 0: less for one that has just started."""


class Present(NamedTuple):
    """The replicas of a service at one moment."""

    replicas: Mapping[str, Standing]
    """By uid."""
    num_gone: int = 0
    """This gateway's sequences at replicas that are not among them any more."""


class EndedSequences:
    """Those that this gateway counts at a replica, and that the replica has no longer.

    A client that reads slowly still gets its answer, or the request has other sequences that go on. One
    report alone proves nothing: it may be older than what was sent last. So the least of several counts.
    """

    def __init__(self) -> None:
        self._recent: deque[tuple[float, int]] = deque()
        self.num = 0

    def note(self, num: int, now: float) -> None:
        """Take over how many fewer sequences a report has than this gateway."""
        recent = self._recent
        recent.append((now, num))
        while recent[0][0] < now - ENDED_SECONDS:
            recent.popleft()
        self.num = min(num for _, num in recent) if now - recent[0][0] >= _LEAST_SPAN else 0

    def leave(self, num: int) -> None:
        """Take over that so many sequences have left: until the next report, these may be they."""
        self.num = max(0, self.num - max(0, num))


class Places(NamedTuple):
    """Sequences that a replica may have."""

    kept: float
    """For what this gateway has there already."""
    shared: float
    """For those of all gateways."""


class ReplicaRoom:
    """How many sequences one replica computes at once."""

    def __init__(self) -> None:
        self._bound = math.inf
        self._crowded_since: float | None = None
        self._grown_at = -math.inf
        self.load = Load(0, 0, 0)
        self.num_elsewhere = 0
        """Sequences that other gateways have sent, in the last report."""
        self._ended = EndedSequences()
        self._at = -math.inf
        self.standing = Standing(0)
        self._busy_since = math.inf

    def note_standing(self, standing: Standing, now: float) -> None:
        """Take over how the replica stands."""
        self._busy_since = min(self._busy_since, now) if standing.num_here else math.inf
        self._ended.leave(self.standing.num_here - standing.num_here)
        self.standing = standing

    def note(self, load: Load, num_here: int, spare: int, now: float) -> None:
        """Take over a report, while so many sequences of this gateway are at the replica.

        `spare` of them are meant to wait there.
        """
        if load.max_sequences or not self.load.max_sequences:  # without, its engine is not up
            self.load = load
        self._at = now
        self.num_elsewhere = max(0, load.waiting + load.running - num_here)
        self._ended.note(max(0, num_here - load.waiting - load.running), now)
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

    def is_open(self, now: float) -> bool:
        """Whether it gets more than it has."""
        return self.standing.takes_more and not self.is_silent(now)

    def find_places(self, largest_share: float, now: float) -> Places:
        """Return the places at an open replica. What it has takes none of another replica's."""
        is_fresh, most = self.is_fresh(now), self.load.max_sequences or FIRST_REQUESTS
        size = min(self._bound, most) if is_fresh else most
        num_ended = min(self._ended.num, self.standing.num_here) if is_fresh else 0
        num_kept = min(size, self.standing.num_here - num_ended)
        shared = max(1.0, size * self.standing.share / largest_share)
        return Places(num_ended + num_kept, 0.0) if num_kept > shared else Places(num_ended, shared)

    def find_part(self, largest_share: float, now: float) -> Part:
        """Return what the replica adds to the room of all."""
        is_silent, until = self.is_silent(now), self._find_next_age(now)
        if is_silent or not self.standing.takes_more:
            num_here = self.standing.num_here
            return Part(False, num_here, 0.0, num_elsewhere=0, is_silent=is_silent, until=until)
        kept, shared = self.find_places(largest_share, now)
        num_elsewhere = self.num_elsewhere if shared and self.is_fresh(now) else 0
        places = round_places(kept), round_places(shared)
        return Part(True, *places, num_elsewhere=num_elsewhere, is_silent=False, until=until)

    def _find_next_age(self, now: float) -> float:
        """Return when its last report is next too old for something."""
        if self._at + STALE_SECONDS >= now:
            return self._at + STALE_SECONDS
        silent_at = self._busy_since + STALE_SECONDS
        return silent_at if silent_at >= now else math.inf


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
        """Take over which replicas there are. Of others nothing is kept."""
        self._rooms = {uid: self._rooms.get(uid) or ReplicaRoom() for uid in present.replicas}
        for uid, standing in present.replicas.items():
            self._rooms[uid].note_standing(standing, now)
        self._num_gone = present.num_gone
        self.has_replica = any(standing.takes_more for standing in present.replicas.values())
        self._absent_since = math.inf if self.has_replica else min(self._absent_since, now)
        self._recount(now)

    def note_counts(self, num_here: Mapping[str, int], now: float) -> bool:
        """Take over how many sequences of this gateway some replicas have now.

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
        """Take over a replica's report."""
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

        None for ABSENT_SECONDS while no replica takes requests, then any number: each is refused.
        Gateways divide the room by what each has there already, and each may have an equal part: so one with
        many waiting requests does not lock out another. What replicas have that take no more divides nothing.
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
