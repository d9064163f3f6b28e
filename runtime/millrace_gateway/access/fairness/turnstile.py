"""Admits the requests of one service to its replicas, or queues them in turns. Pure.

While there is room no request waits, and no tag changes.
"""

from collections.abc import Callable, Hashable

from millrace_gateway.access.fairness.fair_queue import FairQueue, Ticket
from millrace_gateway.access.fairness.replica_room import Load
from millrace_gateway.access.fairness.window import Present, Window


class Turnstile:
    """Owner of a service's queue, and of what its replicas have room for."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns the seconds of a monotonic clock."""
        self._clock = clock
        self.queue = FairQueue()
        self.window = Window()

    @property
    def num_inside(self) -> int:
        """Sequences of this gateway that are at replicas, or on their way."""
        return self.queue.occupancy.num_inside

    @property
    def is_idle(self) -> bool:
        """Whether no request waits or is at a replica."""
        return not self.num_inside and not len(self.queue)

    def note_replicas(self, present: Present) -> list[Ticket]:
        """Replace the set of replicas. Return the requests that may go now."""
        self.window.note_replicas(present, self._clock())
        return self.release()

    def arrive(self, tenant: Hashable, tokens: int, num_sequences: int = 1) -> Ticket:
        """Return the ticket of a request. It waits unless `is_released`.

        Without a replica there is nothing to wait for, unless others wait already.
        """
        if not len(self.queue) and (not self.window.has_replica or self._has_room()):
            ticket = Ticket(tenant, tokens, num_sequences)
            ticket.is_released = True
            self.queue.occupancy.enter(tenant, num_sequences)
            return ticket
        return self.queue.enqueue(tenant, tokens, num_sequences)

    def leave(self, ticket: Ticket, used_tokens: int | None = None) -> list[Ticket]:
        """End a request, whether it waits or not. Return those that may go now.

        `used_tokens` is what it has used, if that is known: its tenant pays for it, or gets the rest back.
        """
        if ticket.is_released:
            self.queue.occupancy.leave(ticket.tenant, ticket.num_sequences)
            self.window.count_end(self._clock())
            if used_tokens is not None:
                self.queue.charge(ticket, used_tokens)
        self.queue.cancel(ticket)
        return self.release()

    def note_load(self, replica: str, load: Load, num_here: int) -> list[Ticket]:
        """Record a replica's report, with `num_here` of this gateway's sequences there.

        Return the requests that may go now.
        """
        self.window.note_load(replica, load, num_here, self._clock())
        return self.release()

    def release(self) -> list[Ticket]:
        """Return the requests that may go now."""
        if not len(self.queue):
            return []
        size = self.window.find_size(self.num_inside, self._clock())
        return self.queue.release(size - self.num_inside, self.queue.occupancy.find_part(size))

    def _has_room(self) -> bool:
        return self.num_inside + 1 <= self.window.find_size(self.num_inside + 1, self._clock())
