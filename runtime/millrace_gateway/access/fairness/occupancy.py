"""Counts what each tenant has at the replicas of a service, and what it has waiting. Pure.

A place is taken for as long as an answer takes, and what the answer uses is known at its end. By tokens alone
a tenant of long answers took nearly all places before it had paid for the first one, and another tenant then
waited for minutes. So each tenant has a part of the places, beside its tokens.
"""

from collections import Counter
from collections.abc import Hashable


class Occupancy:
    """Owner of the counts of one service's tenants."""

    def __init__(self) -> None:
        self._inside: Counter[Hashable] = Counter()
        """Sequences at replicas, or on their way."""
        self._waiting: Counter[Hashable] = Counter()
        """Requests."""
        self.num_inside = 0
        self.num_waiting = 0
        self._num_kept = 0
        """Sequences inside of the tenants of which no request waits."""

    def enter(self, tenant: Hashable, num_sequences: int) -> None:
        """Count a request that goes to a replica."""
        self._inside[tenant] += num_sequences
        self.num_inside += num_sequences
        if tenant not in self._waiting:
            self._num_kept += num_sequences

    def leave(self, tenant: Hashable, num_sequences: int) -> None:
        """Count the end of such a request."""
        self.enter(tenant, -num_sequences)
        if not self._inside[tenant]:
            del self._inside[tenant]

    def begin_wait(self, tenant: Hashable) -> None:
        """Count a request that waits."""
        if tenant not in self._waiting:
            self._num_kept -= self.count_inside(tenant)
        self._waiting[tenant] += 1
        self.num_waiting += 1

    def end_wait(self, tenant: Hashable) -> None:
        """Count the end of its wait."""
        self._waiting[tenant] -= 1
        self.num_waiting -= 1
        if not self._waiting[tenant]:
            del self._waiting[tenant]
            self._num_kept += self.count_inside(tenant)

    def count_inside(self, tenant: Hashable) -> int:
        """Return how many sequences of a tenant are inside."""
        return self._inside.get(tenant, 0)

    def find_part(self, size: float) -> float:
        """Return the part of `size` places that each tenant has of which requests wait.

        Tenants of which none waits want no more than they have. They leave the rest to those that wait.
        """
        return (size - self._num_kept) / max(1, len(self._waiting))

    def check_integrity(self) -> None:
        """Assert that the sums are those of the counts."""
        assert self.num_inside == self._inside.total()
        assert self.num_waiting == self._waiting.total()
        assert self._num_kept == sum(num for one, num in self._inside.items() if one not in self._waiting)
        assert all(num > 0 for counts in (self._inside, self._waiting) for num in counts.values())
