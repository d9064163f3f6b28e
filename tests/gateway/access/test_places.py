"""Tenants that share a service's places, as whole sequences in virtual time."""

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from itertools import count
from typing import NamedTuple

import pytest

from millrace_gateway.access.fairness.fair_queue import BURST_TOKENS, FairQueue, Ticket
from millrace_gateway.access.fairness.replica_room import Load, PresentReplica
from millrace_gateway.access.fairness.turnstile import Turnstile
from millrace_gateway.access.fairness.window import Present
from millrace_gateway.access.limits.ledger import Ledger
from millrace_gateway.access.limits.limiter import estimate_tokens, estimate_turn
from millrace_gateway.access.limits.reservation import Admission, Reservation, Usage
from millrace_gateway.route.objects import ServiceKey

PLACES, TOKEN_SECONDS, PROMPT_BYTES = 64, 1 / 30, 200


class Client(NamedTuple):
    """Clients of one tenant. Each sends its next request when the one before it has ended."""

    num_clients: int
    used: int
    """Tokens of an answer: it holds a place for as many steps."""
    declared: int | None = None
    reports: bool = True
    """Whether the gateway learns of the use: not if the client leaves just before the end."""
    begins: float = 0.0
    ends: float = math.inf


class Run:
    """One replica with PLACES, and a turnstile before it."""

    def __init__(self, **clients: Client) -> None:
        self.now, self.clients = 0.0, clients
        self.turnstile = Turnstile(lambda: self.now)
        self.turnstile.note_replicas(Present({"p": PresentReplica(0)}))
        self.turnstile.note_load("p", Load(0, 0, PLACES), 0)
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = count()
        self.inside: Counter[str] = Counter()
        self.started: list[tuple[float, str]] = []
        self.minutes: list[Counter[str]] = []
        """The places that each tenant has on average in a minute."""
        for name, client in clients.items():
            for _ in range(client.num_clients):
                self.plan(client.begins, lambda name=name: self.arrive(name))  # type: ignore[misc]

    def plan(self, at: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.events, (at, next(self.numbers), action))

    def until(self, seconds: float) -> "Run":
        while self.events[0][0] <= seconds:
            at, _, action = heapq.heappop(self.events)
            for minute, share in split(self.now, at):
                self.minutes += [Counter() for _ in range(minute + 1 - len(self.minutes))]
                for name, num in self.inside.items():
                    self.minutes[minute][name] += num * share
            self.now = at
            action()
        return self

    def arrive(self, name: str) -> None:
        client = self.clients[name]
        if self.now < client.ends:
            estimate = estimate_tokens(PROMPT_BYTES, client.declared, 1)
            ticket = self.turnstile.arrive(name, estimate_turn(estimate, PROMPT_BYTES, 1))
            self.start([ticket] if ticket.is_released else [])

    def start(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            name = str(ticket.tenant)
            self.inside[name] += 1
            self.started.append((self.now, name))
            seconds = self.clients[name].used * TOKEN_SECONDS * (0.9 + len(self.started) * 7919 % 101 / 500)
            self.plan(self.now + seconds, lambda ticket=ticket: self.end(ticket))  # type: ignore[misc]

    def end(self, ticket: Ticket) -> None:
        name = str(ticket.tenant)
        client, num = self.clients[name], self.inside.total()
        self.inside[name] -= 1
        self.turnstile.note_replicas(Present({"p": PresentReplica(num)}))
        self.start(self.turnstile.note_load("p", Load(0, num, PLACES), num))
        estimate = estimate_tokens(PROMPT_BYTES, client.declared, 1)
        self.start(self.turnstile.leave(ticket, client.used + 50 if client.reports else estimate))
        self.arrive(name)


def split(begin: float, end: float) -> Iterator[tuple[int, float]]:
    """Yield each minute of a time, and what part of it the time has."""
    while begin < end:
        minute = int(begin // 60)
        until = min(end, (minute + 1) * 60)
        yield minute, (until - begin) / 60
        begin = until


SHORT = Client(128, 300)
LONG = Client(400, 8000, declared=8000, begins=20.0)


@pytest.mark.parametrize(
    "other",
    [
        LONG,
        LONG._replace(reports=False),
        LONG._replace(declared=None, reports=False),
        SHORT._replace(declared=32_768),
        SHORT._replace(declared=1),
    ],
    ids=[
        "declares",
        "leaves",
        "declares nothing and leaves",
        "declares much and uses little",
        "declares one",
    ],
)
def test_of_two_tenants_that_always_wait_each_has_half_of_the_places(other: Client) -> None:
    """Long answers took nearly all places for minutes: another tenant waited for 277 s with 300 tokens."""
    for minute in Run(short=SHORT, other=other).until(900.0).minutes[2:-1]:
        assert minute["short"] == pytest.approx(PLACES / 2, abs=1.5)
        assert minute.total() == pytest.approx(PLACES)


def test_three_tenants_have_a_third_each() -> None:
    run = Run(short=SHORT, long=LONG, leaver=LONG._replace(reports=False)).until(900.0)
    for minute in run.minutes[2:-1]:
        assert all(num == pytest.approx(PLACES / 3, abs=2) for num in minute.values())


def test_tenants_that_have_no_more_requests_keep_no_part_from_those_that_wait() -> None:
    """Twenty with an answer each left two places of sixty-four to who waited beside a flood."""
    idle = {f"idle{number}": Client(1, 30_000) for number in range(20)}
    for minute in Run(**idle, short=SHORT, long=LONG).until(900.0).minutes[2:-1]:
        assert minute["short"] == pytest.approx((PLACES - 20) / 2, abs=2)


@pytest.mark.parametrize(
    "before", [{}, {"short": SHORT._replace(ends=20.0)}], ids=["always", "since a minute"]
)
def test_who_is_alone_has_all_places(before: dict[str, Client]) -> None:
    run = Run(long=LONG, **before).until(900.0)
    assert [minute["long"] for minute in run.minutes[2:-1]] == pytest.approx([PLACES] * 12, abs=0.5)


def test_who_comes_back_gets_each_place_until_it_has_its_part() -> None:
    """No place is taken away: it waits until answers end."""
    run = Run(long=LONG._replace(begins=0.0), short=SHORT._replace(begins=300.0)).until(900.0)
    after = [name for at, name in run.started if at >= 300.0]
    assert after[: PLACES // 2] == ["short"] * (PLACES // 2)
    assert run.minutes[-2]["short"] == pytest.approx(PLACES / 2, abs=1.5)


def test_who_wants_less_than_its_part_is_next_whenever_it_waits() -> None:
    """Ten clients of a few tokens beside long answers."""
    run = Run(long=LONG._replace(begins=0.0), few=Client(10, 100, begins=400.0)).until(900.0)
    after = [name for at, name in run.started if at >= 400.0]
    first = after.index("few")
    assert all(name == "few" for name in after[first : first + 10])
    assert run.minutes[-2]["few"] > 9


def test_a_request_of_more_than_a_part_pays_for_it() -> None:
    """It went first whenever its tenant had nothing inside, however much its tenant had used before."""
    queue, used = FairQueue(), Counter[Hashable]()
    for _ in range(5000):
        queue.enqueue("many", 300)
        queue.enqueue("wide", 256 * PLACES, PLACES)
    for _ in range(60):
        released = queue.release(PLACES, queue.occupancy.find_part(PLACES))
        used.update(
            {
                tenant: sum(one.tokens for one in released if one.tenant == tenant)
                for tenant in ("many", "wide")
            }
        )
        for ticket in released:
            queue.occupancy.leave(ticket.tenant, ticket.num_sequences)
    assert used["many"] == pytest.approx(used["wide"], rel=0.1)


def test_with_more_tenants_than_places_each_has_one() -> None:
    """Who came with long answers and a burst took each place that became free."""
    queue, inside = FairQueue(), deque[Ticket]()

    def take(room: int) -> None:
        inside.extend(queue.release(room, queue.occupancy.find_part(8)))

    for _ in range(50):
        for number in range(10):
            queue.enqueue(f"short{number}", 100)
        queue.enqueue("pair", 100, 2)
    take(8)
    for _ in range(50):
        queue.enqueue("long", 256)
    turns = Counter[Hashable]()
    for _ in range(200):
        ended = next(ticket for ticket in inside if ticket.tenant != "long")
        inside.remove(ended)
        queue.occupancy.leave(ended.tenant, ended.num_sequences)
        take(8 - queue.occupancy.num_inside)
        turns[ended.tenant] += 1
        assert queue.occupancy.count_inside("long") <= 1
    assert min(turns[f"short{number}"] for number in range(10)) > 10
    assert turns["pair"] > 5


def test_what_is_left_behind_the_parts_is_shared_by_those_that_still_wait() -> None:
    """Room for many comes at once, as a replica starts. Of two floods one has waited for long."""
    queue = FairQueue()
    for _ in range(200):
        queue.enqueue("old", 300)
    for _ in range(100):
        [ticket] = queue.release(1)
        queue.occupancy.leave(ticket.tenant, 1)
    for number in range(200):
        queue.enqueue("new", 300)
        queue.enqueue("old", 300)
        if number < 20:
            queue.enqueue(f"small{number}", 300)
    released = Counter(one.tenant for one in queue.release(128, queue.occupancy.find_part(128)))
    assert released["old"] == pytest.approx(released["new"], abs=1)
    assert released.total() == 128


def test_who_is_passed_over_saves_up_no_more_than_a_burst() -> None:
    """Its tag stayed behind while it had its part, and it would have bought thousands of turns with that."""
    queue = FairQueue()
    for _ in range(2000):
        queue.enqueue("cheap", 100)
        queue.enqueue("dear", 10_000)
    queue.occupancy.enter("cheap", 32)
    for _ in range(100):
        [ticket] = queue.release(1, 32)
        assert ticket.tenant == "dear"
        queue.occupancy.leave(ticket.tenant, 1)
    queue.occupancy.leave("cheap", 32)
    turns = [ticket.tenant for ticket in queue.release(BURST_TOKENS / 100 + 102)]
    assert turns[-1] == "dear"
    queue.check_integrity()


@pytest.mark.parametrize(
    ("usage", "has_begun", "may_be_more", "num_charged"),
    [
        (None, False, False, None),
        (None, True, False, 500),
        (Usage(5, 0, 7), True, False, 12),
        (Usage(5, 0, 7), True, True, 500),
    ],
)
def test_a_request_that_has_begun_pays_its_estimate_where_its_use_is_unknown(
    usage: Usage | None,
    num_charged: int | None,
    *,
    has_begun: bool,
    may_be_more: bool,
) -> None:
    """Who left each answer just before its end paid a part of it, and was next again."""
    reservation = Reservation(Ledger(lambda: 0.0), (), {})
    admission = Admission(ServiceKey("team", "chat"), None, reservation, Usage(100, 0, 400))
    admission.usage, admission.has_begun, admission.may_be_more = usage, has_begun, may_be_more
    assert admission.num_charged == num_charged
