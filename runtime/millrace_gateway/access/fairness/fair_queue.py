"""Shares a service between tenants by the tokens that their requests ask for. Pure.

Start-time fair queueing (Goyal, Vin and Cheng 1996): each tenant has a tag, the tokens that it has been
given, and the one with the lowest tag is next. The queue's own tag is the highest that was served: that of
tenants that always wait. A tenant that uses less keeps its tag behind, by BURST_TOKENS at most. So it is
served at once, before another tenant's thousands, until it has used that much more than its share.

Deficit round-robin was tried first. A tenant at two thirds of its share then waits for its turn behind the
flood whenever two of its requests arrive together: with 64 requests at once, four seeds of the test's
simulation moved its P95 time to first token by 34 to 37 %, and by 17 to 24 % with tags. The rest is the time
until any request ends, which no order makes shorter: with 128 at once tags move it by 4 to 5 %.

A tenant that has its part of the places is passed over while one waits that has less than its part.
"""

import heapq
import math
from collections import deque
from collections.abc import Hashable
from itertools import count

from millrace_gateway.access.fairness.occupancy import Occupancy

BURST_TOKENS = 16_384
"""What a tenant may use at once before it waits for its share: about twenty usual requests."""
LEAST_TOKENS = 16
"""What each request costs, even one that a replica refuses at once: it took a turn. Without it, a client that
goes on sending what costs nothing would stay before all others."""
_NUM_IDLE = 64
"""Tenants without a waiting request that are kept before a look at which of them can be forgotten."""


class Ticket:
    """One waiting request."""

    __slots__ = ("is_cancelled", "is_counted", "is_released", "num_sequences", "tenant", "tokens")

    def __init__(self, tenant: Hashable, tokens: int, num_sequences: int = 1) -> None:
        self.tenant = tenant
        self.tokens = max(LEAST_TOKENS, tokens)
        self.num_sequences = num_sequences
        """That replicas compute for it: `n`, of each prompt."""
        self.is_released = False
        self.is_counted = False
        """Whether its tokens are in its tenant's tag: those of a request that never waited are not."""
        self.is_cancelled = False


class Flow:
    """The waiting requests of one tenant."""

    __slots__ = ("entry", "tag", "tickets")

    def __init__(self, tag: int) -> None:
        self.tag = tag
        self.entry: int | None = None
        """The number of its entry in the heap, None without one: others are older, and count no more."""
        self.tickets: deque[Ticket] = deque()

    def find_head(self) -> Ticket | None:
        """Return the first request that still waits."""
        while self.tickets and self.tickets[0].is_cancelled:
            self.tickets.popleft()
        return self.tickets[0] if self.tickets else None


_Entry = tuple[int, int, Flow]


