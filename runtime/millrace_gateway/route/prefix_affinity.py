"""Chooses a replica whose prefix cache is likely to have a request's beginning, within a bound on its load.

Pure. Rendezvous hashing ranks the replicas for each beginning, so gateways agree without shared state, and a
replica that comes or goes moves its own share alone. A beginning has as many homes as its part of the traffic
needs, and a conversation has one of them. The first replica in that order takes the request whose load is
within a bound. `benchmarks.routing` compares it with the least load: its workload chose the constants.

- Most beginnings are rare, and have one home: further copies would only evict others. A popular one would
  overload a single home.
- A beginning that no request had lately is in no cache, so the least loaded replica takes it.
- The bound counts requests, and is a little more than the mean: a replica that is alone above it gains
  nothing from its cache while its requests wait.
"""

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

BOUND = 1.15
"""The largest load of a home: this part of the mean of all replicas, and BOUND_REQUESTS more."""
BOUND_REQUESTS = 1.0

HOMES = 2.5
"""Homes of a beginning for each replica's worth of traffic that it has.

Fewer leave popular beginnings on busy replicas: 1.31 times the mean load with 1.5, and 1.25 with 2.5. More
made no clear difference up to 4, beside that between seeds.
"""
GENERATION_REQUESTS = 8192
"""Popularity counts the present generation of requests and the one before. A generation has so many."""
_MASK = (1 << 64) - 1


class Candidate(NamedTuple):
    """A replica that may be chosen."""

    uid: str
    load: float
    """As `find_load` has it."""
    share: float = 1.0
    """Of a full replica's requests, above 0: less for one that has just started."""


def find_load(
    num_waiting: int, num_running: int, kv_usage: float, num_change: int, num_gateways: int = 1
) -> float:
    """Return a replica's load from its last report, in requests, plus the used part of its KV cache.

    `num_change` is the change of this gateway's own requests there since the report. It counts once for each
    gateway: otherwise all gateways send to the same idle replica until the next report, and with two gateways
    and nothing shared the time to first token was 6 % longer than with the least load.
    """
    return max(0, num_waiting + num_running + num_change * num_gateways) + kv_usage


class Affinity:
    """Chooses replicas, and counts how popular beginnings are."""

    def __init__(self) -> None:
        self._popularity = _Popularity()

    def choose(
        self, prefix_keys: Sequence[int], replicas: Sequence[Candidate], session: int | None = None
    ) -> str:
        """Return the uid of the replica for a request with these names of beginnings, the shared one first.

        Requests of one session have one home, whatever they begin with. `replicas` is not empty.
        """
        if session is not None:
            return _take_first(_rank(session, replicas), replicas)
        share = self._popularity.count(prefix_keys[0]) if prefix_keys else None
        if share is None:
            return _find_idlest(replicas, prefix_keys[0] if prefix_keys else 0)
        ranked = _rank(prefix_keys[0], replicas)
        num_homes = math.ceil(HOMES * share * len(replicas))
        if num_homes > 1:
            ranked = [*_rank(prefix_keys[-1], ranked[:num_homes]), *ranked[num_homes:]]
        return _take_first(ranked, replicas)


class _Popularity:
    """How often each beginning came lately."""

    def __init__(self) -> None:
        self._now: Counter[int] = Counter()
        self._before: Counter[int] = Counter()
        self._num_now = 0
        self._num_before = 0

    def count(self, key: int) -> float | None:
        """Count a request. Return the part of all that began like it; None if it is the first one."""
        if self._num_now == GENERATION_REQUESTS:
            self._before, self._now = self._now, Counter()
            self._num_before, self._num_now = self._num_now, 0
        num_seen = self._now[key] + self._before[key]
        self._now[key] += 1
        self._num_now += 1
        return (num_seen + 1) / (self._num_now + self._num_before) if num_seen else None


def _take_first(ranked: Sequence[Candidate], replicas: Sequence[Candidate]) -> str:
    """Return the first replica whose load is within the bound, else the idlest."""
    bound = BOUND * sum([replica.load for replica in replicas]) / len(replicas) + BOUND_REQUESTS
    for replica in ranked:
        if replica.load <= bound * replica.share:
            return replica.uid
    return _find_idlest(ranked)


def _find_idlest(replicas: Sequence[Candidate], turn: int = 0) -> str:
    """Return the replica with the least load for its share. Of several, `turn` says which comes first."""
    loads = [(replica.load + 1) / replica.share for replica in replicas]
    least = min(loads)
    first = turn % len(replicas)
    try:
        return replicas[loads.index(least, first)].uid
    except ValueError:
        return replicas[loads.index(least)].uid


def _rank(key: int, replicas: Sequence[Candidate]) -> list[Candidate]:
    """Return the replicas in the order of their scores for a key."""
    return [replicas[place] for place in _rank_uids(key, tuple([replica.uid for replica in replicas]))]


@lru_cache(maxsize=4096)
def _rank_uids(key: int, uids: tuple[str, ...]) -> tuple[int, ...]:
    """Return the places of the uids in the order of their scores. 1 µs a uid, so it is cached."""
    scores = [_mix(key ^ _seed(uid)) for uid in uids]
    return tuple(sorted(range(len(uids)), key=scores.__getitem__))


@lru_cache(maxsize=4096)
def _seed(uid: str) -> int:
    return _mix(crc32(uid.encode()) + (len(uid) << 32))


def _mix(value: int) -> int:
    """Return 64 bits that all depend on all bits of the value: the finaliser of SplitMix64."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
