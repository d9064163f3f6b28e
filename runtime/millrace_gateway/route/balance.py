"""Picks the replica of a request: the one with the fewest requests in flight from this gateway. Pure.

Counts are this gateway's own: each of several gateways balances its own share. Ties rotate.

A new replica has nothing in flight, so it would get all requests until it has as many as the others. Their
prompts would wait for each other, and its first steps are its slowest. So its share grows from nothing to a
full one within SLOW_START_SECONDS. On the simulated ramp W1 of `benchmarks.autoscaler` one request in a
hundred was late to its first token, nearly all of them in such a rush (a few seeds, measured once by hand).
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from millrace_gateway.route.objects import Replica
from millrace_runtime.contract import SLOW_START_SECONDS

LEAST_SHARE = 0.01
"""The share of a new replica, relative to a full one."""


class Balancer:
    """Owner of the counts in flight, and of the replicas that have failed lately."""

    def __init__(self, suspect_seconds: float) -> None:
        self._suspect_seconds = suspect_seconds
        self.num_changes = 0
        """Number of starts and ends of requests."""
        self._in_flight: Counter[str] = Counter()
        self._suspect_until: dict[str, float] = {}
        self._turn = 0

    def pick(self, replicas: Sequence[Replica], tried: Collection[str], now: float) -> Replica | None:
        """Return the least loaded replica whose uid is not in `tried`, or None.

        A replica that is marked to leave is picked only if there is no other. So is a replica that failed in
        the last `suspect_seconds`: it has nothing in flight, so it would otherwise be picked first until its
        readiness probe fails.
        """
        untried = [replica for replica in replicas if replica.uid not in tried]
        candidates = [replica for replica in untried if not replica.is_leaving] or untried
        if len(candidates) > 1:
            candidates = self._least_loaded(candidates, now)
        if not candidates:
            return None
        self._turn += 1
        return candidates[self._turn % len(candidates)]

    @contextmanager
    def count_request(self, replica: Replica) -> Iterator[None]:
        """Count one request in flight at the replica while entered."""
        self._in_flight[replica.uid] += 1
        self.num_changes += 1
        try:
            yield
        finally:
            self._in_flight[replica.uid] -= 1
            self.num_changes += 1
            if not self._in_flight[replica.uid]:
                del self._in_flight[replica.uid]

    def suspect(self, replica: Replica, now: float) -> None:
        """Record that the replica refused a request, or broke off."""
        self._suspect_until = {uid: until for uid, until in self._suspect_until.items() if until > now}
        self._suspect_until[replica.uid] = now + self._suspect_seconds

    def in_flight(self, replica: Replica) -> int:
        """Return the number of this gateway's requests at the replica."""
        return self._in_flight[replica.uid]

    def count_all(self) -> dict[str, int]:
        """Return the number of this gateway's requests at each replica that has some, by uid."""
        return dict(self._in_flight)

    def _least_loaded(self, replicas: list[Replica], now: float) -> list[Replica]:
        trusted = [r for r in replicas if self._suspect_until.get(r.uid, 0.0) <= now] or replicas
        loads = [self._find_load(replica, now) for replica in trusted]
        least = min(loads)
        return [replica for replica, load in zip(trusted, loads, strict=True) if load == least]

    def _find_load(self, replica: Replica, now: float) -> float:
        """Return its requests in flight plus one, divided by its share."""
        return (self._in_flight[replica.uid] + 1) / find_share(now - replica.ready_at)


def find_share(age: float) -> float:
    """Return the share of a replica that has been Ready for `age` seconds, relative to a full one."""
    return max(min(age / SLOW_START_SECONDS, 1.0), LEAST_SHARE)
