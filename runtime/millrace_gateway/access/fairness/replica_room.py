"""How many sequences one replica computes at once, by its own reports. Pure.

A replica reports `max_sequences`. It computes fewer where sequences go on waiting below that, for want of KV
blocks or of time for prompts.
"""

import math
from collections import deque
from typing import NamedTuple

CROWDED_SECONDS = 0.2
"""How long requests must wait at a replica until it counts as crowded: its next step takes newer ones."""
STALE_SECONDS = 5.0
"""Of an older report only `max_sequences` counts."""
ENDED_SECONDS = 1.5
"""All reports of so long must agree that a sequence has ended, before its place counts as free."""
_LEAST_SPAN = 0.5
FIRST_REQUESTS = 4
"""The sequences sent to a replica that has reported nothing yet; the load poll asks a busy one within 0.3 s.
Without this bound a flood of 1,280 requests went to four idle replicas of 16 sequences at once, and another
tenant waited for more than 22 s."""
_GROW_SECONDS = 0.1
_GROWTH = 1.25
_FINEST = 1024
"""Places are rounded to such fractions."""


class Load(NamedTuple):
    """A replica's own report of its load."""

    waiting: int
    running: int
    max_sequences: int
    kv_usage: float = 0.0


class PresentReplica(NamedTuple):
    """One replica at one moment."""

    num_here: int
    """This gateway's sequences at it."""
    takes_more: bool = True
    """Whether the gateway would send it another request."""
    share: float = 1.0
    """Of a full replica's sequences, above 0: less for one that has just started."""


class EndedSequences:
    """Sequences that have ended at the replica, while this gateway still counts them.

    Their clients read slowly, or their requests have other sequences that continue. One report alone proves
    nothing: the replica may have written it before the newest requests arrived. So the least number in
    several reports counts.
    """

    def __init__(self) -> None:
        self._recent: deque[tuple[float, int]] = deque()
        self.num = 0

    def note(self, num: int, now: float) -> None:
        """Record by how many sequences a report is below this gateway's count."""
        recent = self._recent
        recent.append((now, num))
        while recent[0][0] < now - ENDED_SECONDS:
            recent.popleft()
        self.num = min(num for _, num in recent) if now - recent[0][0] >= _LEAST_SPAN else 0

    def leave(self, num: int) -> None:
        """Subtract sequences that the gateway no longer counts: they may be the ended ones."""
        self.num = max(0, self.num - max(0, num))


class Places(NamedTuple):
    """Sequences that a replica may have."""

    kept: float
    """For what this gateway has there already."""
    shared: float
    """For those of all gateways."""


class Part(NamedTuple):
    """The places that one replica adds to the room."""

    is_open: bool
    """Whether it gets new sequences."""
    kept: float
    """Places for what this gateway has there."""
    shared: float
    """Places for the sequences of all gateways."""
    num_elsewhere: int
    """Sequences of other gateways."""
    is_silent: bool
    """Whether it hangs."""
    until: float
    """After this time it may add other numbers, without any news."""


def round_places(places: float) -> float:
    """Return the places of a part. Sums of such numbers are exact, in whatever order."""
    return round(places * _FINEST) / _FINEST


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
        self.standing = PresentReplica(0)
        self._busy_since = math.inf

    def note_standing(self, standing: PresentReplica, now: float) -> None:
        """Record the gateway's sequences at the replica, its share, and whether it takes more."""
        self._busy_since = min(self._busy_since, now) if standing.num_here else math.inf
        self._ended.leave(self.standing.num_here - standing.num_here)
        self.standing = standing

    def note(self, load: Load, num_here: int, spare: int, now: float) -> None:
        """Record a report, with `num_here` sequences of this gateway at the replica.

        `spare` of them may wait there on purpose.
        """
        if load.max_sequences or not self.load.max_sequences:  # 0: its engine is not up yet
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
        """Return the places at an open replica. Its own sequences take no place of another replica."""
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