class FairQueue:
    """Owner of the waiting requests of one service, and of who has how much at its replicas."""

    def __init__(self) -> None:
        self.occupancy = Occupancy()
        self._flows: dict[Hashable, Flow] = {}
        self._heap: list[_Entry] = []
        """Flows with waiting requests, by their tags; equal ones in the order in which they came."""
        self._numbers = count()
        self._tag = 0

    def __len__(self) -> int:
        return self.occupancy.num_waiting

    def enqueue(self, tenant: Hashable, tokens: int, num_sequences: int = 1) -> Ticket:
        """Let a request wait that asks for so many tokens."""
        flow = self._flows.get(tenant)
        if flow is None:
            self._forget_idle()
            flow = self._flows[tenant] = Flow(self._tag - BURST_TOKENS)
        ticket = Ticket(tenant, tokens, num_sequences)
        flow.tickets.append(ticket)
        self.occupancy.begin_wait(tenant)
        if flow.entry is None:
            flow.tag = max(flow.tag, self._tag - BURST_TOKENS)
            self._push(flow)
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Let a request wait no longer, if it does."""
        if not ticket.is_released and not ticket.is_cancelled:
            ticket.is_cancelled = True
            self._note_left(ticket)

    def release(self, room: float, part: float = math.inf) -> list[Ticket]:
        """Return the next requests, in their order, until their sequences fill the room.

        The last one may have more: else one of many sequences would wait until the replicas are empty. Who
        has `part` sequences at replicas is passed over while another tenant waits that has fewer. So is a
        request of more than a part whose tenant is ahead of its share of tokens: it pays for its places.
        Behind them, tags alone decide.
        """
        released: list[Ticket] = []
        passed: list[_Entry] = []
        while len(self) and room >= 1:
            if not self._heap:  # all that wait have their parts, which may have grown: fewer wait now
                self._heap, passed = passed, []
                grown = self.occupancy.find_part(self.occupancy.num_inside + room)
                part = grown if grown > part else math.inf
            entry = heapq.heappop(self._heap)
            ticket = self._find_next(entry)
            if ticket is None:
                continue
            is_ahead = ticket.num_sequences > max(1, part) and entry[0] > self._tag
            if is_ahead or self.occupancy.count_inside(ticket.tenant) >= part:
                passed.append(entry)
            else:
                self._release_head(entry, ticket)
                released.append(ticket)
                room -= ticket.num_sequences
        for entry in passed:
            heapq.heappush(self._heap, entry)
        return released

    def charge(self, ticket: Ticket, used_tokens: int) -> None:
        """Count what a released request has used: more than it asked for, or less.

        Who asks for much and uses little gets no more back than was counted, and never more than a burst.
        Else the first requests of a flood, which went without a queue or in one that has ended, would buy it
        the next thousands.
        """
        flow, more = self._flows.get(ticket.tenant), max(LEAST_TOKENS, used_tokens) - ticket.tokens
        if flow is not None:
            more = more if ticket.is_counted else max(0, more)
            former, flow.tag = flow.tag, max(flow.tag + more, min(flow.tag, self._tag - BURST_TOKENS))
            if flow.entry is not None and flow.tag < former:
                self._push(flow)

    def _find_next(self, entry: _Entry) -> Ticket | None:
        """Return the first request of a flow with the lowest tag; None if its entry is older than its tag."""
        tag, number, flow = entry
        if number != flow.entry:
            return None
        ticket = flow.find_head()
        if ticket is None:
            flow.entry = None
            return None
        flow.tag = max(flow.tag, self._tag - BURST_TOKENS)  # while it is passed over it saves up no more
        if flow.tag > tag:
            self._push(flow)
            return None
        return ticket

    def _release_head(self, entry: _Entry, ticket: Ticket) -> None:
        flow = entry[-1]
        flow.entry = None
        flow.tickets.popleft()
        ticket.is_released = ticket.is_counted = True
        self._tag = max(self._tag, flow.tag)
        flow.tag += ticket.tokens
        if flow.tickets:
            self._push(flow)
        self._note_left(ticket)
        self.occupancy.enter(ticket.tenant, ticket.num_sequences)

    def _push(self, flow: Flow) -> None:
        flow.entry = next(self._numbers)
        heapq.heappush(self._heap, (flow.tag, flow.entry, flow))
        if len(self._heap) > 2 * len(self._flows) + _NUM_IDLE:
            self._heap = [one for one in self._heap if one[1] == one[2].entry]
            heapq.heapify(self._heap)

    def _note_left(self, ticket: Ticket) -> None:
        self.occupancy.end_wait(ticket.tenant)
        if not len(self):  # nobody waits for anybody: what a tenant had before no longer matters
            self._flows.clear()
            self._heap.clear()

    def _forget_idle(self) -> None:
        if len(self._flows) > 2 * len(self._heap) + _NUM_IDLE:
            least, flows = self._tag - BURST_TOKENS, self._flows.items()
            self._flows = {t: flow for t, flow in flows if flow.entry is not None or flow.tag > least}

    def check_integrity(self) -> None:
        """Assert that every waiting request is queued exactly once."""
        self.occupancy.check_integrity()
        queued = [flow for _, number, flow in self._heap if number == flow.entry]
        assert len({id(flow) for flow in queued}) == len(queued)
        assert {id(one) for one in self._flows.values() if one.entry is not None} == set(map(id, queued))
        waiting = [t for flow in self._flows.values() for t in flow.tickets if not t.is_cancelled]
        assert len(waiting) == len(self) == len([t for f in queued for t in f.tickets if not t.is_cancelled])
