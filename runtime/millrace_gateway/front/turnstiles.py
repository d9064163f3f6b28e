"""Lets clients' requests wait in turns once their service's replicas have waiting requests."""

import asyncio
from collections.abc import Callable

from millrace_gateway.access.fairness.fair_queue import Ticket
from millrace_gateway.access.fairness.turnstile import Turnstile
from millrace_gateway.access.fairness.window import Load
from millrace_gateway.access.identity import Tenant
from millrace_gateway.route.load_report import LoadReport
from millrace_gateway.route.objects import Replica, ServiceChanges, ServiceKey


class Turnstiles:
    """Owner of a turnstile for each service whose clients have keys, and of the requests that wait there."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._turnstiles: dict[ServiceKey, Turnstile] = {}
        self._arrivals: dict[Ticket, asyncio.Future[None]] = {}
        self.num_gateways = 1
        """The gateways that share the services, with this one."""

    async def enter(
        self, service: ServiceKey, tenant: Tenant, tokens: int, on_wait: Callable[[], None]
    ) -> Ticket:
        """Return the request's ticket once it may go to a replica. It calls `on_wait` if that is later."""
        turnstile = self._turnstiles.get(service)
        if turnstile is None:
            turnstile = self._turnstiles[service] = Turnstile(self._clock)
        turnstile.window.num_gateways = self.num_gateways
        ticket = turnstile.arrive(tenant, tokens)
        if not ticket.is_released:
            on_wait()
            self._arrivals[ticket] = arrival = asyncio.get_running_loop().create_future()
            try:
                await arrival
            except asyncio.CancelledError:
                self.leave(service, ticket)
                raise
            finally:
                del self._arrivals[ticket]
        return ticket

    def leave(self, service: ServiceKey, ticket: Ticket) -> None:
        """Note the end of a request."""
        turnstile = self._turnstiles.get(service)
        if turnstile is not None:
            self._wake(turnstile.leave(ticket))

    def note_load(self, replica: Replica, report: LoadReport, num_here: int) -> None:
        """Take over a replica's report, while so many of this gateway's requests are there."""
        turnstile = self._turnstiles.get(replica.key)
        if turnstile is not None:
            load = Load(report.waiting, report.running, report.max_sequences, report.kv_usage)
            self._wake(turnstile.note_load(replica.uid, load, num_here))

    def refresh(self) -> None:
        """Let those go that wait for replicas which say nothing any more. To be called now and then."""
        for turnstile in self._turnstiles.values():
            self._wake(turnstile.release())

    def forget_deleted(self, changes: ServiceChanges) -> None:
        """Forget deleted services. Their waiting requests go on, and are told so."""
        for key in changes.deleted:
            turnstile = self._turnstiles.pop(key, None)
            if turnstile is not None:
                self._wake(turnstile.queue.release(len(turnstile.queue)))

    def _wake(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            arrival = self._arrivals.get(ticket)
            if arrival is not None and not arrival.done():
                arrival.set_result(None)
