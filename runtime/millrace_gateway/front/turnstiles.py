"""Lets clients' requests wait in turns once their service's replicas have waiting requests."""

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from millrace_gateway.access.fairness.fair_queue import Ticket
from millrace_gateway.access.fairness.replica_room import Load
from millrace_gateway.access.fairness.turnstile import Turnstile
from millrace_gateway.access.fairness.window import Present, Window
from millrace_gateway.access.identity import Tenant
from millrace_gateway.errors import DrainingError
from millrace_gateway.front.holding import Arrival, Waker
from millrace_gateway.route.load_report import LoadReport
from millrace_gateway.route.objects import Replica, ServiceChanges, ServiceKey


class Turn(NamedTuple):
    """One request that has arrived at a turnstile."""

    service: ServiceKey
    turnstile: Turnstile
    ticket: Ticket


class Turnstiles:
    """Owner of a turnstile for each service whose clients have keys, and of the requests that wait there."""

    def __init__(
        self,
        clock: Callable[[], float],
        find_replicas: Callable[[ServiceKey], Present],
        find_counts: Callable[[ServiceKey], Mapping[str, int] | None] = lambda _: None,
    ) -> None:
        """`find_counts` returns changed numbers of sequences by uid; None: more may have changed."""
        self._clock = clock
        self._find_replicas = find_replicas
        self._find_counts = find_counts
        self._turnstiles: dict[ServiceKey, Turnstile] = {}
        self._arrivals: dict[Ticket, Arrival] = {}
        self._waker = Waker()
        self._is_closed = False
        self.num_gateways = 1
        """The gateways that share the services, with this one."""

    async def enter(
        self,
        service: ServiceKey,
        tenant: Tenant,
        tokens: int,
        num_sequences: int,
        *,
        on_wait: Callable[[], None],
    ) -> Turn:
        """Return the request's turn once it may go to a replica. Calls `on_wait` if it has to wait.

        Raises DrainingError if the gateway ends before that.
        """
        turnstile = self._turnstiles.get(service)
        if turnstile is None:
            turnstile = self._turnstiles[service] = Turnstile(self._clock)
        if turnstile.is_idle or not turnstile.window.has_replica:
            self._wake(turnstile.note_replicas(self._find_replicas(service)))
        turnstile.window.num_gateways = self.num_gateways
        turn = Turn(service, turnstile, turnstile.arrive(tenant, tokens, num_sequences))
        if not turn.ticket.is_released:
            try:
                on_wait()
                await self._wait(turn.ticket)
            except BaseException:
                self.leave(turn, None)
                raise
        return turn

    async def _wait(self, ticket: Ticket) -> None:
        self._arrivals[ticket] = arrival = asyncio.get_running_loop().create_future()
        try:
            if not self._is_closed:
                await arrival
        finally:
            del self._arrivals[ticket]
        if not ticket.is_released:
            raise DrainingError(
                "This gateway is shutting down. Send the request again: another gateway answers it.",
                retry_after_seconds=1,
            )

    def close(self) -> None:
        """End all waits: this gateway ends, and their turns might come only after that."""
        self._is_closed = True
        self._wake(list(self._arrivals))

    def list_silent(self, turn: Turn) -> frozenset[str]:
        """Return the uids of replicas that hang: no request whose turn has come goes there."""
        return turn.turnstile.window.list_silent(self._clock())

    def leave(self, turn: Turn, used_tokens: int | None) -> None:
        """Note the end of a request, which has used so many tokens; None: unknown."""
        turnstile = turn.turnstile
        if len(turnstile.queue) and self._turnstiles.get(turn.service) is turnstile:
            # Its replica may be gone, and with it the places of its sequences.
            self._look(turn.service, turnstile.window)
        self._wake(turnstile.leave(turn.ticket, used_tokens))

    def _look(self, service: ServiceKey, window: Window) -> None:
        """Record the changes at the replicas."""
        counts = self._find_counts(service)
        if counts is None or not window.note_counts(counts, self._clock()):
            window.note_replicas(self._find_replicas(service), self._clock())

    def note_load(self, replica: Replica, report: LoadReport, num_here: int) -> None:
        """Record a replica's report, with `num_here` of this gateway's sequences there."""
        turnstile = self._turnstiles.get(replica.key)
        if turnstile is not None:
            load = Load(report.waiting, report.running, report.max_sequences, report.kv_usage)
            self._wake(turnstile.note_load(replica.uid, load, num_here))

    def list_busy(self) -> list[ServiceKey]:
        """Return the services of which requests wait or are at replicas."""
        return [service for service, turnstile in self._turnstiles.items() if not turnstile.is_idle]

    def refresh(self, service: ServiceKey) -> None:
        """Read the replicas of a busy service, and release requests that have room. Call it now and then."""
        self._wake(self._turnstiles[service].note_replicas(self._find_replicas(service)))

    def count_waiting(self) -> dict[ServiceKey, int]:
        """Return how many requests wait for their turns, of each service that has some."""
        lengths = {service: len(one.queue) for service, one in self._turnstiles.items()}
        return {service: length for service, length in lengths.items() if length}

    def forget_deleted(self, changes: ServiceChanges) -> None:
        """Forget deleted services. Their waiting requests continue, and are refused."""
        for key in changes.deleted:
            turnstile = self._turnstiles.pop(key, None)
            if turnstile is not None:
                self._wake(turnstile.queue.release(math.inf))

    def _wake(self, tickets: list[Ticket]) -> None:
        arrivals = (self._arrivals.get(ticket) for ticket in tickets)
        self._waker.wake({arrival: _is_released for arrival in arrivals if arrival is not None})


def _is_released() -> bool:
    """Return True: a request whose turn has come always may go."""
    return True
