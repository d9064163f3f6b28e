"""Tells how a service's replicas stand: all of them now and then, those with other counts in between.

A request that ends while others wait asks for it. At 256 replicas a look at all, and to add up what they have
room for, takes 0.8 ms; what has changed takes 0.02 ms.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from millrace_gateway.access.fairness.window import Present, Standing
from millrace_gateway.route.balance import Balancer
from millrace_gateway.route.catalogue import Catalogue
from millrace_gateway.route.objects import ServiceChanges, ServiceKey

LOOK_SECONDS = 0.1
"""So old a look at all counts: a new replica's share grows, and the time of an ejection ends."""


class _Look(NamedTuple):
    """What there was at the last look at all replicas of a service."""

    until: float
    num_changes: int
    """Of the catalogue."""


class Presence:
    """Owner of the times of these looks."""

    def __init__(self, catalogue: Catalogue, balancer: Balancer, clock: Callable[[], float]) -> None:
        """`clock` returns the seconds of a monotonic clock."""
        self._catalogue = catalogue
        self._balancer = balancer
        self._clock = clock
        self._looks: dict[ServiceKey, _Look] = {}

    def look(self, service: ServiceKey) -> Present:
        """Return how all replicas of a service stand."""
        catalogue, balancer, now = self._catalogue, self._balancer, self._clock()
        counts, listed = balancer.census.look(service), catalogue.list_replicas(service)
        shares = balancer.find_shares(listed, now)
        standings = {
            one.uid: Standing(counts.pop(one.uid, 0), one.uid in shares, shares.get(one.uid, 1.0))
            for one in listed
        }
        self._looks[service] = _Look(now + LOOK_SECONDS, catalogue.num_changes)
        return Present(standings, sum(counts.values()))

    def look_for_counting(self, service: ServiceKey) -> Present:
        """Return the replicas for requests that only count tokens: what else they have is no matter."""
        listed = self._catalogue.list_replicas(service)
        return Present({uid: Standing(0) for uid in self._balancer.find_shares(listed, self._clock())})

    def find_counts(self, service: ServiceKey) -> Mapping[str, int] | None:
        """Return the replicas whose number of sequences has changed, if nothing else has; else None."""
        last = self._looks.get(service)
        if last is None or self._clock() >= last.until or last.num_changes != self._catalogue.num_changes:
            return None
        return self._balancer.census.look_at_changed(service)

    def forget_deleted(self, changes: ServiceChanges) -> None:
        """Forget deleted services."""
        for key in changes.deleted:
            self._looks.pop(key, None)
